"""Charts of `subquad error`: measured errors, and the published bounds beside them."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from subquad.compare.accuracy import (
    ErrorsByFeatures,
    InputsName,
    averaged,
    end_of,
    output_errors,
    reach,
    usual_features,
    usual_variant,
)
from subquad.measure.bounds import johnson_lindenstrauss_dimensions, linformer_slots, performer_features
from subquad.report.charts import HEIGHT, LEGEND_COLUMNS, PALETTE
from subquad.results import Row

TARGETS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03)
"""Errors for which the necessary number of features is shown."""
LENGTHS = tuple(2**power for power in range(7, 17))
LARGEST = 1e12
"""Largest number of features or slots that a chart shows."""
MEASURED, PUBLISHED = "measured", "published"
LAYER_PARTS = {
    "alone": "attention, on the inputs of the exact model",
    "attention": "attention, all layers swapped",
    "hidden": "hidden state, all layers swapped",
}
SMALL = (250, 220)
"""Width and height of small charts that stand side by side."""


def view_name(inputs: InputsName) -> str:
    """Returns the name of inputs in the menu of a page."""
    return "the model" if inputs.name == "model" else f"random, size {inputs.size:g}"


def kernel_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields output errors by number of features and kernel, for one projection."""
    for inputs, errors in output_errors(rows).items():
        projection = usual_variant(errors).projection
        for variant, by_features in errors.items():
            if variant.projection == projection:
                yield from _points(view_name(inputs), variant.kernel, by_features)


def projection_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields output errors by number of features and projection, for one kernel."""
    for inputs, errors in output_errors(rows).items():
        kernel = usual_variant(errors).kernel
        for variant, by_features in errors.items():
            if variant.kernel == kernel:
                yield from _points(view_name(inputs), variant.projection, by_features)


def estimate_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields root mean squared errors of single estimates for independent directions, beside the published formula."""
    published = [
        row | {"value": row["formula"], "low": row["formula"], "high": row["formula"], "metric": PUBLISHED}
        for row in rows
        if row["metric"] == "kernel error" and row.get("formula") is not None
    ]
    for kind, metric, part in ((MEASURED, "kernel error", rows), (PUBLISHED, PUBLISHED, published)):
        for inputs, errors in averaged(part, metric).items():
            for variant, by_features in errors.items():
                if variant.projection == "independent":
                    roots = {count: type(error)(*map(math.sqrt, error)) for count, error in by_features.items()}
                    yield from _points(view_name(inputs), variant.kernel, roots, kind)


def size_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields output errors of random inputs by size and kernel, for one projection and number of features."""
    for inputs, errors in output_errors(rows).items():
        projection = usual_variant(errors).projection
        for variant, by_features in errors.items():
            if inputs.name == "random" and variant.projection == projection:
                value, low, high = by_features[usual_features(by_features)]
                yield {"label": variant.kernel, "x": inputs.size, "value": value, "low": low, "high": high, "kind": MEASURED}


def needed_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields numbers of features or slots by error: measured, by the published formula, and by the theorems."""
    for inputs, errors in output_errors(rows).items():
        view, (length, head_dim, radius) = view_name(inputs), _shape(rows, inputs)
        for error in TARGETS:
            found = reach(error, errors)
            numbers = {
                "Performer, theorem 4": performer_features(error, radius=radius, head_dim=head_dim),
                "Linformer, theorem 2": linformer_slots(error, length=length, head_dim=head_dim),
                "Johnson and Lindenstrauss": johnson_lindenstrauss_dimensions(error, points=length),
                **_by_formula(rows, inputs, error),
            }
            if found.features is not None:
                yield _point(view, "measured, the best kernel", error, found.features, MEASURED)
            for name, number in numbers.items():
                if number <= LARGEST:
                    yield _point(view, name, error, number, PUBLISHED)


def length_points(rows: Sequence[Row], error: float) -> Iterator[Row]:
    """Yields numbers of slots or dimensions by length, as the theorems have them, for one error."""
    head_dim = next(int(row["head_dim"]) for row in rows if "head_dim" in row)
    for length in LENGTHS:
        for name, number in (
            ("Linformer, theorem 2", linformer_slots(error, length=length, head_dim=head_dim)),
            ("Johnson and Lindenstrauss", johnson_lindenstrauss_dimensions(error, points=length)),
        ):
            yield {"label": name, "x": length, "value": number, "low": number, "high": number, "kind": PUBLISHED}


