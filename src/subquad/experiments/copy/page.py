"""The page of the experiment on the copy task: convergence and time, beside the published figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import altair as alt
import numpy as np

from subquad.compare import replication
from subquad.compare.views import AXES, BASELINE, Comparison, View
from subquad.experiments.base import Trial, finished_rows, is_finished
from subquad.experiments.copy.grid import SCALES
from subquad.experiments.copy.shares import recipe_answer, share_picture, share_table
from subquad.experiments.copy.verdicts import judge
from subquad.report import charts, tables
from subquad.report.compare import all_points, load
from subquad.report.curves import curves
from subquad.report.page import Chapter, Fold, Page, Picture, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import Trained, final_table, metric_words, points, sample_table, training_charts
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row, Run
from subquad.words import capitalized

TITLE = "Transformers are RNNs: the copy task, replicated"
STEPS = 3000
"""Number of training steps that the replication timed."""


def copy_page(folder: Path, scale: str) -> Page:
    """Returns the page: shares copied first, then loss and time by length, each beside what was published."""
    trials = [trial for trial in SCALES[scale].trials() if is_finished(folder / trial.name)]
    rows_by_trial = finished_rows(folder, trials)
    has_lengths = len({trial.length for trial in trials}) > 1
    trained = [_named(folder, trial, has_lengths=has_lengths) for trial in trials]
    timing = load([folder / "timing"]) if (folder / "timing" / "run.json").exists() else []
    comparison = timing[0].comparison if timing and timing[0].comparison.views else None
    verdicts = judge(folder, scale)
    variants = list(dict.fromkeys(trial.variant for trial in trials))[: len(charts.PALETTE)]
    few = [run for run, trial in zip(trained, trials, strict=True) if trial.variant in variants]
    chapters = [Chapter("Convergence", _convergence_pictures(few))] if few else []
    chapters += [_alone(few, [trial for trial in trials if trial.variant in variants])] if few else []
    rows = all_points(timing) if comparison is not None else []
    folds = [verdict_fold(verdicts)]
    if trained:
        folds.append(Fold("Every recipe", [table(share_table(rows_by_trial, trials))], is_open=True))
        folds.append(Fold("The end of each training", [table(final_table(trained)), table(sample_table(trained[:3]))]))
    if comparison is not None:
        chapters.append(_times(comparison, rows))
        folds.append(_time_fold(comparison))
    return Page(
        TITLE,
        recipe_answer(rows_by_trial, trials) or verdict_answer(verdicts),
        about=f"Scale {scale}. Every training is a run in the same folder.",
        picture=share_picture(rows_by_trial, trials),
        views=list(dict.fromkeys(row["view"] for row in rows)),
        chapters=chapters,
        folds=folds,
    )


def _named(folder: Path, trial: Trial, *, has_lengths: bool) -> Trained:
    run = Run.open(folder / trial.name)
    return Trained(run, run.rows(), f"{trial.variant}, {trial.length} symbols" if has_lengths else trial.variant)


def _convergence_pictures(trained: Sequence[Trained]) -> list[Picture]:
    drawn = training_charts(trained) if trained else {}
    return [
        Picture(name, f"{metric_words(name)} by step, with the range over seeds", chart) for name, chart in drawn.items()
    ]


def _alone(trained: Sequence[Trained], trials: Sequence[Trial]) -> Chapter:
    """Charts of the loss of each attention, as in the replication."""
    pictures = [
        Picture(f"loss_{name}", f"Loss with {name}, every length and seed", chart)
        for name, chart in convergence(trained, trials)
    ]
    return Chapter("Beside the replication's figures 2 to 4", pictures, THEIR_CONVERGENCE)


def _times(comparison: Comparison, rows: Sequence[Row]) -> Chapter:
    caption = f"Seconds of {STEPS} steps: the replication's figure 1 and what was measured here"
    pictures = [Picture("figure_1", caption, figure_one(comparison, comparison.views[0]))]
    for name in ("time", "speedup"):
        pictures.append(Picture(name, capitalized(charts.METRICS[name]), charts.chart(name, rows)))
    return Chapter("Time of a training step by length", pictures, _tale())


def _time_fold(comparison: Comparison) -> Fold:
    published = table(beside(comparison, comparison.views[0]))
    return Fold("Time of a training step", [published, *map(table, tables.crossovers(comparison))])


THEIR_CONVERGENCE = (
    "In figures 2 and 3 there, linear attention came to 0 at lengths 8 and 32 in 3000 steps at a batch of 8, and stayed at "
    "up to 70 at the others, so that the authors saw no stable convergence. In figure 4, softmax came to between 10 and 18. "
    "Transformers.jl 0.1.15, which they may have changed in this, adds the losses of the 8 sequences of a batch: guessing "
    "among 10 symbols then costs 8 ln 10 = 18.4. Here, a loss is the mean over symbols."
)


def convergence(trained: Sequence[Trained], trials: Sequence[Trial]) -> Iterator[tuple[str, alt.LayerChart]]:
    """Yields a chart of the loss of each attention, with one line for each length and seed."""
    for name in dict.fromkeys(trial.variant for trial in trials):
        runs = [run for run, trial in zip(trained, trials, strict=True) if trial.variant == name]
        if rows := points(runs, "loss"):
            yield name, curves(rows, "loss", log=True)


def figure_one(comparison: Comparison, view: View) -> alt.LayerChart:
    """Time against length: published points with their fitted curves, and points measured here."""
    rows: list[Row] = []
    ends = np.geomspace(replication.LENGTHS[0], 4096, 60)
    for name, seconds, powers in (
        ("softmax, published", replication.SOFTMAX_SECONDS, (2, 0)),
        ("linear, published", replication.LINEAR_SECONDS, (1, 0)),
    ):
        fitted = replication.curve(seconds, powers, ends)
        rows += [{"series": name, "length": at, "fit": value} for at, value in zip(ends, fitted, strict=True)]
        rows += [
            {"series": name, "length": at, "seconds": value} for at, value in zip(replication.LENGTHS, seconds, strict=True)
        ]
    for name in comparison.measured(view):
        for length in comparison.lengths(view, name):
            seconds_here = STEPS * comparison.middle(view, name, length)
            rows.append({"series": f"{name}, here", "length": length, "seconds": seconds_here, "fit": seconds_here})
    names = list(dict.fromkeys(row["series"] for row in rows))
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, columns=charts.LEGEND_COLUMNS)
    colour = alt.Color("series:N").scale(domain=names, range=charts.PALETTE[: len(names)]).legend(legend)
    x = alt.X("length:Q", title="length, tokens").scale(type="log", base=2, nice=False)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=colour)
    hints = ["series:N", "length:Q", alt.Tooltip("seconds:Q", format=".3~g")]
    lines = base.transform_filter("isValid(datum.fit)").mark_line(strokeWidth=1.5)
    dots = base.transform_filter("isValid(datum.seconds)").mark_point(filled=True, size=60, opacity=1)
    y, fit = (
        alt.Y(f"{name}:Q", title=f"seconds of {STEPS} steps").scale(type="log", nice=False) for name in ("seconds", "fit")
    )
    drawn = alt.layer(lines.encode(y=fit), dots.encode(y=y, tooltip=hints)).properties(
        width="container", height=charts.HEIGHT
    )
    return drawn.configure(background="transparent").configure_view(stroke=None)


def beside(comparison: Comparison, view: View) -> Table:
    """Seconds of 3000 steps by length: the replication's table 1, and what was measured here."""
    names = comparison.measured(view)
    lengths = sorted({*replication.LENGTHS, *(length for name in names for length in comparison.lengths(view, name))})
    published = {BASELINE: replication.SOFTMAX_SECONDS, "linear": replication.LINEAR_SECONDS}
    rows = []
    for length in lengths:
        at = replication.LENGTHS.index(length) if length in replication.LENGTHS else None
        theirs = [NOTHING if at is None else Cell(str(seconds[at]), seconds[at]) for seconds in published.values()]
        ours = [_steps(comparison, view, name, length) for name in names]
        rows.append([Cell(str(length), length), *theirs, *ours])
    columns = ["length", "softmax, published", "linear, published", *(f"{name}, here" for name in names)]
    batch = view.setting[AXES.index("batch")]
    about = f"published: Do and Bergner 2022, table 1, a batch of 8 on their GPU; here: a batch of {batch} on this machine"
    return Table(f"Seconds of {STEPS} steps ({about})", columns, rows)


def _steps(comparison: Comparison, view: View, name: str, length: int) -> Cell:
    if length not in comparison.lengths(view, name):
        return NOTHING
    seconds = STEPS * comparison.middle(view, name, length)
    return Cell(f"{seconds:.0f}", seconds)


def _tale() -> str:
    published, fuller = replication.extrapolations()
    high = "infinity" if fuller.high == float("inf") else f"{fuller.high:.0f}"
    return (
        f"The replication extrapolated from its four lengths that linear pays from {replication.PUBLISHED} on; its own "
        f"regression leaves {published.low:.0f} to {published.high:.0f}, and with a linear term {fuller.low:.0f} to {high}. "
        "What is above is measured."
    )
