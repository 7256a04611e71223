"""The page of the experiment on the infinity-former: accuracy by step, length and memory, and cost by context."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import Trial, finished_rows, is_finished, last_value, part_rows
from subquad.experiments.infinity.grid import SCALES
from subquad.experiments.infinity.verdicts import judge
from subquad.report.curves import curves
from subquad.report.page import Chapter, Fold, Page, Picture, paragraph, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import Trained, points
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row, Run
from subquad.statistics import Interval, mean_over_seeds
from subquad.words import amount, between, duration

TITLE = "Infinity-former: a memory of fixed size"
WINDOW_NOTE = "The window sees the last segment only; its probabilities are those of the sequence's end."


def infinity_page(folder: Path, scale: str) -> Page:
    """Returns the page: accuracy and loss by step at each length, then tables of accuracy and cost."""
    trials = [trial for trial in SCALES[scale].trials() if is_finished(folder / trial.name)]
    rows = finished_rows(folder, trials)
    verdicts = judge(folder, scale)
    lengths = sorted({trial.length for trial in trials})
    right = [_picture(folder, trials, rows, length, "token_accuracy", "share of places right") for length in lengths]
    losses = [_picture(folder, trials, rows, length, "loss", "loss, nats for each symbol") for length in lengths]
    folds = [verdict_fold(verdicts)]
    if trials:
        folds.append(Fold("Accuracy at the end", [paragraph(WINDOW_NOTE), table(accuracies(rows, trials))]))
    if context := part_rows(folder / "context", "context"):
        folds.append(Fold("The cost of the next segment", [table(costs(context))]))
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}.",
        picture=right[0] if right else None,
        chapters=[Chapter("Sorting symbols by frequency", [*right[1:], *losses], WINDOW_NOTE)] if trials else [],
        folds=folds,
    )


def _picture(
    folder: Path, trials: Sequence[Trial], rows: Mapping[str, list[Row]], length: int, metric: str, title: str
) -> Picture:
    runs = [
        Trained(Run.open(folder / trial.name), rows[trial.name], f"infinity: {trial.variant}")
        for trial in trials
        if trial.length == length
    ]
    name = "Accuracy" if metric == "token_accuracy" else "Loss"
    return Picture(f"{metric}_{length}", f"{name} at {length} tokens by step", curves(points(runs, metric), title))


def accuracies(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Table:
    """Mean and 95% interval over seeds of the accuracy, and the mean distance of symbols from their right position."""
    variants = list(dict.fromkeys(trial.variant for trial in trials))
    rows = []
    for length in sorted({trial.length for trial in trials}):
        for variant in variants:
            seeds = [trained[trial.name] for trial in trials if (trial.length, trial.variant) == (length, variant)]
            if seeds:
                accuracy = mean_over_seeds([last_value(rows, "token_accuracy") for rows in seeds])
                off = mean_over_seeds([last_value(rows, "places_off") for rows in seeds])
                rows.append(
                    [
                        Cell(str(length), length),
                        Cell(variant),
                        Cell(str(len(seeds)), len(seeds)),
                        Cell(between(accuracy, ".1%"), accuracy.value),
                        Cell(f"{off.value:.2f}", off.value),
                    ]
                )
    columns = ["length", "variant", "seeds", "accuracy (95% interval)", "places off"]
    return Table("At the end of training", columns, rows)


def costs(measured: Sequence[Row]) -> Table:
    """Time of the next segment and size of the state, by context."""
    by_context: dict[int, dict[str, Row]] = {}
    for row in measured:
        by_context.setdefault(row["context"], {})[row["metric"]] = row
    rows = []
    for context, by_metric in sorted(by_context.items()):
        times, size = by_metric["times_first"], by_metric["state_bytes"]["value"]
        rows.append(
            [
                Cell(str(context), context),
                Cell(duration(by_metric["seconds"]["value"]), by_metric["seconds"]["value"]),
                Cell(between(Interval.of_row(times), ".3f"), times["value"]),
                Cell(amount(size), size) if size else NOTHING,
            ]
        )
    columns = ["tokens before", "time of the next segment", "times the first", "state"]
    return Table("One layer's attention, 8 heads of 64, segments of 512", columns, rows)
