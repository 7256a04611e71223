"""Prints the table of docs/speed.md from several runs of `subquad compare`: `python benchmarks/compare_table.py RUN ...`.

Each cell is the middle of the runs, with the lowest and highest: times as fast as fused softmax, and the length from which
an attention pays. A cell that fewer runs measured says so. An attention that pays at the shortest length pays from it or
fewer tokens on.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from subquad.compare.views import BASELINE, MATERIALISED, WHATS, Comparison, View
from subquad.results import Run
from subquad.words import digits

LENGTHS = (256, 1024, 4096, 16384)
WORK = {"forward": "forward", "training": "forward and backward", "layer": "a whole layer, forward", "step": "one step"}


def spread(values: Sequence[float], runs: int, show: Callable[[float], str]) -> str:
    """Middle, lowest and highest of the values that were measured."""
    if not values:
        return "-"
    few = f" (in {len(values)} of the runs)" if len(values) < runs else ""
    return f"{show(median(values))} ({show(min(values))} to {show(max(values))}){few}"


def cells(comparisons: Sequence[Comparison], view: View, mechanism: str) -> list[str]:
    """Speeds at `LENGTHS`, then where the attention pays."""
    speeds = []
    for length in LENGTHS:
        ratios = [comparison.speedup(view, mechanism, length) for comparison in comparisons]
        speeds.append(spread([speed.value for speed in ratios if speed is not None], len(comparisons), digits))
    starts = [comparison.crossover(view, mechanism) for comparison in comparisons]
    pays = [start.middle for start in starts if start is not None and start.middle is not None]
    return [*speeds, spread(pays, len(comparisons), lambda length: f"{length:.0f}")]


def main(folders: Sequence[str]) -> None:
    """Prints the table in Markdown."""
    comparisons = [Comparison(Run.open(Path(folder), "compare").rows()) for folder in folders]
    print("| attention |", " | ".join(map(str, LENGTHS)), "| pays from |")
    print("|---" * (len(LENGTHS) + 2) + "|")
    first = comparisons[0]
    order: dict[str, int] = {what: place for place, what in enumerate(WHATS)}
    for mechanism in first.mechanisms:
        for view in sorted(first.views, key=lambda view: (view.form, order[view.what])):
            if mechanism not in (BASELINE, MATERIALISED) and mechanism in first.measured(view):
                form = "" if view.what == "step" else f"{view.form}, "
                row = cells(comparisons, view, mechanism)
                print(f"| {mechanism}, {form}{WORK.get(view.what, view.what)} |", " | ".join(row), "|")


if __name__ == "__main__":
    main(sys.argv[1:])
