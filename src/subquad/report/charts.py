"""Charts, each made of rows alone."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from subquad.results import Row


def speedups(rows: Sequence[Row], *, threads: int = 1) -> alt.TopLevelMixin:
    """How many times as fast as fused softmax each mechanism is, by length, with intervals. 1 is a draw."""
    shown = [row for row in rows if row["metric"] == "speedup" and row["threads"] == threads]
    mechanism = alt.Color("mechanism:N", title="attention").legend(orient="top", symbolOpacity=1)
    powers = [2**power for power in range(3, 21)]
    length = alt.X("length:Q", title="length, tokens").scale(type="log", base=2, nice=False).axis(values=powers, format="d")
    base = alt.Chart().encode(x=length, color=mechanism)
    marks = [mark * power for power in (0.1, 1, 10, 100) for mark in (1, 2, 5)]
    value = alt.Y("value:Q", title="times as fast as fused softmax").scale(type="log", nice=False).axis(values=marks)
    layers = alt.layer(
        base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q").scale(type="log", nice=False), y2="high:Q"),
        base.mark_line(point=True).encode(
            y=value,
            tooltip=["mechanism:N", "length:Q", alt.Tooltip("value:Q", format=".2f"), "low:Q", "high:Q", "rounds:Q"],
        ),
        data=alt.Data(values=shown),
    ).properties(width=280, height=220)
    forms, works = ["bidirectional", "causal"], ["forward", "with backward"]
    return layers.facet(column=alt.Column("form:N", title=None).sort(forms), row=alt.Row("what:N", title=None).sort(works))


def save(chart: alt.TopLevelMixin, stem: Path) -> Path:
    """Writes a chart as SVG and PNG beside each other, and gives the PNG's path."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    chart.save(str(stem.with_suffix(".svg")))
    chart.save(str(stem.with_suffix(".png")), ppi=144)
    return stem.with_suffix(".png")
