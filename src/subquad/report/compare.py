"""The page of a comparison, or of several side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from subquad.compare.replication import LENGTHS, PUBLISHED, extrapolations
from subquad.compare.sentences import sentence
from subquad.compare.views import BASELINE, CAUSAL_WORK, Comparison, View, name_view
from subquad.files import write_whole
from subquad.report import charts, tables
from subquad.report.page import bullets, chooser, code, figure, folded, heading, page, paragraph, section, table
from subquad.results import Row, Run
from subquad.words import amount, capitalized

METHOD = (
    "Each cell ran in a process of its own; the processes of a comparison took turns, so that drift of the machine hit all "
    "alike. A time is the median of its turns; visits are repetitions in fresh processes. Ranges are 95% bootstrap "
    "intervals for what another run like this one would find, from the scatter between visits. Memory is the peak during "
    "the first run beside the inputs, and for a decoding step the state that is kept. Softmax is PyTorch's own fused "
    "attention, called directly; materialised softmax makes the whole matrix."
)
MAIN_WORK = ("training", "forward", "layer", "step", "update")


class Measured(NamedTuple):
    """A run and what its rows say."""

    name: str
    run: Run
    comparison: Comparison


def load(folders: Sequence[Path]) -> list[Measured]:
    """Runs, each under a name of its own."""
    runs = [Run.open(folder, "compare") for folder in folders]
    names = [run.folder.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    return [Measured(name, run, Comparison(run.rows())) for name, run in zip(names, runs, strict=True)]


def answers(measured: Measured) -> Iterator[tuple[str, list[str]]]:
    """A sentence for each mechanism, under each form's most telling kind of work that was measured; steps by themselves."""
    comparison = measured.comparison
    for view in telling_views(comparison):
        names = [name for name in comparison.measured(view) if name != BASELINE]
        yield name_view(view, comparison.views), [sentence(comparison, view, name) for name in names]


def telling_views(comparison: Comparison) -> list[View]:
    """One for each form and setting, and the decoding steps."""
    chosen: dict[tuple[object, ...], View] = {}
    for view in sorted(comparison.views, key=lambda view: MAIN_WORK.index(view.what)):
        chosen.setdefault((view.what if view.what in CAUSAL_WORK else "", view.form, view.setting), view)
    return [view for view in comparison.views if view in chosen.values()]


def write_page(runs: Sequence[Measured], path: Path) -> None:
    """Writes the page."""
    rows = all_points(runs)
    drawn = {metric: charts.chart(metric, rows) for metric in charts.METRICS if _drawable(metric, rows)}
    title = "From which length does each attention pay?"
    write_whole(path, page(title, [*_parts(title, runs, rows, list(drawn))], drawn))


def write_figures(runs: Sequence[Measured], folder: Path) -> Iterator[Path]:
    """Each chart of each view as PNG and SVG."""
    rows = all_points(runs)
    drawn = {}
    for view in dict.fromkeys(row["view"] for row in rows):
        shown = [row for row in rows if row["view"] == view]
        for metric in charts.METRICS:
            if _drawable(metric, shown):
                drawn[f"{metric} {view}"] = charts.chart(metric, shown, interactive=False).properties(title=view)
    return charts.save(drawn, folder)


def all_points(runs: Sequence[Measured]) -> list[Row]:
    """The figures of every view of every run."""
    views = [view for measured in runs for view in measured.comparison.views]
    return [
        point
        for measured in runs
        for view in measured.comparison.views
        for point in charts.points(measured.comparison, view, measured.name, views)
    ]


def _drawable(metric: str, rows: Sequence[Row]) -> bool:
    return any(row["metric"] == metric for row in rows)


def _parts(title: str, runs: Sequence[Measured], rows: Sequence[Row], drawn: Sequence[str]) -> Iterator[str]:
    yield heading(title, "; ".join(_machine(measured, named=len(runs) > 1) for measured in runs))
    for measured in runs:
        for view, sentences in answers(measured):
            yield section(capitalized(view) + (f" ({measured.name})" if len(runs) > 1 else ""))
            yield bullets(sentences)
    if drawn:
        yield section("Charts")
        yield chooser(list(dict.fromkeys(row["view"] for row in rows)))
        yield paragraph(
            "A click on the legend hides or shows an attention; a diamond or a dotted line marks where it starts to pay."
        )
        for metric in drawn:
            yield figure(metric, capitalized(charts.METRICS[metric]))
    for measured in runs:
        yield from _tables(measured, named=len(runs) > 1)
    yield from _tale()
    yield section("How it was measured")
    yield paragraph(METHOD)
    for measured in runs:
        yield paragraph(_versions(measured))
        yield code(measured.run.about.get("command", "subquad compare"))


def _tables(measured: Measured, *, named: bool) -> Iterator[str]:
    comparison, traits = measured.comparison, measured.run.about.get("mechanisms", {})
    yield section("Tables" + (f": {measured.name}" if named else ""))
    for grid in tables.linformer_grids(comparison):
        yield table(grid)
    for crossing in tables.crossovers(comparison):
        yield table(crossing)
    yield table(tables.longest(comparison))
    yield table(tables.growths(comparison, traits))
    if (sizes := tables.sizes(comparison.rows)) is not None:
        yield table(sizes)
    others = [found for view in comparison.views if (found := tables.mutual(comparison, view)) is not None]
    if others:
        yield folded("Against each other", [table(found) for found in others])
    yield folded("Everything that was measured", [table(tables.view_table(comparison, view)) for view in comparison.views])


def _tale() -> Iterator[str]:
    """Why an extrapolation is called one."""
    yield section("Why extrapolations are kept apart")
    yield paragraph(
        f"A replication timed lengths of {LENGTHS[0]} to {LENGTHS[-1]} and extrapolated that linear attention pays from "
        f"{PUBLISHED} on (Do and Bergner 2022, table 1). The same four points, with the errors of the regression:"
    )
    lines = []
    for found in extrapolations():
        high = "infinity" if found.high == float("inf") else f"{found.high:.0f}"
        lines.append(
            f"{found.model}: {found.middle:.0f}, 95% interval {found.low:.0f} to {high}; "
            f"in {found.never:.1%} of the draws the two never meet."
        )
    yield bullets(lines)


def _machine(measured: Measured, *, named: bool) -> str:
    machine = measured.run.about.get("machine", {})
    words = f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', '?')} cores, "
    words += f"{amount(machine.get('memory_bytes', 0))}, {machine.get('system', '')}"
    return f"{measured.name}: {words}" if named else words


def _versions(measured: Measured) -> str:
    about = measured.run.about
    found = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    return f"{measured.name}, {about.get('started', 'time unknown')}: {found}. To run it again:"
