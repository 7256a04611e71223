"""The page of the experiment on events: likelihood by step, residuals, quality, and cost."""

from collections.abc import Sequence
from pathlib import Path

from subquad.experiments.base import part_rows
from subquad.experiments.events.grid import ATTENTIONS, BASELINE, BATCH, LONG, PUBLISHED, TABLE, Setting
from subquad.experiments.events.verdicts import (
    Trained,
    difference,
    judge,
    on_sequences,
    over_seeds,
    pick,
    trained,
)
from subquad.report import training
from subquad.report.curves import curves
from subquad.report.event_pairs import standing
from subquad.report.page import Chapter, Fold, Page, Picture, paragraph, table
from subquad.report.residuals import quantiles, residual_chart
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row
from subquad.statistics import Interval
from subquad.words import amount, between, capitalized, duration

TITLE = "The next event's time and type"
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


QUALITY_NOTE = (
    "Test sequences, events 2 to n of each; means over seeds with their 95% intervals. Times are in the data's unit. The "
    "weights are those that did best on the development sequences. Behind and ahead are said where the interval of the "
    "difference on the same test sequences leaves no doubt."
)


def events_page(folder: Path, scale: str) -> Page:
    """Returns the page: likelihood and residuals in each setting, then tables of quality and cost."""
    runs, verdicts = trained(folder), judge(folder)
    settings = list(dict.fromkeys(run.setting for run in runs))
    pictures = {setting: _pictures(runs, setting) for setting in settings}
    first = pictures[settings[0]].pop(0) if settings else None
    folds = [verdict_fold(verdicts)]
    folds += [
        Fold(f"Quality: {setting}", [paragraph(quality_note(setting)), table(qualities(runs, setting))])
        for setting in settings
    ]
    if costs := part_rows(folder / "costs", "costs"):
        folds.append(Fold("Cost of a training step", [table(cost_table(costs))]))
    if rates := part_rows(folder / "speeds", "speeds"):
        folds.append(Fold("Speed of training by length", [paragraph(speed_sentence(rates)), table(speed_table(rates))]))
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}; {'; '.join(map(str, settings))}.",
        picture=first,
        chapters=[Chapter(capitalized(str(setting)), drawn) for setting, drawn in pictures.items() if drawn],
        folds=folds,
    )


def quality_note(setting: Setting) -> str:
    """What the table of qualities shows, and where published values in it come from."""
    return QUALITY_NOTE + (f" Published values are those of {TABLE}." if setting.source in PUBLISHED else "")


def _pictures(runs: Sequence[Trained], setting: Setting) -> list[Picture]:
    """Charts of the likelihood of all seeds by step, and of the residuals of the first seed."""
    here = [run for run in runs if run.setting == setting]
    labelled = [training.Trained(run.run, run.rows, run.attention) for run in here]
    likelihood = curves(training.points(labelled, "nll"), "negative log-likelihood per event, nats")
    pictures = [Picture(f"nll_{key(setting)}", f"Development sequences by step: {setting}", likelihood)]
    first_seed = min(run.seed for run in here)
    points = [point for run in here if run.seed == first_seed for point in quantiles(run.rows, run.attention)]
    if points:
        caption = f"Residuals of the first seed: {setting}"
        pictures.append(Picture(f"residuals_{key(setting)}", caption, residual_chart(points)))
    return pictures


def key(setting: Setting) -> str:
    """Name of a setting in the names of charts."""
    return "_".join(setting)


def qualities(runs: Sequence[Trained], setting: Setting) -> Table:
    """Every metric of each attention, then of baselines without the history, and of the true process if it is known."""
    rows = []
    for attention in ATTENTIONS:
        seeds = pick(runs, setting, attention)
        if seeds:
            cells = [_cell(seeds, metric) for metric in METRICS]
            gap = None if attention == BASELINE else difference(runs, setting, attention, BASELINE)
            gaps = NOTHING if gap is None else Cell(between(gap, "+.3f"), gap.value)
            rows.append(
                [Cell(attention), Cell(str(len(seeds)), len(seeds)), *cells, gaps, _standing(runs, setting, attention)]
            )
    in_setting = [run for run in runs if run.setting == setting]
    without = [_cell(in_setting, BASELINES[metric], spread=False) if metric in BASELINES else NOTHING for metric in METRICS]
    rows.append([Cell("no history"), NOTHING, *without, NOTHING, NOTHING])
    rows += _baseline_lines(in_setting)
    if over_seeds(in_setting, "nll_of_truth") is not None:
        truth = _cell(in_setting, "nll_of_truth", spread=False)
        rows.append([Cell("true process"), NOTHING, truth, *[NOTHING] * (len(METRICS) + 1)])
    for model, value in PUBLISHED.get(setting.source, {}).items():
        rows.append([Cell(f"{model}, published"), NOTHING, Cell(f"{value:.3f}", value), *[NOTHING] * (len(METRICS) + 1)])
    columns = ["attention", "seeds", *METRICS.values(), f"-log-likelihood minus {BASELINE}'s", "paired over sequences"]
    return Table("The most frequent type, the mean and the median gap are what no history gives", columns, rows)


