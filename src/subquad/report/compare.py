"""The page of a comparison, or of several side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from subquad.compare.replication import LENGTHS, PUBLISHED, extrapolations
from subquad.compare.sentences import comparison_answer, failure_remarks, layer_remarks, sentence
from subquad.compare.views import BASELINE, CAUSAL_WORK, Comparison, View, name_view
from subquad.report import charts, tables
from subquad.report.page import Chapter, Fold, Page, Picture, bullets, paragraph, table, write_page
from subquad.report.runs import command_of, machine_of
from subquad.results import Row, Run
from subquad.words import capitalized

METHOD = (
    "Each cell ran in a process of its own; the processes of a comparison took turns, so that drift of the machine hit all "
    "alike. A time is the median of its turns; visits are repetitions in fresh processes. Ranges are 95% bootstrap "
    "intervals for what another run like this one would find, from the scatter between visits. Memory is the peak during "
    "the first run beside the inputs, and for a decoding step the state that is kept. Softmax is PyTorch's own fused "
    "attention, called directly; materialised softmax makes the whole matrix."
)
METHOD_FOLD = Fold("How it was measured", [paragraph(METHOD)])
LEGEND_NOTE = (
    "A click on the legend hides or shows an attention; a diamond or a dotted line marks the length from which it pays."
)
PICTURES = ("speedup", "time", "memory", "throughput")
"""Metrics of the page's charts, in order."""
SIZE_CAPTION = "Size of one transformer layer, by the length that it is built for"
MAIN_WORK = ("training", "forward", "layer", "step", "update")


class Measured(NamedTuple):
    """A run with its name on the page and its comparison."""

    name: str
    run: Run
    comparison: Comparison


