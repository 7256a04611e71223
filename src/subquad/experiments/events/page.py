"""The page of the experiment on events: verdicts, quality beside baselines and the truth, residuals, curves, cost."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from subquad.experiments.events import grid as events
from subquad.experiments.events.grid import ATTENTIONS, BASELINE, Setting, Trained, difference, over_seeds, pick
from subquad.files import write_whole
from subquad.report import tables, training
from subquad.report.curves import curves
from subquad.report.page import code, figure, heading, page, paragraph, section, table
from subquad.report.residuals import quantiles, residual_chart
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run
from subquad.statistics import Interval
from subquad.words import amount, between, duration

METRICS = {
    **{"nll": "-log-likelihood", "nll_time": "of the time", "nll_type": "of the type"},
    **{"accuracy": "accuracy", "macro_f1": "macro F1", "rmse": "RMSE", "mae": "MAE"},
}
BASELINES = {
    "accuracy": "accuracy_of_most_frequent",
    "macro_f1": "macro_f1_of_most_frequent",
    "rmse": "rmse_of_mean_gap",
    "mae": "mae_of_median_gap",
}


def write_events_page(folder: Path, scale: str, path: Path) -> None:
    """Writes the page."""
    runs = events.trained(folder)
    settings = list(dict.fromkeys(one.setting for one in runs))
    drawn = {}
    for setting in settings:
        own = [one for one in runs if one.setting == setting]
        labelled = [training.Trained(one.run, one.rows, one.attention) for one in own]
        drawn[f"nll_{key(setting)}"] = curves(training.points(labelled, "nll"), "negative log-likelihood per event, nats")
        first = [one for one in own if one.seed == min(other.seed for other in own)]
        if found := [point for one in first for point in quantiles(one.rows, one.attention)]:
            drawn[f"residuals_{key(setting)}"] = residual_chart(found)
    costs = folder / "costs"
    title = "The next event's time and type"

    def parts() -> Iterator[str]:
        yield heading(title, f"scale: {scale}; {'; '.join(map(str, settings))}")
        yield table(tables.verdicts(events.judge(folder, scale)))
        for setting in settings:
            yield section(str(setting).capitalize())
            yield paragraph(
                "Test sequences, events 2 to n of each; means over seeds with their 95% intervals. Times are in the data's "
                "unit. The weights are those that did best on the development sequences."
            )
            yield table(qualities(runs, setting))
            yield figure(f"nll_{key(setting)}", "Development sequences, by step")
            if f"residuals_{key(setting)}" in drawn:
                yield figure(f"residuals_{key(setting)}", "Residuals of the first seed")
        if (costs / "run.json").exists():
            yield section("Cost")
            yield table(cost_table(Run.open(costs, "costs").rows()))
        yield section("To run it again")
        real = " --data FOLDER" if any(setting.source != events.SIMULATED for setting in settings) else ""
        yield code(f"subquad reproduce events --scale {scale}{real}")

    write_whole(path, page(title, list(parts()), drawn))


def key(setting: Setting) -> str:
    """By which a chart is told from others."""
    return "_".join(setting)


def qualities(runs: Sequence[Trained], setting: Setting) -> Table:
    """Every metric of each attention, then what needs no model, and the truth where it is known."""
    rows = []
    for attention in ATTENTIONS:
        own = pick(runs, setting, attention)
        if own:
            cells = [_cell(own, metric) for metric in METRICS]
            gap = None if attention == BASELINE else difference(runs, setting, attention, BASELINE)
            gaps = NOTHING if gap is None else Cell(between(gap, "+.3f"), gap.value)
            rows.append([Cell(attention), Cell(str(len(own)), len(own)), *cells, gaps])
    every = [one for one in runs if one.setting == setting]
    without = [_cell(every, BASELINES[metric], spread=False) if metric in BASELINES else NOTHING for metric in METRICS]
    rows.append([Cell("no history"), NOTHING, *without, NOTHING])
    if over_seeds(every, "nll_of_truth") is not None:
        rows.append([Cell("true process"), NOTHING, _cell(every, "nll_of_truth", spread=False), *[NOTHING] * len(METRICS)])
    columns = ["attention", "seeds", *METRICS.values(), f"-log-likelihood minus {BASELINE}'s"]
    return Table("The most frequent type, the mean and the median gap are what no history gives", columns, rows)


def _cell(runs: Sequence[Trained], metric: str, *, spread: bool = True) -> Cell:
    found = over_seeds(runs, metric)
    return NOTHING if found is None else Cell(between(found, ".3f") if spread else f"{found.value:.3f}", found.value)


def cost_table(rows: Sequence[Row]) -> Table:
    """Time and peak of a training step, and both beside softmax's."""
    known = {(row["metric"], row["mechanism"]): row for row in rows}
    found = []
    for name in dict.fromkeys(row["mechanism"] for row in rows):
        seconds, times, peak, more = (
            known[metric, name] for metric in ("seconds", "times_as_fast", "peak_bytes", "times_the_peak")
        )
        found.append(
            [
                Cell(name),
                Cell(duration(seconds["value"]), seconds["value"]),
                Cell(between(Interval.of_row(times), ".2f"), times["value"]),
                Cell(amount(peak["value"]), peak["value"]),
                Cell(between(Interval.of_row(more), ".3f"), more["value"]),
            ]
        )
    columns = ["attention", "training step", "times as fast as softmax", "peak of a step", "times softmax's peak"]
    return Table(f"In turns on one thread of this machine: {events.BATCH} sequences of {events.LONG} events", columns, found)
