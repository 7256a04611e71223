"""Charts of a conversion: quality by step and by text length, heads before and after, time and memory by length."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from subquad.report.charts import HEIGHT, PALETTE
from subquad.report.curves import thin
from subquad.results import Row

STAGES = ("original", "swapped", "calibrated", "distilled", "chosen", "tuned")
RECIPES = ("conversion", "plain fine-tuning", "window alone", "softmax fine-tuned")
HEADS = {"attention divergence": "nats", "effective rank": "dimensions"}
COSTS = {"seconds": "seconds", "bytes": "peak memory beside the model, MB"}
BY_LENGTH = ("cosine by length", "rank correlation by length", "perplexity by length")
APART = {*HEADS, *COSTS, *BY_LENGTH, "loss", "failure", "kept", "left out", "duration"}
"""Metrics that do not measure the quality on all texts."""
UNTRAINED = "nothing trained"
"""Name of the swapped model in legends."""
CELL = 22  # size in pixels of a cell in a heat map
SMALL = (360, 200)  # width and height in pixels of one chart in a grid


def conversion_charts(
    rows: Sequence[Row], *, interactive: bool = True, attention: str = "new attention"
) -> dict[str, alt.TopLevelMixin]:
    """Returns all charts for which there are rows, by name. `attention` is the name of the new attention in legends."""
    drawn: dict[str, Any] = {}
    if metrics := [metric for metric in qualities(rows) if any(_line(rows, metric))]:
        drawn["quality"] = _grid([quality_chart(rows, metric, attention) for metric in metrics])
    if panels := [length_chart(rows, metric, attention) for metric in BY_LENGTH if any(_of(rows, metric=metric))]:
        drawn["length"] = _grid(panels)
    if losses := [row for row in rows if row["metric"] == "loss" and row["value"] > 0]:
        drawn["loss"] = _grid([loss_chart(losses, stage, attention) for stage in STAGES if any(_of(losses, stage=stage))])
    for metric in HEADS:
        if (maps := heat_maps(rows, metric)) is not None:
            drawn[metric.replace(" ", "-")] = maps
    for metric in COSTS:
        if cost_rows := [row for row in rows if row["metric"] == metric]:
            drawn[metric] = cost_chart(cost_rows, metric, interactive=interactive, attention=attention)
    background = "transparent" if interactive else "white"
    return {name: chart.configure(background=background).configure_view(stroke=None) for name, chart in drawn.items()}


def qualities(rows: Sequence[Row]) -> list[str]:
    """Returns the names of quality metrics, in the order of the rows."""
    return [metric for metric in dict.fromkeys(row["metric"] for row in rows) if metric not in APART]


def quality_chart(rows: Sequence[Row], metric: str, attention: str) -> alt.LayerChart:
    """Returns the chart of a metric by step: lines for development texts, marks for test texts, the original dashed."""
    line_points = list(_line(rows, metric))
    test_points = [_point(row) for row in _of(rows, metric=metric, split="test") if row["stage"] != "original"]
    names = [name for name in RECIPES if any(_of(rows, recipe=name))]
    colour = _colour("recipe", names, attention)
    scale = alt.Scale(type="log" if metric == "perplexity" else "linear", zero=False, nice=False, padding=8)
    x, y = alt.X("step:Q", title="step"), alt.Y("value:Q", title=metric, scale=scale)
    hints = [
        "recipe:N",
        "stage:N",
        "step:Q",
        *(alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("value", "low", "high")),
    ]
    line = alt.Chart(alt.Data(values=line_points)).encode(x=x, y=y, color=colour)
    layers: list[alt.Chart] = [
        line.mark_line(strokeWidth=2),
        line.mark_point(size=14, filled=True, opacity=1).encode(tooltip=hints),
    ]
    if test_points:
        base = alt.Chart(alt.Data(values=test_points)).encode(x=x, color=colour)
        layers.append(base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"))
        layers.append(base.mark_point(shape="diamond", size=70, filled=True, opacity=1).encode(y=y, tooltip=hints))
    if original := [_point(row) for row in _of(rows, metric=metric, stage="original")]:
        base = alt.Chart(alt.Data(values=original[:1]))
        layers.append(base.mark_rule(color=PALETTE[0], strokeDash=[5, 4]).encode(y=y, tooltip=hints))
    drawn: Any = alt.layer(*layers)
    return drawn.properties(width=SMALL[0], height=SMALL[1])


def kept_stage(rows: Sequence[Row], recipe: str) -> str | None:
    """Returns the stage whose model a recipe ended with; without rows that tell, the last stage."""
    tested_stages = {row["stage"] for row in _of(rows, recipe=recipe, split="test")}
    kept_stages = {row["stage"] for row in _of(rows, recipe=recipe, metric="kept") if row["value"]}
    return next(
        (
            stage
            for stage in reversed(STAGES)
            if stage in (kept_stages & tested_stages or tested_stages) and stage != "original"
        ),
        None,
    )


def length_series(rows: Sequence[Row], metric: str) -> dict[str, dict[int, Row]]:
    """Returns rows by length for the original, the untrained model, and the final model of each recipe."""
    ends = {recipe: (recipe, kept_stage(rows, recipe)) for recipe in RECIPES}
    names = {"original": ("conversion", "original"), UNTRAINED: ("conversion", "swapped"), **ends}
    series = {}
    for name, (recipe, stage) in names.items():
        if rows_by_length := {row["length"]: row for row in _of(rows, metric=metric, recipe=recipe, stage=stage)}:
            series[name] = dict(sorted(rows_by_length.items()))
    if metric != "perplexity by length":
        series.pop("original", None)  # the original would be compared with itself
    return series


def length_chart(rows: Sequence[Row], metric: str, attention: str) -> alt.LayerChart:
    """Returns the chart of a metric on test texts by length, with the original dashed."""
    series = length_series(rows, metric)
    values = [
        {"model": name, "length": at, "outside": row["outside"], **{end: end_of(row, end) for end in _ENDS}}
        for name, rows_by_length in series.items()
        for at, row in rows_by_length.items()
    ]
    lengths = sorted({value["length"] for value in values})
    x = alt.X("length:Q", title="tokens of a text").axis(values=lengths, format="d", labelOverlap=True)
    x = x.scale(type="log", base=2, nice=False, padding=8)
    scale = alt.Scale(type="log" if metric == "perplexity by length" else "linear", zero=False, nice=False, padding=8)
    y = alt.Y("value:Q", title=metric.removesuffix(" by length"), scale=scale)
    base = alt.Chart(alt.Data(values=values)).encode(x=x, color=_model_colour(list(series), attention))
    hints = [
        "model:N",
        "length:Q",
        alt.Tooltip("outside:Q", title="outside of what it weighs exactly", format=".0%"),
        *(alt.Tooltip(f"{end}:Q", format=".4~g") for end in _ENDS),
    ]
    dashes = alt.StrokeDash("model:N", legend=None).scale(
        domain=list(series), range=[[5, 4] if name in ("original", UNTRAINED) else [1, 0] for name in series]
    )
    drawn: Any = alt.layer(
        base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dashes),
        base.mark_rule(strokeWidth=1.5, opacity=0.5).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y, tooltip=hints),
    )
    return drawn.properties(width=SMALL[0], height=SMALL[1])


def loss_chart(rows: Sequence[Row], stage: str, attention: str) -> alt.Chart:
    """Returns the chart of one stage's loss by step. Losses of different stages cannot be compared."""
    values = []
    names = list(dict.fromkeys(row["recipe"] for row in rows))
    for name in names:
        stage_rows = list(_of(rows, stage=stage, recipe=name))
        points = thin([row["step"] for row in stage_rows], [row["value"] for row in stage_rows])
        values += [{"recipe": name, "step": step, "value": value} for step, value in points]
    y = alt.Y("value:Q", title=f"loss, {stage}").scale(type="log", nice=False)
    chart = alt.Chart(alt.Data(values=values)).mark_line(strokeWidth=1.5)
    x = alt.X("step:Q", title="step").scale(zero=False, nice=False)
    return chart.encode(x=x, y=y, color=_colour("recipe", names, attention)).properties(width=SMALL[0], height=SMALL[1])


