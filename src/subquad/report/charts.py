"""Charts of a comparison, from one specification for the page and for figures in papers.

On the page a chart contains every view, and the signal `view` chooses which one is drawn. A figure has one view only.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from subquad.compare.views import AXES, BASELINE, Comparison, View, name_view
from subquad.files import file_names, write_whole
from subquad.report.library import GRAMMAR
from subquad.results import Row
from subquad.statistics import percentile_interval

# Okabe and Ito's palette, which colour-blind readers can tell apart and which shows on white and on black.
PALETTE = ["#888888", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b2a100"]
# further ones, for charts of all mechanisms, both softmaxes and a few combinations or attentions of other packages
PALETTE += ["#aa4499", "#44aa99", "#a0522d", "#332288", "#dd4444", "#6a8d00", "#7f7fff", "#00747a"]

METRICS: dict[str, str] = {
    "time": "seconds",
    "speedup": "times as fast as fused softmax",
    "memory": "peak memory beside inputs, MB",
    "throughput": "tokens per second",
}
HEIGHT = 320
NOT_IN_SVG = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
WIDTH = 480
"""Width of a figure. On the page a chart is as wide as its container."""
LEGEND_COLUMNS = alt.ExprRef("width < 450 ? 1 : 4")
"""Number of columns of a legend: one on a narrow screen, where names would be cut off otherwise."""


def legend_columns(labels: Iterable[str]) -> alt.ExprRef:
    """Number of columns of a legend with long labels: as many as fit, at most four, and one on a narrow screen."""
    pixels = 30 + 5.5 * max(map(len, labels), default=0)
    return alt.ExprRef(f"width < 450 ? 1 : clamp(floor(width / {pixels:.0f}), 1, 4)")


def points(comparison: Comparison, view: View, run: str, views: Sequence[View]) -> Iterator[Row]:
    """Yields the figures of a view as rows with metric, mechanism, length, value and range."""
    label = name_view(view, views)
    batch = view.setting[AXES.index("batch")]
    assert isinstance(batch, int)
    for mechanism in comparison.measured(view):
        about = {"view": label, "run": run, "mechanism": mechanism}
        costs, ratios = comparison.costs(view, mechanism), comparison.ratios(view, mechanism)
        assert costs is not None  # `measured` lists only mechanisms with costs
        for at, length in enumerate(costs.lengths):
            seconds = percentile_interval(float(costs.middle[at]), costs.draws[:, at])
            tokens = batch * (1 if view.what == "step" else length)
            yield about | _point("time", length, *seconds)
            yield about | _point("throughput", length, tokens / seconds.value, tokens / seconds.high, tokens / seconds.low)
            peak = comparison.peak(view, mechanism, int(length))
            if peak:  # zero cannot be shown on a logarithmic axis
                yield about | _point("memory", length, peak / 1e6, peak / 1e6, peak / 1e6)
        if ratios is not None and mechanism != BASELINE:
            for at, length in enumerate(ratios.lengths):
                speedup = percentile_interval(float(ratios.middle[at]), ratios.draws[:, at])
                yield about | _point("speedup", length, *speedup)
            yield from _crossover(comparison, view, mechanism, about)


def _crossover(comparison: Comparison, view: View, mechanism: str, about: Mapping[str, Any]) -> Iterator[Row]:
    """Yields a row for the crossover of a mechanism with the baseline, if there is one."""
    crossing = comparison.crossover(view, mechanism)
    if crossing is None or crossing.middle is None or crossing.high == crossing.first_length:
        return
    low, high = crossing.low or crossing.first_length, crossing.high or crossing.last_length
    yield {**about, "metric": "crossover", "length": crossing.middle, "value": 1.0, "low": low, "high": high}


def _point(metric: str, length: float, value: float, low: float, high: float) -> Row:
    return {"metric": metric, "length": int(length), "value": float(value), "low": float(low), "high": float(high)}


def chart(metric: str, rows: Sequence[Row], *, interactive: bool = True) -> alt.LayerChart:
    """Returns the chart of one metric against length, on logarithmic axes, with ranges and crossovers."""
    shown = [row for row in rows if row["metric"] in (metric, "crossover")]
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in rows))
    views, runs = (list(dict.fromkeys(row[name] for row in rows)) for name in ("view", "run"))
    hidden = alt.selection_point(name="hidden", fields=["mechanism"], bind="legend", toggle="true", empty=False)
    lengths = [row["length"] for row in rows if row["metric"] != "crossover"]
    extent = (min(lengths), max(lengths))
    base = alt.Chart().transform_filter("datum.view === view").encode(x=_length(extent), color=_mechanism(mechanisms))
    if interactive:
        base = base.transform_filter(~hidden)
    if len(runs) > 1:
        base = base.encode(strokeDash=alt.StrokeDash("run:N", title="run").scale(domain=runs))
    drawn = alt.layer(*_layers(metric, base, extent), data=alt.Data(values=shown)).properties(
        width="container" if interactive else WIDTH, height=HEIGHT
    )
    drawn = drawn.add_params(alt.param(name="view", value=views[0]))
    if interactive:
        drawn = drawn.add_params(hidden)
    return drawn.configure(background="transparent" if interactive else "white").configure_view(stroke=None)


def size_chart(rows: Sequence[Row], *, interactive: bool = True) -> alt.LayerChart:
    """Returns the chart of a layer's size in bytes against the length that it is built for, from points by mechanism."""
    mechanisms, runs = (list(dict.fromkeys(row[name] for row in rows)) for name in ("mechanism", "run"))
    lengths = [row["length"] for row in rows]
    hints = ["mechanism:N", alt.Tooltip("length:Q", format="d", title="tokens"), alt.Tooltip("value:Q", format=".4~g")]
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        x=_length((min(lengths), max(lengths))),
        y=alt.Y("value:Q", title="parameters and buffers of a layer, MB").scale(type="log", nice=False),
        color=_mechanism(mechanisms),
    )
    if len(runs) > 1:
        base = base.encode(strokeDash=alt.StrokeDash("run:N", title="run").scale(domain=runs))
    drawn = alt.layer(
        base.mark_line(strokeWidth=2),
        base.mark_point(filled=True, size=45, opacity=1).encode(tooltip=[*hints, "run:N"]),
    ).properties(width="container" if interactive else WIDTH, height=HEIGHT)
    return drawn.configure(background="transparent" if interactive else "white").configure_view(stroke=None)