def layer_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields relative errors by layer and number of features: of attention alone, and with all layers swapped."""
    swapped = [
        row for row in rows if row["metric"] == "layer error" and row["value"] is not None and row["what"] in LAYER_PARTS
    ]
    variants = {(row["kernel"], row["projection"]) for row in swapped}
    for row in swapped:
        yield _layer_point(row, row["what"])
    for row in rows:
        is_same = row["metric"] == "output error" and row["inputs"] == "model" and row["value"] is not None
        if is_same and (row["kernel"], row["projection"]) in variants:
            yield _layer_point(row, "alone")


def curves(
    points: Sequence[Row], x: str, y: str, *, interactive: bool, views: Sequence[str] = (), numbers: str = "~g"
) -> alt.LayerChart:
    """Returns the chart of points on logarithmic axes: a line for each label, dashed where it is published, with ranges.

    `numbers` is the format of the vertical axis.
    """
    labels, places = (list(dict.fromkeys(point[name] for point in points)) for name in ("label", "x"))
    horizontal = alt.X("x:Q", title=x).axis(values=sorted(places), format="~g", labelOverlap=True)
    horizontal = horizontal.scale(type="log", base=2, nice=False, domain=[min(places), max(places)])
    value, low = (alt.Y(f"{end}:Q", title=y).axis(format=numbers).scale(type="log", nice=False) for end in ("value", "low"))
    hidden = alt.selection_point(name="hidden", fields=["label"], bind="legend", toggle="true", empty=False)
    chart = alt.Chart().encode(x=horizontal, color=colour(labels))
    if views:
        chart = chart.transform_filter("datum.view === view")
    if interactive:
        chart = chart.transform_filter(~hidden)
    dash = alt.StrokeDash("kind:N", legend=None).scale(domain=[MEASURED, PUBLISHED], range=[[1, 0], [5, 4]])
    hints = ["label:N", "kind:N", alt.Tooltip("x:Q", title=x, format="~g"), *ends_hints()]
    drawn: Any = alt.layer(
        chart.transform_filter(f"datum.kind === '{MEASURED}'").mark_area(opacity=0.18).encode(y=low, y2="high:Q"),
        chart.mark_line(strokeWidth=2, clip=True).encode(y=value, strokeDash=dash),
        chart.mark_point(filled=True, size=40, opacity=1).encode(y=value, tooltip=hints),
        data=alt.Data(values=list(points)),
    ).properties(width="container" if interactive else 480, height=HEIGHT)
    if views:
        drawn = drawn.add_params(alt.param(name="view", value=views[0]))
    if interactive:
        drawn = drawn.add_params(hidden)
    return finished(drawn, interactive)


def estimate_bands(rows: Sequence[Row], *, interactive: bool) -> alt.TopLevelMixin:
    """Returns the estimates of exp(x . y) over the exponential, by angle: the range of 95% of draws, for each kernel."""
    estimates = [row for row in rows if row["metric"] == "estimate"]
    kernels = list(dict.fromkeys(row["kernel"] for row in estimates))
    ends = [end_of(row, end) for row in estimates for end in ("low", "high")]
    scale = alt.Scale(domain=[min(0.0, *ends), max(ends)], nice=True)
    return finished(alt.concat(*(_band(estimates, kernel, scale) for kernel in kernels), columns=3), interactive)


def deviation_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields root mean squared errors of estimates by angle, measured and published."""
    for row in rows:
        if row["metric"] == "estimate":
            about = {"label": row["kernel"], "angle": row["angle"]}
            ends = {"value": row["deviation"], "low": row["deviation_low"], "high": row["deviation_high"]}
            yield {**about, **ends, "kind": MEASURED}
            yield {**about, **dict.fromkeys(("value", "low", "high"), row["formula"]), "kind": PUBLISHED}


def deviation_chart(points: Sequence[Row], *, interactive: bool) -> alt.TopLevelMixin:
    """Returns the root mean squared error of estimates by angle: measured points on the published curves."""
    labels = list(dict.fromkeys(point["label"] for point in points))
    y = alt.Y("value:Q", title="root mean squared error over exp(x . y)")
    base = alt.Chart(alt.Data(values=list(points))).encode(x=_angle(), color=colour(labels))
    measured, published = (base.transform_filter(f"datum.kind === '{kind}'") for kind in (MEASURED, PUBLISHED))
    hints = ["label:N", "angle:Q", *ends_hints()]
    drawn: Any = alt.layer(
        published.mark_line(strokeWidth=2, strokeDash=[5, 4]).encode(y=y),
        measured.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2="high:Q"),
        measured.mark_point(filled=True, size=45, opacity=1).encode(y=y, tooltip=hints),
    )
    return finished(drawn.properties(width="container" if interactive else 480, height=HEIGHT), interactive)


