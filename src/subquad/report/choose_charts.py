"""Charts of a race: quality against time, learning curves, costs by length over the lengths of the data."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from subquad.choose.standings import READ_AT, Standings
from subquad.report.charts import HEIGHT, PALETTE, legend_columns
from subquad.report.curves import curves
from subquad.results import Row

Drawn = tuple[str, str, alt.TopLevelMixin]
"""Name, caption and chart."""

COSTS = {
    "layer": "Seconds of a forward pass through all layers, by length",
    "training": "Seconds of one attention, forward and backward, by length",
    "step": "Seconds of one decoding step of an attention, by length",
    "memory": "Peak memory of one attention in MB, forward and backward, by length",
}
"""Captions of the charts of costs."""


def choice_charts(rows: Sequence[Row], standings: Standings) -> Iterator[Drawn]:
    """Yields the charts of a race, that of the front first if there is one. A name has the same colour in all of them."""
    colour_of = colours(rows, standings)
    if any(each.seconds is not None for each in standings.of("attention")):
        yield "front", _front_caption(standings), front_chart(standings, colour_of)
    if curve := curve_points(rows):
        metric = next(row["of"] for row in rows if row["metric"] == "curve").replace("_", " ")
        caption = f"Learning curves of the final runs: {metric} in development by step"
        yield "curves", caption, curves(curve, metric, colour_of=colour_of)
    if losses := curve_points(rows, "loss_curve"):
        yield "losses", "Training loss of the final runs by step", curves(losses, "loss", colour_of=colour_of)
    bins = [row for row in rows if row["metric"] == "length_bin"]
    for what, caption in COSTS.items():
        if costs := [row for row in rows if row["metric"] == "cost" and row["what"] == what and row["value"]]:
            yield f"cost-{what}", f"{caption}; bars: how many of your sequences", cost_chart(costs, bins, what, colour_of)
    if bins:
        yield "lengths", "Lengths of all sequences", length_chart(bins)


def colours(rows: Sequence[Row], standings: Standings) -> dict[str, str]:
    """The colour of each contestant: of those with a score first, then of others that have costs or runs."""
    others = [row["mechanism"] for row in rows if row["metric"] in ("cost", "curve")]
    names = dict.fromkeys([*standings.contestants, *others])
    return {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(names)}


def _front_caption(standings: Standings) -> str:
    metric, better = standings.metric.replace("_", " "), "high" if standings.good == "high" else "low"
    length = standings.measured_at or standings.lengths.get(READ_AT)
    where = "" if length is None else f" at {length:,.0f} positions"
    without = "; dashed: the best model without attention" if standings.of("rival", "trivial") else ""
    return f"{metric} on the test ({better} is good) against the seconds of a forward pass{where}; line: the front{without}"


def front_chart(standings: Standings, colour_of: Mapping[str, str]) -> alt.LayerChart:
    """Returns the chart of quality against time with intervals; the best model without attention is a horizontal line.

    A line joins the front: attentions that no faster one reaches in quality. Other models without attention are in the
    table only: some are so far away that attentions would be drawn as one.
    """
    without = standings.of("rival", "trivial")[:1]
    names = [name for name, each in standings.contestants.items() if each.role == "attention" or each in without]
    points = [
        {"name": each.name, "seconds": each.seconds, **each.quality._asdict()}
        for each in standings.of("attention")
        if each.seconds is not None
    ]
    lines = [{"name": each.name, **each.quality._asdict()} for each in without]
    front = fastest_for_quality(points, standings.good)
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, columns=legend_columns(names), labelLimit=400)
    colour = alt.Color("name:N").scale(domain=names, range=[colour_of[name] for name in names]).legend(legend)
    scale = alt.Scale(zero=False)
    y, low = (alt.Y(f"{name}:Q", title=standings.metric.replace("_", " "), scale=scale) for name in ("value", "low"))
    x = alt.X("seconds:Q", title="seconds").scale(type="log", nice=False, padding=24)
    hints = ["name:N", *(alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("value", "low", "high", "seconds"))]
    known = alt.Chart(alt.Data(values=points))
    layers = [
        alt.Chart(alt.Data(values=front)).mark_line(color="#888888").encode(x=x, y=y),
        known.mark_rule(strokeWidth=1.5).encode(x=x, y=low, y2="high:Q", color=colour),
        known.mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, color=colour, tooltip=hints),
    ]
    if lines:
        beside = alt.Chart(alt.Data(values=lines))
        layers.append(beside.mark_rule(strokeDash=[6, 3]).encode(y=y, color=colour, tooltip=hints[:-1]))
    return _finished(alt.layer(*layers))


def fastest_for_quality(points: Sequence[Row], good: str) -> list[Row]:
    """Returns the points that are better than all faster ones, the fastest first."""
    sign = 1.0 if good == "high" else -1.0
    front: list[Row] = []
    for point in sorted(points, key=lambda each: (each["seconds"], -sign * each["value"])):
        if not front or sign * point["value"] > sign * front[-1]["value"]:
            front.append(point)
    return front


def curve_points(rows: Sequence[Row], metric: str = "curve") -> list[Row]:
    """Returns the learning curves of the final runs, labelled by attention. A single point is no curve."""
    points = [row for row in rows if row["metric"] == metric and row["stage"] == "final"]
    counts = Counter(row["trial"] for row in points)
    return [
        {"label": row["mechanism"], "run": row["trial"], "step": row["step"], "value": row["value"]}
        for row in points
        if counts[row["trial"]] > 1
    ]


def cost_chart(costs: Sequence[Row], bins: Sequence[Row], what: str, colour_of: Mapping[str, str]) -> alt.LayerChart:
    """Returns the chart of a cost by length on logarithmic axes, with the histogram of the data's lengths behind it."""
    factor = 1e-6 if what == "memory" else 1.0
    points = [{"name": row["mechanism"], "length": row["length"], "value": factor * row["value"]} for row in costs]
    named = {point["name"] for point in points}
    names = [name for name in colour_of if name in named]
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, columns=legend_columns(names))
    colour = alt.Color("name:N").scale(domain=names, range=[colour_of[name] for name in names]).legend(legend)
    x = alt.X("length:Q", title="length").scale(type="log", nice=False)
    title = "MB" if what == "memory" else "seconds"
    hints = ["name:N", "length:Q", alt.Tooltip("value:Q", format=".4~g")]
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=alt.Y("value:Q", title=title).scale(type="log"), color=colour)
    lines = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=45, opacity=1).encode(tooltip=hints))
    if not bins:
        return _finished(lines)
    return _finished(alt.layer(_bars(bins), lines).resolve_scale(y="independent"))


def length_chart(bins: Sequence[Row]) -> alt.LayerChart:
    """Returns the histogram of lengths."""
    return _finished(alt.layer(_bars(bins)))


def _bars(bins: Sequence[Row]) -> alt.Chart:
    shown = [{"low": max(1.0, row["low"]), "high": row["high"], "sequences": row["value"], "none": 0} for row in bins]
    return (
        alt.Chart(alt.Data(values=shown))
        .mark_rect(opacity=0.25, color="#888888")
        .encode(
            x=alt.X("low:Q", title="length").scale(type="log", nice=False),
            x2="high:Q",
            y=alt.Y("sequences:Q", title="sequences"),
            y2="none:Q",
            tooltip=["low:Q", "high:Q", "sequences:Q"],
        )
    )


def _finished(drawn: Any) -> alt.LayerChart:
    sized = drawn.properties(width="container", height=HEIGHT)
    finished: alt.LayerChart = sized.configure(background="transparent").configure_view(stroke=None)
    return finished