def heat_maps(rows: Sequence[Row], metric: str) -> alt.HConcatChart | None:
    """Returns heat maps by layer and head, one for each stage of the conversion, with one colour scale."""
    head_rows = [row for row in _of(rows, metric=metric, recipe="conversion") if "head" in row]
    shown = [stage for stage in STAGES if any(_of(head_rows, stage=stage))]
    if metric == "attention divergence":
        shown = [stage for stage in shown if stage != "original"]  # its divergence from itself is zero
    if not shown:
        return None
    last = [*shown[:-1][:2], shown[-1]] if len(shown) > 3 else shown
    values = [row["value"] for row in head_rows if row["stage"] in last]
    scale = alt.Scale(scheme="viridis", domain=[min(0.0, *values), max(values)])
    return alt.hconcat(
        *(_heat_map([row for row in head_rows if row["stage"] == stage], stage, metric, scale) for stage in last)
    )


def _heat_map(rows: Sequence[Row], stage: str, metric: str, scale: alt.Scale) -> alt.Chart:
    values = [{"layer": row["layer"], "head": row["head"], "value": row["value"]} for row in rows]
    heads, layers = (len({row[name] for row in rows}) for name in ("head", "layer"))
    return (
        alt.Chart(alt.Data(values=values), title=stage)
        .mark_rect()
        .encode(
            x=alt.X("head:O", title="head").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("layer:O", title="layer"),
            color=alt.Color("value:Q", title=HEADS[metric], scale=scale),
            tooltip=["layer:O", "head:O", alt.Tooltip("value:Q", title=metric, format=".4~g")],
        )
        .properties(width=max(4, heads) * CELL, height=max(3, layers) * CELL)
    )


