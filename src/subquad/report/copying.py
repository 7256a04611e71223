"""The page of the copy task's replication: verdicts, convergence, and the replication's own table beside ours."""

from collections.abc import Iterator
from pathlib import Path

from subquad.experiments import copying, replication
from subquad.experiments.compare.views import BASELINE, Comparison, View
from subquad.report import charts, tables
from subquad.report.compare import all_points, load
from subquad.report.page import bullets, chooser, code, figure, heading, page, paragraph, section, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import final_table, label_runs, sample_table, training_charts
from subquad.results import Run, write_whole

STEPS = 3000
"""What the replication timed."""


def verdict_table(folder: Path, scale: str) -> Table:
    """Each claim, whether it held, and by which figures."""
    words = {True: "held", False: "did not hold", None: "not decided"}
    rows = [[Cell(found.claim), Cell(words[found.held]), Cell(found.figures)] for found in copying.judge(folder, scale)]
    return Table("Verdicts", ["claim", "verdict", "figures"], rows)


def write_replication_page(folder: Path, scale: str, path: Path) -> None:
    """Writes the page."""
    trials = [trial for trial in copying.SCALES[scale].trials() if copying.finished(folder / trial.name)]
    trained = label_runs([Run.open(folder / trial.name) for trial in trials])
    drawn = dict(training_charts(trained)) if trained else {}
    timing = load([folder / "timing"]) if (folder / "timing" / "run.json").exists() else []
    rows = all_points(timing)
    if rows:
        drawn |= {metric: charts.chart(metric, rows) for metric in ("time", "speedup")}
    title = "Transformers are RNNs: the copy task, replicated"

    def parts() -> Iterator[str]:
        yield heading(title, f"scale: {scale}")
        yield table(verdict_table(folder, scale))
        if trained:
            yield section("Convergence")
            yield table(final_table(trained))
            for name in training_charts(trained):
                yield figure(name, name.replace("_", " ").capitalize())
            yield table(sample_table(trained[:3]))
        if timing:
            yield section("Time of a training step by length")
            yield table(beside(timing[0].comparison, timing[0].comparison.views[0]))
            yield bullets([_tale()])
            yield chooser(list(dict.fromkeys(row["view"] for row in rows)))
            for name in ("time", "speedup"):
                yield figure(name, charts.METRICS[name].capitalize())
            for crossing in tables.crossovers(timing[0].comparison):
                yield table(crossing)
        yield section("To run it again")
        yield paragraph("Every training is a run of its own in the same folder.")
        yield code(f"subquad reproduce copy --scale {scale}")

    write_whole(path, page(title, list(parts()), drawn))


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
    return Table(f"Seconds of {STEPS} steps (published: Do and Bergner 2022, table 1, on their GPU)", columns, rows)


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
