"""The page of `subquad error`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt

from subquad.compare.accuracy import (
    ErrorsByFeatures,
    InputsName,
    Variant,
    output_errors,
    reach,
    usual_features,
    usual_variant,
)
from subquad.report import error_charts as charts
from subquad.report.charts import save
from subquad.report.error_scores import score_chart, score_points
from subquad.report.page import Chapter, Fold, Page, Picture, table, write_page
from subquad.report.runs import command_of, machine_of
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run
from subquad.statistics import Interval
from subquad.words import between

TITLE = "How far FAVOR+ is from exact attention"
ANSWER_ERROR = 0.1
"""Error for which the answer says how many features are needed."""
LENGTH_ERROR = 0.1
"""Error for which the theorems' slots are drawn by length."""
OUTPUT = "relative error of attention's output"
X_FEATURES = "number of features"

ERROR_NOTE = (
    "The error of attention's output is the root of the summed squared differences from exact softmax attention, divided by "
    "the root of the summed squares of the exact output; its mean over draws of the directions is geometric, and over a "
    "model's layers too. Ranges are 95% intervals over draws. ReLU features do not estimate softmax: their error does not "
    "fall with their number. A click on the legend hides or shows a line."
)
FORMULA_NOTE = (
    "Features estimate exp(q . k / sqrt d) for every pair of a query and a key. Dashed: the published mean squared errors "
    "for independent directions (Choromanski et al. 2021, lemma 2). Where inputs are large, the expected error consists of "
    "draws so rare that a measurement of a few draws misses them and lies below."
)
VARIANCE_NOTE = (
    "Estimates of exp(x . y) for x and y of squared length 1/2, over the exponential itself: the range of 95% of 4000 draws "
    "of 16 features along independent directions. Trigonometric features are exact for equal vectors and vary most for "
    "opposite ones, whose weight should be small, where they also become negative; positive features are the reverse. Most "
    "keys have little in common with a query, and their errors add up in the sum that attention divides by."
)
BOUND_NOTE = (
    "The theorems state growth up to a constant, which is 1 here, and bound different errors: Performer's theorem 4 that of "
    "every entry of the attention matrix before it is normalised, for trigonometric features and queries and keys no longer "
    "than the longest measured here; the mean squared errors that of single estimates relative to their size; Linformer's "
    "theorem 2 that of one output for k slots; Johnson and Lindenstrauss' lemma that of distances between as many points as "
    "positions. Measured is the error of the output."
)
SCORE_NOTE = (
    "Queries and keys with independent components of mean 0 and variance 1. Their dot products have the variance d, so that "
    "with larger heads softmax picks a single key, and its weights no longer depend on the scores: a slope of 0 lets no "
    "gradient through. Divided by sqrt d, dot products have the variance 1 whatever the dimension, which is why attention "
    "divides them."
)
LAYER_NOTE = (
    "FAVOR+ in all layers of the model at once, beside the same model with exact attention: the error of each layer's "
    "attention grows, because its inputs have errors as well; the hidden state after a layer also holds what was passed "
    "around the attention, which has less error."
)


def write_error_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of one or several measurements."""
    write_page(error_page(runs), path)


def write_error_figures(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Writes each chart of each view as PNG and SVG."""
    drawn: dict[str, alt.TopLevelMixin] = {}
    for number, run in enumerate(runs, start=1):
        for name, chart in figures(run.rows()):
            drawn[name if len(runs) == 1 else f"{name} {number}"] = chart
    return save(drawn, folder)


def error_page(runs: Sequence[Run]) -> Page:
    """Builds the page: the error by number of features first, then projections, sizes, formulas, bounds and layers."""
    chapters = [chapter for number, run in enumerate(runs) for chapter in _chapters(run, number, named=len(runs) > 1)]
    first = next((chapter.pictures[0] for chapter in chapters if chapter.pictures), None)
    rest = [replace(chapter, pictures=[part for part in chapter.pictures if part is not first]) for chapter in chapters]
    views = dict.fromkeys(charts.view_name(inputs) for run in runs for inputs in output_errors(run.rows()))
    return Page(
        TITLE,
        " ".join(error_answer(run) for run in runs),
        about="; ".join(dict.fromkeys(machine_of(run) for run in runs)),
        picture=first,
        views=list(views),
        chapters=rest,
        folds=[
            Fold(f"{_name(run)}: all figures", [table(error_table(run.rows())), table(bound_table(run.rows()))])
            for run in runs
        ],
        commands=[command_of(run, "subquad error") for run in runs],
    )


