"""Lines against a number such as the length or the number of slots, with the 95% interval of each point shaded."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from subquad.report.charts import HEIGHT, PALETTE, legend_columns
from subquad.results import Row


class Axis(NamedTuple):
    """Title of an axis, and whether it is logarithmic."""

    title: str
    log: bool = False

    @property
    def scale(self) -> alt.Scale:
        """The scale of the axis. A logarithmic one has base 2, and the values of rows must be positive."""
        return alt.Scale(type="log", base=2, nice=False) if self.log else alt.Scale(nice=False, zero=False)


def ranged_lines(
    rows: Sequence[Row], x: Axis, y: Axis, *, level: float | None = None, fits: Sequence[Row] = ()
) -> alt.LayerChart:
    """Returns the chart of rows with label, at, value, low and high. `fits`, of label, law, at and value, are dashed lines.

    `level` is a horizontal line, such as a limit. Values that a logarithmic axis cannot show are left out.
    """
    shown, fitted = ([row for row in part if not y.log or row["value"] > 0] for part in (rows, fits))
    labels = list(dict.fromkeys(row["label"] for row in shown))
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, columns=legend_columns(labels), labelLimit=400)
    colour = alt.Color("label:N").scale(domain=labels, range=[PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))])
    places = sorted({row["at"] for row in shown})
    axis = alt.X("at:Q", title=x.title, scale=x.scale).axis(values=places, format="~g", labelOverlap=True)
    value, low = (alt.Y(f"{name}:Q", title=y.title, scale=y.scale) for name in ("value", "low"))
    base = alt.Chart(alt.Data(values=shown)).encode(x=axis, color=colour.legend(legend))
    ranged = base.transform_filter("isValid(datum.low) && isValid(datum.high)" + (" && datum.low > 0" if y.log else ""))
    hints = ["label:N", alt.Tooltip("at:Q", title=x.title), *(alt.Tooltip(f"{n}:Q", format=".4~g") for n in _ENDS)]
    layers = [
        ranged.mark_area(opacity=0.15).encode(y=low, y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=value),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=value, tooltip=hints),
    ]
    if fitted:
        laws = alt.StrokeDash("law:N").scale(range=[[6, 4], [2, 3]]).legend(orient="top", title=None, labelLimit=400)
        curve = alt.Chart(alt.Data(values=fitted)).encode(x=axis, y=value, color=colour.legend(legend), strokeDash=laws)
        layers.append(curve.mark_line(strokeWidth=1.3))
    if level is not None:
        rule = alt.Chart(alt.Data(values=[{"value": level}])).mark_rule(color=PALETTE[0], strokeDash=[4, 4])
        layers.append(rule.encode(y=value))
    drawn = alt.layer(*layers).properties(width="container", height=HEIGHT)
    return drawn.configure(background="transparent").configure_view(stroke=None)


_ENDS = ("value", "low", "high")
