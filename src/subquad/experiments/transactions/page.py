"""The page of the experiment on transactions: verdicts, quality beside boosting and the best possible, cost, curves."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import finished
from subquad.experiments.transactions import grid as transactions
from subquad.experiments.transactions.grid import BASELINE, BOOSTING, Scores, difference, gather, quality
from subquad.files import write_whole
from subquad.report import tables
from subquad.report.curves import curves
from subquad.report.page import code, figure, heading, page, paragraph, section, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import Trained, points
from subquad.results import Row, Run
from subquad.statistics import Interval, is_positive
from subquad.words import amount, between, duration


def write_transactions_page(folder: Path, scale: str, path: Path) -> None:
    """Writes the page."""
    runs = [Run.open(own, "train") for own in sorted(folder.glob("transactions-*")) if finished(own)]
    rows = Run.open(folder / "scores", "scores").rows() if (folder / "scores" / "run.json").exists() else []
    labels = list(dict.fromkeys(run.about["options"]["task"]["label"] for run in runs))
    drawn = {}
    for label in labels:
        own = [
            Trained(run, run.rows(), run.about["options"]["mechanism"]["kind"])
            for run in runs
            if run.about["options"]["task"]["label"] == label
        ]
        drawn[f"loss_{label}"] = curves(points(own, "loss"), "loss, nats for each client")
    title = "Clients by their transactions"
    simulated = not any(run.about["options"]["task"]["data"] for run in runs)

    def parts() -> Iterator[str]:
        yield heading(title, f"scale: {scale}; {'simulated clients' if simulated else 'data that were given'}")
        yield table(tables.verdicts(transactions.judge(folder, scale)))
        yield section("Quality")
        yield paragraph(
            "Mean AUROC over folds on test clients; intervals by drawing the clients of each fold again, the same ones for "
            "both where two are compared. A difference is real where its interval does not hold zero."
        )
        if simulated:
            yield paragraph(
                "The best possible classifier of simulated clients adds up what each event says by its code and its place "
                "in time, so these clients show whether a model learns with an attention, not whether it needs one."
            )
        for label, by_name in gather(rows).items():
            yield table(qualities(label, by_name, transactions.best_possible(rows)))
            if f"loss_{label}" in drawn:
                yield figure(f"loss_{label}", f"Training loss by step{f', {label}' if label else ''}")
        yield section("Cost")
        yield table(cost_table(rows))
        yield section("To run it again")
        yield code(f"subquad reproduce transactions --scale {scale}")

    write_whole(path, page(title, list(parts()), drawn))


def qualities(label: str, by_name: Mapping[str, Mapping[int, Scores]], best: float | None) -> Table:
    """Each attention and boosting: AUROC, and the differences to softmax and to boosting."""
    rows = []
    for name, folds in by_name.items():
        gaps = [
            _signed(difference(folds, by_name[other])) if other in by_name and other != name else NOTHING
            for other in (BASELINE, BOOSTING)
        ]
        found = quality(folds)
        rows.append([Cell(name), Cell(str(len(folds)), len(folds)), Cell(between(found, ".3f"), found.value), *gaps])
    if best is not None and not label:
        rows.append([Cell("best possible"), NOTHING, Cell(f"{best:.3f}", best), NOTHING, NOTHING])
    columns = ["model", "folds", "AUROC", f"minus {BASELINE}", f"minus {BOOSTING}"]
    return Table(f"Test clients{f', label {label}' if label else ''}", columns, rows)


def _signed(found: Interval) -> Cell:
    real = "" if is_positive(found) is None else ", real"
    return Cell(f"{between(found, '+.3f')}{real}", found.value)


def cost_table(rows: Sequence[Row]) -> Table:
    """Time of a training step and of scoring, relative to softmax, and the peak of a step's memory."""
    known = {(row["metric"], row["mechanism"], row["length"], row["work"]): row for row in rows if "work" in row}
    found = []
    for name, length in dict.fromkeys((row["mechanism"], row["length"]) for row in rows if row["metric"] == "seconds"):
        cells = [Cell(name), Cell(str(length), length)]
        for work in ("training", "scoring"):
            seconds, times = known["seconds", name, length, work], known["times_softmax", name, length, work]
            cells.append(Cell(duration(seconds["value"]), seconds["value"]))
            cells.append(Cell(between(Interval.of_row(times), ".2f"), times["value"]))
        peak = known.get(("peak_bytes", name, length, "training"))
        cells.append(NOTHING if peak is None else Cell(amount(peak["value"]), peak["value"]))
        found.append(cells)
    columns = ["model", "events", "training step", "times softmax", "scoring", "times softmax", "peak of a step"]
    return Table("In turns on this machine: 32 clients of 256 events, 1 client of 8192", columns, found)