def error_answer(run: Run) -> str:
    """Returns the error with the usual number of features, and how many features an error of 0.1 needs."""
    errors = output_errors(run.rows())
    if not errors:
        return f"{_name(run)}: no error of an output was measured yet."
    inputs, by_variant = next(iter(errors.items()))
    variant = usual_variant(by_variant)
    features = usual_features(by_variant[variant])
    error = between(by_variant[variant][features], ".3g")
    named = f"{_name(run)}, " if inputs.name == "model" else ""
    drawn = f"{variant.kernel}, {variant.projection}"
    start = f"{named}{inputs.words}: with {features} features FAVOR+ ({drawn}) has a relative error of {error}."
    return f"{start[0].upper()}{start[1:]} {reach(ANSWER_ERROR, by_variant).sentence(ANSWER_ERROR, inputs)}"


def summary_table(rows: Sequence[Row]) -> Table:
    """Returns the table of output errors by inputs, kernel and number of features, for one way to draw directions."""
    errors = output_errors(rows)
    projections = {inputs: usual_variant(variants).projection for inputs, variants in errors.items()}
    shown = {
        inputs: {variant: variants[variant] for variant in variants if variant.projection == projections[inputs]}
        for inputs, variants in errors.items()
    }
    return _table(shown, brief=True)


def error_table(rows: Sequence[Row]) -> Table:
    """Returns the table of output errors by inputs, kernel, directions and number of features."""
    return _table(output_errors(rows))


def _table(errors: Mapping[InputsName, Mapping[Variant, ErrorsByFeatures]], *, brief: bool = False) -> Table:
    counts = sorted({count for variants in errors.values() for by_features in variants.values() for count in by_features})
    lines = []
    for inputs, variants in errors.items():
        for variant, by_features in sorted(variants.items()):
            names = [charts.view_name(inputs), variant.kernel, *([] if brief else [variant.projection])]
            errors_of = [by_features.get(count) for count in counts]
            lines.append([*map(Cell, names), *(_error(error, brief=brief) for error in errors_of)])
    caption = "Relative error of attention's output by number of features" + ("" if brief else " (95% interval over draws)")
    return Table(caption, ["inputs", "kernel", *([] if brief else ["directions"]), *map(str, counts)], lines)


def _error(error: Interval | None, *, brief: bool) -> Cell:
    if error is None:
        return NOTHING
    return Cell(f"{error.value:.2g}" if brief else between(error, ".2g"), error.value)


def bound_table(rows: Sequence[Row]) -> Table:
    """Returns the table of features or slots that reach an error, measured and by the published bounds."""
    points = list(charts.needed_points(rows))
    labels = dict.fromkeys(point["label"] for point in points)
    numbers = {(point["view"], point["label"], point["x"]): point["value"] for point in points}
    lines = [
        [Cell(view), Cell(label), *(_number(numbers.get((view, label, error))) for error in charts.TARGETS)]
        for view in dict.fromkeys(point["view"] for point in points)
        for label in labels
    ]
    caption = f"Features or slots for an error ({charts.LARGEST:.0e} at most; - is more, or not reached)"
    return Table(caption, ["inputs", "by", *(f"error {error:g}" for error in charts.TARGETS)], lines)


def _number(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value:.3g}" if value >= 1e5 else f"{value:.0f}", value)


def _chapters(run: Run, number: int, *, named: bool) -> Iterator[Chapter]:
    """Yields the chapters of one run, those that have something to show."""
    drawn = _charts(run.rows(), interactive=True)
    parts = {
        "By number of features": (("kernels", "projections", "sizes"), ERROR_NOTE),
        "Single estimates beside the published formulas": (("formulas",), FORMULA_NOTE),
        "How much estimates vary": (("estimates", "deviations"), VARIANCE_NOTE),
        "Layer by layer": (("layers",), LAYER_NOTE),
        "Why dot products are divided by sqrt d": (("scores",), SCORE_NOTE),
        "Published bounds": (("needed", "lengths"), BOUND_NOTE),
    }
    for title, (names, note) in parts.items():
        pictures = [Picture(f"{name}-{number}", CAPTIONS[name], drawn[name]) for name in names if name in drawn]
        if pictures:
            yield Chapter(f"{_name(run)}: {title[0].lower()}{title[1:]}" if named else title, pictures, note)


