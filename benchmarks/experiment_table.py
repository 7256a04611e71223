"""Prints a table of docs/results.md from a folder of `subquad reproduce lra` or `subquad reproduce recall`.

`python benchmarks/experiment_table.py FOLDER`. Trainings that are not finished are left out.
"""

import sys
from pathlib import Path

from subquad.compare.views import Comparison
from subquad.experiments.base import part_rows
from subquad.experiments.lra import grid as arena
from subquad.experiments.lra.page import result_table
from subquad.experiments.lra.runs import scores
from subquad.experiments.recall import grid as recall
from subquad.experiments.recall.page import accuracy_table
from subquad.experiments.recall.runs import remembered
from subquad.report.tables import Cell, Table
from subquad.results import Run


def arena_table(folder: Path, scale: str) -> Table:
    """Accuracy on each task of the Long Range Arena, speed and memory, by mechanism."""
    timing = Comparison(part_rows(folder / "timing", "compare") or [])
    return result_table(scores(folder, arena.SCALES[scale]), timing, timing.views[0] if timing.views else None)


def recall_table(folder: Path, scale: str) -> Table:
    """Accuracy and state for each size of heads, and accuracy on induction, by mechanism."""
    grid = recall.SCALES[scale]
    cells: dict[str, dict[str, str]] = {}
    for task, name, head_dim, state, _, _, accuracy in accuracy_table(remembered(folder, grid)).rows:
        column = f"heads of {head_dim.text}" if task.text == recall.RECALL else task.text
        cells.setdefault(name.text, {})[column] = accuracy.text + (f", {state.text}" if task.text == recall.RECALL else "")
    columns = [*(f"heads of {size.head_dim}" for size in grid.sizes), recall.INDUCTION]
    rows = [[Cell(name), *(Cell(of_name.get(column, "-")) for column in columns)] for name, of_name in cells.items()]
    return Table("Accuracy and state", ["attention", *columns], rows)


def main(folder: Path) -> None:
    """Prints the table in Markdown."""
    options = Run.open(folder).about["options"]
    table = {"lra": arena_table, "recall": recall_table}[options["experiment"]](folder, options["scale"])
    texts = [[cell.text for cell in row] for row in table.rows]
    for line in (table.columns, ["---"] * len(table.columns), *texts):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
