"""Curves against training steps: each run thin, the mean over seeds thick, the range between them shaded."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np

from subquad.report.charts import HEIGHT, PALETTE, legend_columns
from subquad.results import Row

POINTS = 200
"""Largest number of points of a curve; a longer one is averaged over ranges of steps."""


def thin(steps: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    """Averages a curve down to `POINTS` points: the last step and the mean value of each range of steps."""
    width = max(1, -(-len(steps) // POINTS))
    ranges = [(steps[at : at + width], values[at : at + width]) for at in range(0, len(steps), width)]
    return [(range_steps[-1], _mean(range_values)) for range_steps, range_values in ranges]


def across(rows: Sequence[Row]) -> list[Row]:
    """Returns mean, minimum and maximum over the runs of each label, at steps that all of its runs have."""
    values_at: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        values_at[row["label"], row["step"]].append(row["value"])
    runs = {label: len({row["run"] for row in rows if row["label"] == label}) for label in {row["label"] for row in rows}}
    return [
        {"label": label, "step": step, "value": _mean(values), "low": min(values), "high": max(values)}
        for (label, step), values in values_at.items()
        if len(values) == runs[label]
    ]


def _mean(values: Sequence[float]) -> float:
    """Mean of values; infinite, without a warning, if their sum overflows."""
    with np.errstate(over="ignore"):
        return float(np.mean(values))


def _scale(values: Sequence[float], *, log: bool) -> alt.Scale:
    """Scale of the vertical axis. A value that never changes is in its middle: the chart would round its label to a whole
    number."""
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(nice=False, zero=False)
    least, greatest = float(min(values)), float(max(values))
    if least == greatest and np.isfinite(least):
        scale["domain"] = sorted((0.9 * least, 1.1 * least)) if least else [-1.0, 1.0]
    return scale


def curves(
    rows: Sequence[Row],
    title: str,
    *,
    log: bool = False,
    interactive: bool = True,
    colour_of: Mapping[str, str] | None = None,
) -> alt.LayerChart:
    """Returns the chart of a metric by step, from rows with label, run, step and value.

    `colour_of` has the colour of each label, for a page on which other charts show the same.
    """
    labels = list(dict.fromkeys(row["label"] for row in rows))
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))]
    if colour_of is not None:
        labels = [label for label in colour_of if label in labels]
        colours = [colour_of[label] for label in labels]
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, columns=legend_columns(labels), labelLimit=400)
    colour = alt.Color("label:N").scale(domain=labels, range=colours).legend(legend)
    hidden = alt.selection_point(name="hidden", fields=["label"], bind="legend", toggle="true", empty=False)
    steps = [row["step"] for row in rows]
    x = alt.X("step:Q", title="step", axis=alt.Axis(tickMinStep=1)).scale(domain=[min(steps), max(steps)], nice=False)
    scale = _scale([row["value"] for row in rows], log=log)
    kind, low = (alt.Y(f"{name}:Q", title=title, scale=scale) for name in ("value", "low"))
    base = alt.Chart().encode(x=x, color=colour)
    if interactive:
        base = base.transform_filter(~hidden)
    means = alt.Data(values=across(rows))
    hints = [
        "label:N",
        "step:Q",
        alt.Tooltip("value:Q", format=".4~g"),
        alt.Tooltip("low:Q", format=".4~g"),
        alt.Tooltip("high:Q", format=".4~g"),
    ]
    drawn = alt.layer(
        base.mark_line(strokeWidth=0.7, opacity=0.35)
        .encode(y=kind, detail="run:N")
        .properties(data=alt.Data(values=list(rows))),
        base.mark_area(opacity=0.15).encode(y=low, y2="high:Q").properties(data=means),
        base.mark_line(strokeWidth=2.2).encode(y=kind).properties(data=means),
        base.mark_point(size=60, filled=True, opacity=0 if len(set(steps)) > 1 else 1)  # one point makes no line
        .encode(y=kind, tooltip=hints)
        .properties(data=means),
    ).properties(width="container" if interactive else 480, height=HEIGHT)
    if interactive:
        drawn = drawn.add_params(hidden)
    return drawn.configure(background="transparent" if interactive else "white").configure_view(stroke=None)
