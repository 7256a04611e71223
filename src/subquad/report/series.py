"""Parts of a training page for forecasts of series: some forecasts beside what came, and the error by step ahead."""

from collections.abc import Sequence

import altair as alt

from subquad.report.charts import HEIGHT, PALETTE, WIDTH, legend_columns
from subquad.results import Row

KINDS = {"before": "before the forecast", "forecast": "forecast: median and 80%", "came": "what came"}
"""Labels of the steps of an example, by kind."""


def series_charts(rows: Sequence[Row], *, interactive: bool = True) -> dict[str, alt.LayerChart]:
    """Charts by name: each example of a forecast, and the error of the model and of baselines by step ahead."""
    layers: dict[str, list[alt.Chart]] = {}
    examples = [row for row in rows if row["metric"] == "forecast_example"]
    for number, name in enumerate(dict.fromkeys(row["example"] for row in examples), 1):
        layers[f"forecast_{number}"] = _example([row for row in examples if row["example"] == name])
    if ahead := [row for row in rows if row["metric"] == "crps_at"]:
        layers["crps_by_step"] = _by_step(ahead)
    return {
        name: alt.layer(*charts)
        .properties(width="container" if interactive else WIDTH, height=HEIGHT)
        .configure(background="transparent" if interactive else "white")
        .configure_view(stroke=None)
        for name, charts in layers.items()
    }


def series_captions(rows: Sequence[Row]) -> dict[str, str]:
    """Captions of the charts by name."""
    names = dict.fromkeys(row["example"] for row in rows if row["metric"] == "forecast_example")
    captions = {f"forecast_{number}": f"Forecast of the test part: {name}" for number, name in enumerate(names, 1)}
    return {**captions, "crps_by_step": "CRPS by step ahead, in standard deviations of the training part"}


def _example(rows: Sequence[Row]) -> list[alt.Chart]:
    """Layers: the interval and the median of the forecast, the values before it, and those that came."""
    points = [
        {"kind": KINDS[row["kind"]], "at": row["at"], "value": row["value"], "low": row.get("low"), "high": row.get("high")}
        for row in rows
    ]
    colour = alt.Color("kind:N").scale(domain=list(KINDS.values()), range=[PALETTE[0], PALETTE[2], PALETTE[1]])
    colour = colour.legend(alt.Legend(orient="top", title=None, columns=legend_columns(list(KINDS.values()))))
    x = alt.X("at:Q", title="step").scale(zero=False, nice=False)
    value, low = (alt.Y(f"{name}:Q", title="value").scale(zero=False) for name in ("value", "low"))
    base = alt.Chart(alt.Data(values=points)).encode(x=x, color=colour)
    hints = ["kind:N", "at:Q", *(alt.Tooltip(f"{name}:Q", format=".5~g") for name in ("value", "low", "high"))]
    band = base.transform_filter(alt.datum.kind == KINDS["forecast"])
    return [
        band.mark_area(opacity=0.2).encode(y=low, y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=value),
        base.mark_point(filled=True, size=18).encode(y=value, tooltip=hints),
    ]


def _by_step(rows: Sequence[Row]) -> list[alt.Chart]:
    labels = list(dict.fromkeys(row["of"] for row in rows))
    points = [{"of": row["of"], "ahead": row["ahead"], "value": row["value"]} for row in rows]
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))]
    legend = alt.Legend(orient="top", title=None, columns=legend_columns(labels), labelLimit=400)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("ahead:Q", title="steps ahead").scale(nice=False, zero=False).axis(tickMinStep=1),
        y=alt.Y("value:Q", title="CRPS"),
        color=alt.Color("of:N").scale(domain=labels, range=colours).legend(legend),
    )
    hints = ["of:N", "ahead:Q", alt.Tooltip("value:Q", format=".3~g")]
    return [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=25).encode(tooltip=hints)]
