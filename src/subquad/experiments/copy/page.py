"""The page of the copy task's replication: verdicts, convergence, and the replication's own table beside ours."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import altair as alt
import numpy as np

from subquad.compare import replication
from subquad.compare.views import AXES, BASELINE, Comparison, View
from subquad.experiments.base import Trial, finished
from subquad.experiments.copy import grid as copying
from subquad.files import write_whole
from subquad.report import charts, tables
from subquad.report.compare import all_points, load
from subquad.report.curves import curves
from subquad.report.page import bullets, chooser, code, figure, heading, page, paragraph, section, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import Trained, final_table, points, sample_table, training_charts
from subquad.results import Row, Run

STEPS = 3000
"""What the replication timed."""


def write_replication_page(folder: Path, scale: str, path: Path) -> None:
    """Writes the page."""
    trials = [trial for trial in copying.SCALES[scale].trials() if finished(folder / trial.name)]
    trained = [_named(folder, trial, one_length=len({other.length for other in trials}) == 1) for trial in trials]
    drawn = dict(training_charts(trained)) if trained else {}
    timing = load([folder / "timing"]) if (folder / "timing" / "run.json").exists() else []
    rows = all_points(timing)
    by_attention = dict(convergence(trained, trials))
    drawn |= by_attention
    if rows:
        drawn |= {metric: charts.chart(metric, rows) for metric in ("time", "speedup")}
        drawn["figure_1"] = figure_one(timing[0].comparison, timing[0].comparison.views[0])
    title = "Transformers are RNNs: the copy task, replicated"

    def parts() -> Iterator[str]:
        yield heading(title, f"scale: {scale}")
        yield table(tables.verdicts(copying.judge(folder, scale)))
        if trained:
            yield section("Convergence")
            yield table(final_table(trained))
            for name in training_charts(trained):
                yield figure(name, name.replace("_", " ").capitalize())
            yield table(sample_table(trained[:3]))
            yield section("Beside the replication's figures 2 to 4")
            yield bullets(THEIR_CONVERGENCE)
            for name in by_attention:
                yield figure(name, f"Loss with {name.removeprefix('loss_')}, every length and seed")
        if timing:
            yield section("Time of a training step by length")
            yield table(beside(timing[0].comparison, timing[0].comparison.views[0]))
            yield bullets([_tale()])
            yield figure("figure_1", f"Seconds of {STEPS} steps: the replication's figure 1 and what was measured here")
            yield chooser(list(dict.fromkeys(row["view"] for row in rows)))
            for name in ("time", "speedup"):
                yield figure(name, charts.METRICS[name].capitalize())
            for crossing in tables.crossovers(timing[0].comparison):
                yield table(crossing)
        yield section("To run it again")
        yield paragraph("Every training is a run of its own in the same folder.")
        yield code(f"subquad reproduce copy --scale {scale}")

    write_whole(path, page(title, list(parts()), drawn))


def _named(folder: Path, trial: Trial, *, one_length: bool) -> Trained:
    run = Run.open(folder / trial.name)
    return Trained(run, run.rows(), trial.variant if one_length else f"{trial.variant}, length {trial.length}")


THEIR_CONVERGENCE = [
    "Figures 2 and 3 there, linear attention, 3000 steps at a batch of 8: it came to 0 at lengths 8 and 32 and stayed at up "
    "to 70 at the others, so that the authors saw no stable convergence.",
    "Figure 4 there, softmax, the same steps: it came to between 10 and 18.",
    "Their losses are on another scale (guessing among 10 symbols costs 2.3 nats), and not published as numbers.",
]


def convergence(trained: Sequence[Trained], trials: Sequence[Trial]) -> Iterator[tuple[str, alt.LayerChart]]:
    """The loss of each attention by itself, one line for each length and seed."""
    for name in dict.fromkeys(trial.variant for trial in trials):
        own = [one for one, trial in zip(trained, trials, strict=True) if trial.variant == name]
        if rows := points(own, "loss"):
            yield f"loss_{name}", curves(rows, "loss", log=True)


def figure_one(comparison: Comparison, view: View) -> alt.LayerChart:
    """Time against length: their points and the curves they drew through them, and our points."""
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
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, columns=3)
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
    """Seconds of 3000 steps by length: the replication's table 1 and what was measured here."""
    names = comparison.measured(view)
    lengths = sorted({*replication.LENGTHS, *(length for name in names for length in comparison.lengths(view, name))})
    published = {BASELINE: replication.SOFTMAX_SECONDS, "linear": replication.LINEAR_SECONDS}
    rows = []
    for length in lengths:
        at = replication.LENGTHS.index(length) if length in replication.LENGTHS else None
        theirs = [NOTHING if at is None else Cell(str(found[at]), found[at]) for found in published.values()]
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