def layer_chart(points: Sequence[Row], *, interactive: bool) -> alt.TopLevelMixin:
    """Returns relative errors by layer, a chart for each of at most three numbers of features with one vertical scale."""
    counts = sorted({point["features"] for point in points})
    shown = list(dict.fromkeys([counts[0], counts[len(counts) // 2], counts[-1]]))
    values = [end for point in points for end in (point["value"], point["high"]) if point["features"] in shown]
    scale = alt.Scale(type="log", nice=False, domain=[min(values) / 1.2, max(values) * 1.2])
    return finished(alt.concat(*(_layers(points, features, scale) for features in shown), columns=3), interactive)


def finished(drawn: Any, interactive: bool) -> Any:
    """Returns a chart with its background: transparent on a page, white in a figure."""
    return drawn.configure(background="transparent" if interactive else "white").configure_view(stroke=None)


def _layers(points: Sequence[Row], features: int, scale: alt.Scale) -> alt.LayerChart:
    values = [point for point in points if point["features"] == features]
    base = alt.Chart(alt.Data(values=values), title=f"{features} features").encode(
        x=alt.X("layer:O", title="layer").axis(labelAngle=0), color=colour(list(LAYER_PARTS.values()), columns=1)
    )
    y = alt.Y("value:Q", title="relative error", scale=scale).axis(format="~g")
    drawn: Any = alt.layer(
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y, tooltip=["label:N", "layer:O", *ends_hints()]),
    )
    return drawn.properties(width=SMALL[0], height=SMALL[1])


def _band(estimates: Sequence[Row], kernel: str, scale: alt.Scale) -> alt.LayerChart:
    values = [
        {"angle": row["angle"], "negative": row["negative"], **{end: end_of(row, end) for end in ("value", "low", "high")}}
        for row in estimates
        if row["kernel"] == kernel
    ]
    base = alt.Chart(alt.Data(values=values), title=kernel).encode(x=_angle())
    hints = ["angle:Q", *ends_hints(), alt.Tooltip("negative:Q", title="share below 0", format=".1%")]
    low = alt.Y("low:Q", title="estimate over exp(x . y)", scale=scale)
    rules = alt.Chart(alt.Data(values=[{"level": 0}, {"level": 1}])).mark_rule(strokeDash=[2, 3], opacity=0.6)
    drawn: Any = alt.layer(
        base.mark_area(opacity=0.3, color=PALETTE[2]).encode(y=low, y2="high:Q"),
        base.mark_line(color=PALETTE[2]).encode(y=alt.Y("value:Q", scale=scale)),
        base.mark_point(size=60, opacity=0).encode(y=alt.Y("value:Q", scale=scale), tooltip=hints),
        rules.encode(y=alt.Y("level:Q", scale=scale)),
    )
    return drawn.properties(width=SMALL[0], height=SMALL[1])


def _angle() -> alt.X:
    axis = alt.X("angle:Q", title="angle between x and y, degrees").axis(values=list(range(0, 181, 45)))
    return axis.scale(domain=[0, 180], nice=False)


def colour(labels: Sequence[str], columns: Any = LEGEND_COLUMNS) -> alt.Color:
    """Returns the colours of labels, with a legend on top."""
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))]
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, symbolType="circle", labelLimit=400, columns=columns)
    return alt.Color("label:N").scale(domain=list(labels), range=colours).legend(legend)


def ends_hints() -> list[alt.Tooltip]:
    """Returns the hints of a point: its value and the ends of its range."""
    return [alt.Tooltip(f"{end}:Q", format=".3~g") for end in ("value", "low", "high")]


def _points(view: str, label: str, by_features: ErrorsByFeatures, kind: str = MEASURED) -> Iterator[Row]:
    for features, (value, low, high) in by_features.items():
        ends = {"value": value, "low": max(low, value / 10), "high": high}  # a logarithmic axis has no place for 0
        yield {"view": view, "label": label, "x": features, **ends, "kind": kind}


def _point(view: str, label: str, error: float, number: float, kind: str) -> Row:
    return {"view": view, "label": label, "x": error, "value": number, "low": number, "high": number, "kind": kind}


def _layer_point(row: Row, part: str) -> Row:
    ends = {end: end_of(row, end) for end in ("value", "low", "high")}
    return {"label": LAYER_PARTS[part], "layer": row["layer"], "features": row["features"], **ends}


def _by_formula(rows: Sequence[Row], inputs: InputsName, error: float) -> dict[str, float]:
    """Numbers of features for a root mean squared error of single estimates, by the formulas for independent directions."""
    factors: dict[str, list[float]] = {}
    for row in rows:
        if row["metric"] == "kernel error" and row.get("formula") is not None and _is_of(row, inputs):
            factors.setdefault(row["kernel"], []).append(row["formula"] * row["features"])
    return {f"mean squared error, {kernel}": sum(found) / len(found) / error**2 for kernel, found in factors.items()}


def _shape(rows: Sequence[Row], inputs: InputsName) -> tuple[int, int, float]:
    """Returns the length and head dimension of inputs, and the largest norm of a query or key."""
    own = [row for row in rows if row["metric"] == "output error" and _is_of(row, inputs)]
    radius = max((row["value"] for row in rows if row["metric"] == "largest norm" and _is_of(row, inputs)), default=1.0)
    return max(2, int(own[0]["length"])), int(own[0]["head_dim"]), max(float(radius), 1e-6)


def _is_of(row: Row, inputs: InputsName) -> bool:
    return (row.get("inputs"), row.get("size")) == inputs