def cost_chart(rows: Sequence[Row], metric: str, *, interactive: bool, attention: str) -> alt.LayerChart:
    """Returns the chart of time or memory by length, on logarithmic axes, before and after the conversion."""
    names = {"before": "softmax, before", "after": f"{attention}, after"}
    factor = 1e-6 if metric == "bytes" else 1.0
    values = [
        {
            "model": names.get(row["model"], row["model"]),
            "length": row["length"],
            **{end: factor * end_of(row, end) for end in _ENDS},
        }
        for row in rows
        if row["value"] > 0  # zero cannot be shown on a logarithmic axis
    ]
    lengths = sorted({row["length"] for row in rows})
    x = alt.X("length:Q", title="length, tokens").axis(values=lengths, format="d", labelOverlap=True)
    x = x.scale(type="log", base=2, nice=False, domain=[lengths[0], lengths[-1]])
    y, low = (alt.Y(f"{end}:Q", title=COSTS[metric]).scale(type="log", nice=False) for end in ("value", "low"))
    hints = ["model:N", "length:Q", *(alt.Tooltip(f"{end}:Q", format=".4~g") for end in _ENDS)]
    base = alt.Chart(alt.Data(values=values)).encode(x=x, color=_colour("model", list(names.values()), attention))
    drawn: Any = alt.layer(
        base.mark_area(opacity=0.18).encode(y=low, y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y, tooltip=hints),
    )
    return drawn.properties(width="container" if interactive else 480, height=HEIGHT)


_ENDS = ("value", "low", "high")


def end_of(row: Row, end: str) -> float:
    """Returns one of the row's value, low and high; the value if the row has no interval."""
    return float(row[end] if end in row else row["value"])


def _line(rows: Sequence[Row], metric: str) -> Iterator[Row]:
    """Yields the points of a metric on development texts without the original, or on all texts if there are none."""
    metric_rows = [row for row in _of(rows, metric=metric) if row["stage"] != "original"]
    yield from map(_point, list(_of(metric_rows, split="development")) or metric_rows)


def _point(row: Row) -> Row:
    return {
        **{name: row.get(name) for name in ("recipe", "stage")},
        **{"step": row.get("step") or 0, **{end: end_of(row, end) for end in _ENDS}},
    }


def _of(rows: Sequence[Row], **wanted: Any) -> Iterator[Row]:
    return (row for row in rows if all(row.get(name) == value for name, value in wanted.items()))


def _colour(field: str, names: Sequence[str], attention: str) -> alt.Color:
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(names))] if field == "recipe" else PALETTE[:2]
    return _legend(field, names, colours, attention)


def _model_colour(names: Sequence[str], attention: str) -> alt.Color:
    """Returns colours of models: recipes as elsewhere on the page, the original in grey."""
    recipes = [name for name in names if name in RECIPES]
    recipe_colours = {name: PALETTE[(at + 1) % len(PALETTE)] for at, name in enumerate(recipes)}
    colours = [recipe_colours.get(name, PALETTE[0] if name == "original" else PALETTE[7]) for name in names]
    return _legend("model", names, colours, attention)


def _legend(field: str, names: Sequence[str], colours: Sequence[str], attention: str) -> alt.Color:
    """Returns the colour encoding with a legend that adds the attention to the recipes that use it."""
    labels = {name: f"{attention}, {name}" for name in ("conversion", "plain fine-tuning", UNTRAINED)}
    shown = f"{json.dumps(labels)}[datum.label] || datum.label"
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, symbolType="circle", labelLimit=400, labelExpr=shown)
    return alt.Color(f"{field}:N").scale(domain=list(names), range=list(colours)).legend(legend)


def _grid(charts: Sequence[Any]) -> Any:
    return alt.concat(*charts, columns=2)


def by_length(rows: Sequence[Row]) -> dict[int, Mapping[tuple[str, str], Row]]:
    """Returns rows of time and memory by length, then by metric and model."""
    costs: dict[int, dict[tuple[str, str], Row]] = {}
    for row in rows:
        if row["metric"] in (*COSTS, "failure") and "length" in row:
            costs.setdefault(row["length"], {})[row["metric"], row["model"]] = row
    return dict(sorted(costs.items()))
