"""The residuals of event models: gaps rescaled by the model's own intensity, which are exponential if the model is right."""

from collections.abc import Sequence

import altair as alt

from subquad.report.charts import HEIGHT, LEGEND_COLUMNS, PALETTE
from subquad.results import Row

QUANTILE = "residual_quantile"


def quantiles(rows: Sequence[Row], label: str) -> list[Row]:
    """Points of a run for the quantile-quantile chart."""
    found = [row for row in rows if row["metric"] == QUANTILE]
    return [{"label": label, "wanted": row["exponential"], "found": row["value"]} for row in found]


def residual_chart(points: Sequence[Row], *, interactive: bool = True) -> alt.LayerChart:
    """Quantiles of rescaled gaps against those of the exponential distribution; on the diagonal where the model is right."""
    labels = list(dict.fromkeys(row["label"] for row in points))
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))]
    farthest = max(max(row["wanted"], row["found"]) for row in points)
    legend = alt.Legend(orient="top", title=None, columns=LEGEND_COLUMNS, labelLimit=400)
    diagonal = alt.Chart(alt.Data(values=[{"wanted": 0.0, "found": 0.0}, {"wanted": farthest, "found": farthest}]))
    x = alt.X("wanted:Q", title="quantile of the exponential distribution")
    y = alt.Y("found:Q", title="quantile of the rescaled gaps")
    drawn = alt.layer(
        diagonal.mark_line(color=PALETTE[0], strokeDash=[4, 4]).encode(x=x, y=y),
        alt.Chart(alt.Data(values=list(points)))
        .mark_point(filled=True, size=22, opacity=0.8)
        .encode(
            x=x,
            y=y,
            color=alt.Color("label:N").scale(domain=labels, range=colours).legend(legend),
            tooltip=["label:N", alt.Tooltip("wanted:Q", format=".3~g"), alt.Tooltip("found:Q", format=".3~g")],
        ),
    ).properties(width="container" if interactive else 480, height=HEIGHT)
    return drawn.configure(background="transparent" if interactive else "white").configure_view(stroke=None)
