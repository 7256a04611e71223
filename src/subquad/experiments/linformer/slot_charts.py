"""Charts of the number of slots for a length, and of what the projections E and F learn."""

import math
from collections.abc import Iterator, Mapping, Sequence

import altair as alt
import numpy as np

from subquad.experiments.linformer.errors import OUTPUT_ERROR, WAYS
from subquad.experiments.linformer.grid import USUAL, Grid, Variant
from subquad.experiments.linformer.learned import MATRICES, closeness_of
from subquad.experiments.linformer.needed import ERRORS, FEWEST_LENGTHS, TIMES, Needed, aims, mean_errors, over_seeds
from subquad.experiments.linformer.projections import CHANGE, CLOSENESS, FRESH, TRAINED, WEIGHTS
from subquad.experiments.linformer.runs import Pretrained, nats
from subquad.measure.lowrank import theorem_slots
from subquad.report.charts import PALETTE, legend_columns
from subquad.report.page import Picture
from subquad.report.ranges import Axis, ranged_lines
from subquad.results import Row
from subquad.statistics import Interval, geometric_ratio, mean_over_seeds

SLOTS_AXIS, LENGTH_AXIS = Axis("slots k", log=True), Axis("length n, tokens", log=True)
THEOREM = f"theorem 1: error {ERRORS[0]:g}"
CELLS = (3, 5)
"""Width and height in pixels of a cell in a heat map of weights."""


def slot_pictures(rows: Sequence[Row], runs: Sequence[Pretrained], grid: Grid) -> Iterator[Picture]:
    """Yields the charts of slots by length, of errors and of perplexities by slots."""
    series = aims(rows, runs, grid)
    if any(over_seeds(needed) for needed in series.values()):
        caption = "Slots that it takes, by length: measured (95% intervals), the lines of log n and of n dashed"
        yield Picture("needed_slots", caption, needed_chart(series))
    for length in sorted({row["length"] for row in rows if row["metric"] == OUTPUT_ERROR})[-1:]:
        caption = f"Error of softmax's output with k slots instead of {length} positions, mean over layers and heads"
        yield Picture("errors_by_slots", caption, error_chart(rows, length))
    if points := list(_perplexity_points(runs, grid)):
        caption = f"Perplexity of Linformer by slots, relative to softmax at the same length; the line is at {TIMES:g} times"
        chart = ranged_lines(points, SLOTS_AXIS, Axis("times softmax's perplexity"), level=TIMES)
        yield Picture("perplexity_by_slots", caption, chart)


def needed_chart(series: Mapping[str, Needed]) -> alt.LayerChart:
    """Returns the chart of slots against the length, with the lines in log n and in n, and the slots of theorem 1."""
    points = [
        _point(label, length, interval)
        for label, needed in series.items()
        for length, interval in over_seeds(needed).items()
    ]
    fits = [fit for label, needed in series.items() for fit in _fits(label, over_seeds(needed))]
    lengths = sorted({point["at"] for point in points})
    promised = [(length, theorem_slots(length, ERRORS[0])) for length in lengths]
    points += [_point(THEOREM, length, Interval(slots, slots, slots)) for length, slots in promised]
    return ranged_lines(points, LENGTH_AXIS, Axis("slots k", log=True), fits=fits)


def _fits(label: str, slots: Mapping[int, Interval]) -> Iterator[Row]:
    """Yields points of the lines k = a + b log n and k = a + b n through the mean slots; none for fewer than three."""
    if len(slots) < FEWEST_LENGTHS:
        return
    n, k = np.array(list(slots), dtype=float), np.array([interval.value for interval in slots.values()])
    places = np.geomspace(n[0], n[-1], 25)
    for law, scale in (("k = a + b log n", np.log), ("k = a + b n", np.asarray)):
        fitted = np.polyval(np.polyfit(scale(n), k, 1), scale(places))
        for at, value in zip(places.tolist(), fitted.tolist(), strict=True):
            yield {"label": label, "law": law, "at": at, "value": value}


def error_chart(rows: Sequence[Row], length: int) -> alt.LayerChart:
    """Returns the chart of errors by slots at one length, a line for each way to choose the slots."""
    counts = sorted({row["k"] for row in rows if row["metric"] == OUTPUT_ERROR and row["length"] == length})
    points = [
        _point(way, k, mean_over_seeds(list(errors.values())))
        for way in WAYS
        for k in counts
        if (errors := mean_errors(rows, way, length, k)) and max(errors.values()) <= 2
    ]
    return ranged_lines(points, SLOTS_AXIS, Axis("relative error of the output"), level=ERRORS[0])