def _layers(metric: str, base: alt.Chart, extent: tuple[float, float]) -> Iterator[alt.Chart]:
    value = alt.Y("value:Q", title=METRICS[metric]).scale(type="log", nice=False)
    low = alt.Y("low:Q", title=METRICS[metric]).scale(type="log", nice=False)
    measured = base.transform_filter(f"datum.metric === '{metric}'")
    crossings = base.transform_filter("datum.metric === 'crossover'")
    ranged = [alt.Tooltip("low:Q", format=".4~g"), alt.Tooltip("high:Q", format=".4~g")]
    hints = [
        "mechanism:N",
        alt.Tooltip("length:Q", format="d", title="tokens"),
        alt.Tooltip("value:Q", format=".4~g"),
        *ranged,
    ]
    yield measured.mark_area(opacity=0.18).encode(y=low, y2="high:Q")
    yield measured.mark_line(strokeWidth=2).encode(y=value)
    yield measured.mark_point(filled=True, size=45, opacity=1).encode(y=value, tooltip=[*hints, "run:N"])
    crossing_hints = ["mechanism:N", alt.Tooltip("length:Q", format=".0f", title="pays from"), *ranged, "run:N"]
    if metric == "speedup":
        draw = alt.Chart(alt.Data(values=[{"level": 1}])).mark_rule(strokeDash=[4, 4], opacity=0.6)
        yield draw.encode(y=alt.Y("level:Q").scale(type="log"))
        yield crossings.mark_rule(strokeWidth=5, opacity=0.5).encode(x=_length(extent, "low"), x2="high:Q", y=value)
        yield crossings.mark_point(shape="diamond", filled=True, size=110, opacity=1).encode(y=value, tooltip=crossing_hints)
    else:
        yield crossings.mark_rule(strokeDash=[2, 3], opacity=0.7).encode(tooltip=crossing_hints)


def _length(extent: tuple[float, float], field: str = "length") -> alt.X:
    powers = [2**power for power in range(3, 24)]
    axis = alt.X(f"{field}:Q", title="length, tokens").axis(values=powers, format="d", labelOverlap=True)
    return axis.scale(type="log", base=2, nice=False, domain=list(extent))


def _mechanism(names: Sequence[str]) -> alt.Color:
    colours = [PALETTE[at % len(PALETTE)] for at in range(len(names))]
    columns = legend_columns(names)
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, symbolType="circle", columns=columns, labelLimit=400)
    return alt.Color("mechanism:N").scale(domain=list(names), range=colours).legend(legend)


def save(drawn: Mapping[str, alt.TopLevelMixin], folder: Path) -> Iterator[Path]:
    """Writes each chart as SVG and PNG into a folder, under its name, and yields the paths of the PNG files."""
    import vl_convert

    stems = file_names(drawn)
    for name, chart in drawn.items():
        svg = vl_convert.vegalite_to_svg(_without_control_characters(chart.to_dict()), GRAMMAR)
        write_whole(folder / f"{stems[name]}.svg", svg)
        write_whole(path := folder / f"{stems[name]}.png", vl_convert.svg_to_png(svg, ppi=144))
        yield path


def _without_control_characters(part: Any) -> Any:
    """Replaces characters that SVG cannot hold, which end the process that draws, in a chart's specification."""
    if isinstance(part, Mapping):
        return {_without_control_characters(name): _without_control_characters(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_without_control_characters(value) for value in part]
    return NOT_IN_SVG.sub("\N{REPLACEMENT CHARACTER}", part) if isinstance(part, str) else part
