"""The chart of scores with and without their division by sqrt d, by dimension of a head."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from subquad.report.error_charts import SMALL, colour, ends_hints, finished
from subquad.results import Row

SCALED, UNSCALED = "q . k / sqrt d", "q . k"
TITLES = {
    "variance": "variance of scores",
    "largest_weight": "largest weight of a query",
    "slope": "slope of the weights",
}
"""Titles of the three panels, by the field `what` of a row."""


def score_points(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the figures of scores by dimension."""
    for row in rows:
        if row["metric"] == "scores":
            ends = {end: row[end] for end in ("value", "low", "high")}
            yield {"what": row["what"], "label": SCALED if row["scaled"] else UNSCALED, "dim": row["dim"], **ends}


def score_chart(points: Sequence[Row], *, interactive: bool) -> alt.TopLevelMixin:
    """Returns a panel for each figure of the scores, with a line for scaled and one for unscaled scores."""
    shown = [what for what in TITLES if any(point["what"] == what for point in points)]
    return finished(alt.concat(*(_panel(points, what) for what in shown), columns=3), interactive)


def _panel(points: Sequence[Row], what: str) -> alt.LayerChart:
    values = [point for point in points if point["what"] == what]
    dims = sorted({point["dim"] for point in values})
    x = alt.X("dim:Q", title="dimension d of a head").axis(values=dims, format="~g")
    x = x.scale(type="log", base=2, nice=False, domain=[dims[0], dims[-1]])
    scale = alt.Scale(type="log", nice=False) if what == "variance" else alt.Scale(domain=[0, 1], nice=False)
    base = alt.Chart(alt.Data(values=values)).encode(x=x, color=colour([UNSCALED, SCALED]))
    y = alt.Y("value:Q", title=None, scale=scale).axis(format="~g")
    drawn: Any = alt.layer(
        base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y, tooltip=["label:N", "dim:Q", *ends_hints()]),
    )
    return drawn.properties(title=TITLES[what], width=SMALL[0], height=SMALL[1])