CAPTIONS = {
    "kernels": "Error of attention's output by number of features and kernel",
    "projections": "Error of attention's output by number of features and how directions are drawn",
    "sizes": "Error of attention's output by size of random queries and keys",
    "formulas": "Root mean squared error of single estimates of exp(q . k / sqrt d), over their root mean square",
    "estimates": "Estimates of exp(x . y) over exp(x . y), by angle: mean, and the range of 95% of draws",
    "deviations": "Root mean squared error of these estimates: measured, and published (dashed)",
    "scores": "Random queries and keys, by dimension of a head: variance of scores, largest weight, slope of the weights",
    "layers": "Relative error by layer, FAVOR+ beside exact attention",
    "needed": "Features, or slots, that reach an error: measured, and by published bounds (dashed)",
    "lengths": f"Slots that reach an error of {LENGTH_ERROR:g}, by length, as published",
}


def _charts(rows: Sequence[Row], *, interactive: bool, view: str | None = None) -> dict[str, alt.TopLevelMixin]:
    """Returns the charts that the rows have points for; with `view`, only that view's points."""
    drawn: dict[str, alt.TopLevelMixin] = {}
    by_view = {
        "kernels": (charts.kernel_points(rows), X_FEATURES, OUTPUT, "~g"),
        "projections": (charts.projection_points(rows), X_FEATURES, OUTPUT, "~g"),
        "formulas": (charts.estimate_points(rows), X_FEATURES, "relative root mean squared error", "~g"),
        "needed": (charts.needed_points(rows), "error", "features or slots", "~s"),
    }
    for name, (found, x, y, numbers) in by_view.items():
        points = [point for point in found if view is None or point["view"] == view]
        views = list(dict.fromkeys(point["view"] for point in points))
        if points:
            drawn[name] = charts.curves(points, x, y, interactive=interactive, views=views, numbers=numbers)
    sizes = list(charts.size_points(rows))
    if len({point["x"] for point in sizes}) > 1:
        drawn["sizes"] = charts.curves(sizes, "standard deviation of queries and keys", OUTPUT, interactive=interactive)
    if any(row["metric"] == "estimate" for row in rows):
        drawn["estimates"] = charts.estimate_bands(rows, interactive=interactive)
        drawn["deviations"] = charts.deviation_chart(list(charts.deviation_points(rows)), interactive=interactive)
    if layers := list(charts.layer_points(rows)):
        drawn["layers"] = charts.layer_chart(layers, interactive=interactive)
    if scores := list(score_points(rows)):
        drawn["scores"] = score_chart(scores, interactive=interactive)
    if output_errors(rows):
        lengths = list(charts.length_points(rows, LENGTH_ERROR))
        drawn["lengths"] = charts.curves(lengths, "length, tokens", "slots", interactive=interactive)
    return drawn


def figures(rows: Sequence[Row]) -> Iterator[tuple[str, alt.TopLevelMixin]]:
    """Yields each chart by its name; those with several views once for each view."""
    whole = _charts(rows, interactive=False)
    by_view = {charts.view_name(inputs): inputs for inputs in output_errors(rows)}
    for name, chart in whole.items():
        if name not in ("kernels", "projections", "formulas", "needed"):
            yield name, chart
    for view in by_view:
        for name, chart in _charts(rows, interactive=False, view=view).items():
            if name in ("kernels", "projections", "formulas", "needed"):
                titled: Any = chart
                yield f"{name} {view}", titled.properties(title=view)


def _name(run: Run) -> str:
    """Returns the name of the model of a run, or what was measured instead."""
    options = run.about.get("options", {})
    model, origin = options.get("model"), options.get("origin")
    if not model:
        return "random queries and keys"
    named = ", ".join(f"{name} {value}" for name, value in origin.items()) if isinstance(origin, Mapping) else "unknown"
    return f"{Path(str(model)).name} ({named})"
