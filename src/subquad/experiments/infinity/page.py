"""The page of the infinity-former's experiment: verdicts, accuracy by length and variant, curves, cost by context."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import Trial, finished, last, load
from subquad.experiments.infinity import grid as memory
from subquad.files import write_whole
from subquad.report import tables
from subquad.report.curves import curves
from subquad.report.page import code, figure, heading, page, paragraph, section, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import Trained, points
from subquad.results import Row, Run
from subquad.statistics import Interval, mean_over_seeds
from subquad.words import amount, between, duration


def write_memory_page(folder: Path, scale: str, path: Path) -> None:
    """Writes the page."""
    trials = [trial for trial in memory.SCALES[scale].trials() if finished(folder / trial.name)]
    trained = load(folder, trials)
    lengths = sorted({trial.length for trial in trials})
    drawn = {}
    for length in lengths:
        own = [
            Trained(Run.open(folder / trial.name), trained[trial.name], trial.variant)
            for trial in trials
            if trial.length == length
        ]
        drawn[f"accuracy_{length}"] = curves(points(own, "token_accuracy"), "share of places with the right symbol")
        drawn[f"loss_{length}"] = curves(points(own, "loss"), "loss, nats for each symbol")
    context = folder / "context"
    title = "Infinity-former: a memory of fixed size"

    def parts() -> Iterator[str]:
        yield heading(title, f"scale: {scale}")
        yield table(tables.verdicts(memory.judge(folder, scale)))
        if trials:
            yield section("Sorting symbols by frequency")
            yield paragraph("The window sees the last segment only; its probabilities are those of the sequence's end.")
            yield table(accuracies(trained, trials))
        for length in lengths:
            yield figure(f"accuracy_{length}", f"Accuracy at {length} tokens")
            yield figure(f"loss_{length}", f"Loss at {length} tokens")
        if (context / "run.json").exists():
            yield section("The cost of the next segment")
            yield table(costs(Run.open(context, "context").rows()))
        yield section("To run it again")
        yield code(f"subquad reproduce infinity --scale {scale}")

    write_whole(path, page(title, list(parts()), drawn))


def accuracies(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Table:
    """Mean and 95% interval over seeds of the accuracy, and of how far off symbols are."""
    variants = list(dict.fromkeys(trial.variant for trial in trials))
    rows = []
    for length in sorted({trial.length for trial in trials}):
        for variant in variants:
            own = [trained[trial.name] for trial in trials if (trial.length, trial.variant) == (length, variant)]
            if own:
                found = mean_over_seeds([last(rows, "token_accuracy") for rows in own])
                off = mean_over_seeds([last(rows, "places_off") for rows in own])
                rows.append(
                    [
                        Cell(str(length), length),
                        Cell(variant),
                        Cell(str(len(own)), len(own)),
                        Cell(between(found, ".1%"), found.value),
                        Cell(f"{off.value:.2f}", off.value),
                    ]
                )
    columns = ["length", "variant", "seeds", "accuracy (95% interval)", "places off"]
    return Table("At the end of training", columns, rows)


def costs(measured: Sequence[Row]) -> Table:
    """Time and state by context."""
    by_context: dict[int, dict[str, Row]] = {}
    for row in measured:
        by_context.setdefault(row["context"], {})[row["metric"]] = row
    rows = []
    for context, found in sorted(by_context.items()):
        times, size = found["times_first"], found["state_bytes"]["value"]
        rows.append(
            [
                Cell(str(context), context),
                Cell(duration(found["seconds"]["value"]), found["seconds"]["value"]),
                Cell(between(Interval.of_row(times), ".3f"), times["value"]),
                Cell(amount(size), size) if size else NOTHING,
            ]
        )
    columns = ["tokens before", "time of the next segment", "times the first", "state"]
    return Table("One layer's attention, 8 heads of 64, segments of 512", columns, rows)
