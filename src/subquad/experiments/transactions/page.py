"""The page of the experiment on transactions: loss by step, quality beside boosting and the optimum, and cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import is_finished, part_rows
from subquad.experiments.transactions.grid import BASELINE, BOOSTING, COUNTS
from subquad.experiments.transactions.verdicts import Scores, best_possible, difference, gather, judge, quality
from subquad.report.curves import curves
from subquad.report.page import Chapter, Fold, Page, Picture, paragraph, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import Trained, points
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row, Run
from subquad.statistics import Interval, is_positive
from subquad.words import amount, between, duration

OTHERS = (BASELINE, COUNTS, BOOSTING)
"""What every model is compared with: softmax, and two models that do not see sequences."""
TITLE = "Clients by their transactions"
QUALITY_NOTE = (
    "Mean AUROC over folds on test clients; intervals by drawing the clients of each fold again, the same ones for both "
    "where two are compared. A difference is real where its interval does not hold zero."
)
SIMULATED_NOTE = (
    "The best possible classifier of simulated clients adds up what each event says by its code and its place in time, so "
    "these clients show whether a model learns with an attention, not whether it needs one."
)


def transactions_page(folder: Path, scale: str) -> Page:
    """Returns the page: the loss by step for each label, then tables of quality and cost."""
    runs = [Run.open(path, "train") for path in sorted(folder.glob("transactions-*")) if is_finished(path)]
    rows, verdicts = part_rows(folder / "scores", "scores") or [], judge(folder)
    labels = dict.fromkeys(run.about["options"]["task"]["label"] for run in runs)
    pictures = [_picture(runs, label) for label in labels]
    is_simulated = not any(run.about["options"]["task"]["data"] for run in runs)
    notes = [QUALITY_NOTE, *([SIMULATED_NOTE] if is_simulated else [])]
    by_label = [table(qualities(label, by_name, best_possible(rows))) for label, by_name in gather(rows).items()]
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}; {'simulated clients' if is_simulated else 'clients of the data that were given'}.",
        picture=pictures[0] if pictures else None,
        chapters=[Chapter("Training loss", pictures[1:])] if len(pictures) > 1 else [],
        folds=[
            verdict_fold(verdicts),
            Fold("Quality", [*map(paragraph, notes), *by_label]),
            Fold("Cost", [table(cost_table(rows))]),
        ],
    )


def _picture(runs: Sequence[Run], label: str) -> Picture:
    options = [(run, run.about["options"]) for run in runs]
    labelled = [
        Trained(run, run.rows(), about["mechanism"]["kind"]) for run, about in options if about["task"]["label"] == label
    ]
    caption = f"Training loss by step{f', {label}' if label else ''}"
    return Picture(f"loss_{label}", caption, curves(points(labelled, "loss"), "loss, nats for each client"))


def qualities(label: str, by_name: Mapping[str, Mapping[int, Scores]], best: float | None) -> Table:
    """AUROC of each attention and of the baselines, and its differences to those of `OTHERS`."""
    rows = []
    for name, folds in by_name.items():
        gaps = [
            _signed(difference(folds, by_name[other])) if other in by_name and other != name else NOTHING for other in OTHERS
        ]
        interval = quality(folds)
        rows.append([Cell(name), Cell(str(len(folds)), len(folds)), Cell(between(interval, ".3f"), interval.value), *gaps])
    if best is not None and not label:
        rows.append([Cell("best possible"), NOTHING, Cell(f"{best:.3f}", best), *[NOTHING] * len(OTHERS)])
    columns = ["model", "folds", "AUROC", *(f"minus {other}" for other in OTHERS)]
    return Table(f"Test clients{f', label {label}' if label else ''}", columns, rows)


def _signed(interval: Interval) -> Cell:
    real = "" if is_positive(interval) is None else ", real"
    return Cell(f"{between(interval, '+.3f')}{real}", interval.value)


def cost_table(rows: Sequence[Row]) -> Table:
    """Time of a training step and of scoring, absolute and relative to softmax, and the peak memory of a step."""
    known = {(row["metric"], row["mechanism"], row["length"], row["work"]): row for row in rows if "work" in row}
    lines = []
    for name, length in dict.fromkeys((row["mechanism"], row["length"]) for row in rows if row["metric"] == "seconds"):
        cells = [Cell(name), Cell(str(length), length)]
        for work in ("training", "scoring"):
            seconds, times = known["seconds", name, length, work], known["times_softmax", name, length, work]
            cells.append(Cell(duration(seconds["value"]), seconds["value"]))
            cells.append(Cell(between(Interval.of_row(times), ".2f"), times["value"]))
        peak = known.get(("peak_bytes", name, length, "training"))
        cells.append(NOTHING if peak is None else Cell(amount(peak["value"]), peak["value"]))
        lines.append(cells)
    columns = ["model", "events", "training step", "times softmax", "scoring", "times softmax", "peak of a step"]
    return Table("In turns on this machine: 32 clients of 256 events, 1 client of 8192", columns, lines)