def load(folders: Sequence[Path]) -> list[Measured]:
    """Opens runs and gives each a distinct name."""
    runs = [Run.open(folder, "compare") for folder in folders]
    names = [run.folder.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    return [Measured(name, run, Comparison(run.rows())) for name, run in zip(names, runs, strict=True)]


def answers(measured: Measured) -> Iterator[tuple[str, list[str]]]:
    """Yields the name of each telling view, with a sentence for each mechanism."""
    comparison = measured.comparison
    for view in telling_views(comparison):
        names = [name for name in comparison.measured(view) if name != BASELINE]
        yield name_view(view, comparison.views), [sentence(comparison, view, name) for name in names]


def telling_views(comparison: Comparison) -> list[View]:
    """Returns the most informative view of each form and setting, and the views of decoding steps."""
    chosen: dict[tuple[object, ...], View] = {}
    for view in sorted(comparison.views, key=lambda view: MAIN_WORK.index(view.what)):
        chosen.setdefault((view.what if view.what in CAUSAL_WORK else "", view.form, view.setting), view)
    return [view for view in comparison.views if view in chosen.values()]


def write_comparison(runs: Sequence[Measured], path: Path) -> None:
    """Writes the page of one or several comparisons."""
    write_page(comparison_page(runs), path)


def comparison_page(runs: Sequence[Measured]) -> Page:
    """Builds the page: speed-ups first, then time, memory and throughput."""
    rows = all_points(runs)
    captions = {metric: capitalized(charts.METRICS[metric]) for metric in PICTURES if _is_drawable(metric, rows)}
    pictures = [Picture(metric, caption, charts.chart(metric, rows)) for metric, caption in captions.items()]
    if sizes := size_points(runs):
        pictures.append(Picture("size", SIZE_CAPTION, charts.size_chart(sizes)))
    named = len(runs) > 1
    return Page(
        "From which length does each attention pay?",
        " ".join(f"{measured.name}: {headline(measured)}" if named else headline(measured) for measured in runs),
        about="; ".join(_machine(measured, named=named) for measured in runs),
        picture=pictures[0] if pictures else None,
        views=_ordered_views(runs, rows),
        chapters=[Chapter("Charts", pictures[1:], LEGEND_NOTE)] if pictures[1:] else [],
        folds=[*(fold for measured in runs for fold in _folds(measured, named=named)), _tale(), METHOD_FOLD],
        commands=[command_of(measured.run, "subquad compare") for measured in runs],
    )


def _ordered_views(runs: Sequence[Measured], rows: Sequence[Row]) -> list[str]:
    """Returns the names of the views that charts can show, that of the page's answer first."""
    telling = telling_views(runs[0].comparison)[:1]
    all_views = [view for measured in runs for view in measured.comparison.views]
    answered = [name_view(view, all_views) for view in telling]
    return sorted(dict.fromkeys(row["view"] for row in rows), key=lambda name: name not in answered)


def headline(measured: Measured) -> str:
    """Returns the answer in one sentence, from the most informative kind of work."""
    views = telling_views(measured.comparison)
    return comparison_answer(measured.comparison, views[0]) if views else "Nothing was measured yet."


def remarks(measured: Measured) -> list[str]:
    """Returns sentences on what figures mean and what failed."""
    return [*layer_remarks(measured.comparison), *failure_remarks(measured.comparison)]


def left_out(measured: Measured) -> list[str]:
    """Returns sentences on attentions that were named, but could not be measured at all."""
    reasons = measured.run.about.get("left_out", {})
    return [f"{name} was left out: {reason}." for name, reason in reasons.items()] if isinstance(reasons, dict) else []


def write_figures(runs: Sequence[Measured], folder: Path) -> Iterator[Path]:
    """Writes each chart of each view as PNG and SVG."""
    rows = all_points(runs)
    drawn = {}
    for view in dict.fromkeys(row["view"] for row in rows):
        shown = [row for row in rows if row["view"] == view]
        for metric in charts.METRICS:
            if _is_drawable(metric, shown):
                drawn[f"{metric} {view}"] = charts.chart(metric, shown, interactive=False).properties(title=view)
    if sizes := size_points(runs):
        drawn["size"] = charts.size_chart(sizes, interactive=False).properties(title=SIZE_CAPTION)
    return charts.save(drawn, folder)


def all_points(runs: Sequence[Measured]) -> list[Row]:
    """Returns the chart points of every view of every run."""
    views = [view for measured in runs for view in measured.comparison.views]
    return [
        point
        for measured in runs
        for view in measured.comparison.views
        for point in charts.points(measured.comparison, view, measured.name, views)
    ]


def size_points(runs: Sequence[Measured]) -> list[Row]:
    """Returns the size in MB of one transformer layer by mechanism and length, for each run."""
    return [
        {"run": measured.name, "mechanism": row["mechanism"], "length": row["length"], "value": row["value"] / 1e6}
        for measured in runs
        for row in measured.comparison.rows
        if row["metric"] == "parameter_bytes"
    ]


def _is_drawable(metric: str, rows: Sequence[Row]) -> bool:
    return any(row["metric"] == metric for row in rows)


def _folds(measured: Measured, *, named: bool) -> Iterator[Fold]:
    comparison, traits = measured.comparison, measured.run.about.get("mechanisms", {})
    where = f" ({measured.name})" if named else ""
    if sentences := [*remarks(measured), *left_out(measured)]:
        yield Fold(f"What to know{where}", [bullets(sentences)], is_open=True)
    for view, sentences in answers(measured):
        yield Fold(f"In words: {view}{where}", [bullets(sentences)])
    grids = list(tables.linformer_grids(comparison))
    if grids:
        yield Fold(f"Linformer's table{where}", list(map(table, grids)))
    yield Fold(f"Where each attention pays{where}", list(map(table, tables.crossovers(comparison))))
    yield Fold(f"At the longest length measured{where}", [table(tables.longest(comparison))])
    yield Fold(f"Growth with the length{where}", [table(tables.growths(comparison, traits))])
    if (sizes := tables.sizes(comparison.rows)) is not None:
        yield Fold(f"Size of a layer{where}", [table(sizes)])
    mutual = [pairwise for view in comparison.views if (pairwise := tables.mutual(comparison, view)) is not None]
    if mutual:
        yield Fold(f"Against each other{where}", list(map(table, mutual)))
    everything = [table(tables.view_table(comparison, view)) for view in comparison.views]
    yield Fold(f"Everything that was measured{where}", everything)


def _tale() -> Fold:
    """Builds the fold about a published extrapolation, with the errors of its regression."""
    words = (
        f"A replication timed lengths of {LENGTHS[0]} to {LENGTHS[-1]} and extrapolated that linear attention pays from "
        f"{PUBLISHED} on (Do and Bergner 2022, table 1). The same four points, with the errors of the regression:"
    )
    lines = []
    for extrapolation in extrapolations():
        high = "infinity" if extrapolation.high == float("inf") else f"{extrapolation.high:.0f}"
        lines.append(
            f"{extrapolation.model}: {extrapolation.middle:.0f}, 95% interval {extrapolation.low:.0f} to {high}; "
            f"in {extrapolation.never:.1%} of the draws the two never meet."
        )
    return Fold("Why extrapolations are kept apart", [paragraph(words), bullets(lines)])


def _machine(measured: Measured, *, named: bool) -> str:
    words = machine_of(measured.run)
    return f"{measured.name}: {words}" if named else words