def _baseline_lines(runs: Sequence[Trained]) -> list[list[Cell]]:
    """Lines of the baselines, which are the same for all trainings in a setting."""
    fitted = next((run.rows for run in runs if any(row.get("baseline") for row in run.rows)), [])
    names = {f"nll_of_{row['baseline']}": str(row["baseline"]) for row in fitted if row.get("baseline")}
    lines = []
    for row in fitted:
        if row["metric"] in names:
            parts = [Cell(f"{value:.3f}", value) for value in (row["value"], row["time"], row["type"])]
            lines.append([Cell(f"{names[row['metric']]}, baseline"), NOTHING, *parts, *[NOTHING] * (len(METRICS) - 1)])
    return lines


def _standing(runs: Sequence[Trained], setting: Setting, attention: str) -> Cell:
    gap = None if attention == BASELINE else on_sequences(runs, setting, attention, BASELINE)
    return NOTHING if gap is None else Cell(standing(gap), gap.value)


def _cell(runs: Sequence[Trained], metric: str, *, spread: bool = True) -> Cell:
    interval = over_seeds(runs, metric)
    return (
        NOTHING
        if interval is None
        else Cell(between(interval, ".3f") if spread else f"{interval.value:.3f}", interval.value)
    )


def cost_table(rows: Sequence[Row]) -> Table:
    """Time and peak memory of a training step, absolute and relative to softmax."""
    known = {(row["metric"], row["mechanism"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(row["mechanism"] for row in rows):
        seconds, times, peak, more = (
            known[metric, name] for metric in ("seconds", "times_as_fast", "peak_bytes", "times_the_peak")
        )
        lines.append(
            [
                Cell(name),
                Cell(duration(seconds["value"]), seconds["value"]),
                Cell(between(Interval.of_row(times), ".2f"), times["value"]),
                Cell(amount(peak["value"]), peak["value"]),
                Cell(between(Interval.of_row(more), ".3f"), more["value"]),
            ]
        )
    columns = ["attention", "training step", "times as fast as softmax", "peak of a step", "times softmax's peak"]
    return Table(f"In turns on one thread of this machine: {BATCH} sequences of {LONG} events", columns, lines)


def speed_sentence(rows: Sequence[Row]) -> str:
    """Says up to which length each attention trains slower than softmax, and from which length it is faster."""
    sentences = []
    for name in dict.fromkeys(row["mechanism"] for row in rows if row["mechanism"] != BASELINE):
        ratios = {
            row["length"]: Interval.of_row(row)
            for row in rows
            if (row["metric"], row["mechanism"]) == ("times_as_fast", name)
        }
        slower = [length for length, ratio in ratios.items() if ratio.high < 1]
        faster = [length for length, ratio in ratios.items() if ratio.low > 1]
        said = [f"slower than {BASELINE} at {_lengths(slower)} events"] if slower else []
        said += [f"faster at {_lengths(faster)}"] if faster else []
        sentences.append(f"{name} is {' and '.join(said) or f'level with {BASELINE}'}")
    return f"{capitalized('; '.join(sentences))}."


def _lengths(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(lengths)))


def speed_table(rows: Sequence[Row]) -> Table:
    """Tokens a second of training by length and attention, with the ratio to softmax."""
    known = {(row["metric"], row["mechanism"], row["length"]): row for row in rows}
    names = list(dict.fromkeys(row["mechanism"] for row in rows))
    lines = []
    for length in sorted({row["length"] for row in rows}):
        cells = [Cell(str(length), length)]
        for name in names:
            rate, times = (known.get((metric, name, length)) for metric in ("tokens_per_second", "times_as_fast"))
            if rate is None or times is None:
                cells.append(NOTHING)
            else:
                ratio = "" if name == BASELINE else f", {between(Interval.of_row(times), '.2f')} times"
                cells.append(Cell(f"{rate['value']:,.0f}{ratio}", rate["value"]))
        lines.append(cells)
    caption = "Events a second of a training step on one thread, attentions in turns; times softmax's (95% intervals)"
    return Table(caption, ["events of a sequence", *names], lines)
