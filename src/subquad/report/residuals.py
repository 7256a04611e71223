"""Residuals of event models: gaps rescaled by the model's intensity, exponentially distributed if the model is right."""

from collections.abc import Sequence

import altair as alt

from subquad.report.charts import HEIGHT, PALETTE, legend_columns
from subquad.results import Row

QUANTILE = "residual_quantile"


def quantiles(rows: Sequence[Row], label: str) -> list[Row]:
    """Returns the points of a run for the quantile-quantile chart."""
    quantile_rows = [row for row in rows if row["metric"] == QUANTILE]
    return [{"label": label, "exponential": row["exponential"], "rescaled": row["value"]} for row in quantile_rows]


def residual_chart(points: Sequence[Row], *, interactive: bool = True) -> alt.LayerChart:
    """Returns the chart of rescaled gaps' quantiles against exponential ones; a right model lies on the diagonal."""
    labels = list(dict.fromkeys(row["label"] for row in points))
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))]
    farthest = max(max(row["exponential"], row["rescaled"]) for row in points)
    legend = alt.Legend(orient="top", title=None, columns=legend_columns(labels), labelLimit=400)
    diagonal = alt.Chart(
        alt.Data(values=[{"exponential": 0.0, "rescaled": 0.0}, {"exponential": farthest, "rescaled": farthest}])
    )
    x = alt.X("exponential:Q", title="quantile of the exponential distribution")
    y = alt.Y("rescaled:Q", title="quantile of the rescaled gaps")
    drawn = alt.layer(
        diagonal.mark_line(color=PALETTE[0], strokeDash=[4, 4]).encode(x=x, y=y),
        alt.Chart(alt.Data(values=list(points)))
        .mark_point(filled=True, size=22, opacity=0.8)
        .encode(
            x=x,
            y=y,
            color=alt.Color("label:N").scale(domain=labels, range=colours).legend(legend),
            tooltip=["label:N", alt.Tooltip("exponential:Q", format=".3~g"), alt.Tooltip("rescaled:Q", format=".3~g")],
        ),
    ).properties(width="container" if interactive else 480, height=HEIGHT)
    return drawn.configure(background="transparent" if interactive else "white").configure_view(stroke=None)