def _perplexity_points(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Row]:
    for variant in sorted(variant for variant in grid.variants if variant.k and variant.sharing == USUAL):
        ratio = geometric_ratio(nats(runs, variant), nats(runs, variant.baseline))
        if ratio is not None:
            yield _point(f"linformer, n={variant.length}", variant.k, ratio)


def _point(label: str, at: float, interval: Interval) -> Row:
    low, high = (end if math.isfinite(end) else None for end in (interval.low, interval.high))
    return {"label": label, "at": at, "value": interval.value, "low": low, "high": high}


def projection_pictures(rows: Sequence[Row], grid: Grid) -> Iterator[Picture]:
    """Yields the chart of closeness, and heat maps of the trained weights and of what training changed in them."""
    variant = grid.shared._replace(sharing="none")
    if closeness_of(rows, variant, next(iter(CLOSENESS)), TRAINED) is not None:
        about = f"n={variant.length}, k={variant.k}"
        caption = f"What E and F are close to: shares of their squared weights, {about} (95% intervals)"
        yield Picture("closeness", caption, closeness_chart(rows, variant))
    for model, words in ((CHANGE, "what training changed"), (TRAINED, "trained")):
        if slots := [row for row in rows if row["metric"] == WEIGHTS and row["model"] == model]:
            about = f"linformer, n={slots[0]['length']}, k={slots[0]['k']}, {words}"
            caption = f"Weights of slots by position: {about}; slots in the order of their largest weight"
            yield Picture(f"weights_{model}", caption, heat_maps(slots))


def closeness_chart(rows: Sequence[Row], variant: Variant) -> alt.LayerChart:
    """Returns the chart of closeness to each thing that projections may learn: the change, then the weights themselves."""
    labels: dict[str, tuple[str, str | None]] = {
        f"linformer, learned by {name} ({side})": (CHANGE, side) for name, side in MATRICES.items()
    }
    labels |= {"linformer, trained": (TRAINED, None), "linformer, fresh weights": (FRESH, None)}
    values = [
        {"kind": words, **_point(label, 0, interval)}
        for metric, words in CLOSENESS.items()
        for label, (model, side) in labels.items()
        if (interval := closeness_of(rows, variant, metric, model, side)) is not None
    ]
    legend = alt.Legend(orient="top", title=None, columns=legend_columns(labels), labelLimit=400)
    colour = alt.Color("label:N").scale(domain=list(labels), range=[*PALETTE[1:4], PALETTE[0]]).legend(legend)
    x = alt.X("value:Q", title="share of the squared weights").scale(domain=[0, 1])
    y = alt.Y("kind:N", title=None, sort=list(CLOSENESS.values())).axis(labelLimit=300)
    base = alt.Chart(alt.Data(values=values)).encode(y=y, yOffset=alt.YOffset("label:N", sort=list(labels)), color=colour)
    hints = ["kind:N", "label:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("value", "low", "high"))]
    drawn = alt.layer(
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, tooltip=hints),
    ).properties(width="container", height=220)
    return drawn.configure(background="transparent").configure_view(stroke=None)


def heat_maps(slots: Sequence[Row]) -> alt.FacetChart:
    """Returns heat maps of weights by slot and position, one for each layer and side. Each row has the weights of a slot."""
    values = [
        {"place": f"layer {row['layer']}, {row['side']}", "slot": row["value"], "position": position, "weight": weight}
        for row in slots
        for position, weight in enumerate(_numbers(row["text"]), start=1)
    ]
    largest = max((abs(value["weight"]) for value in values), default=1.0)
    width, height = (
        cell * len({value[name] for value in values}) for cell, name in zip(CELLS, ("position", "slot"), strict=True)
    )
    colour = alt.Color("weight:Q", title="weight").scale(scheme="purpleorange", domain=[-largest, largest])
    axis = alt.Axis(values=list(range(0, 1 + max(value["position"] for value in values), 16)), labelAngle=0)
    drawn: alt.FacetChart = (
        alt.Chart(alt.Data(values=values))
        .mark_rect()
        .encode(x=alt.X("position:O", title="position", axis=axis), y=alt.Y("slot:O", title="slot", axis=None), color=colour)
        .properties(width=width, height=height)
        .facet(facet=alt.Facet("place:N", title=None), columns=2)
    )
    return drawn.configure(background="transparent").configure_view(stroke=None)


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]
