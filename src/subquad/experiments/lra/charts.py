"""Charts of the Long Range Arena: accuracy on each task, and accuracy against speed."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import altair as alt

from subquad.attention import MECHANISMS
from subquad.compare.views import BASELINE, Comparison, View
from subquad.experiments.lra.runs import Score
from subquad.report.charts import PALETTE
from subquad.report.page import Picture
from subquad.results import Row
from subquad.statistics import Interval, mean_over_seeds

PANEL_WIDTH, ROW_HEIGHT, COLUMNS = 210, 19, 3
"""Pixels of the width of a task's panel and of the height of a mechanism's row in it, and panels in a row."""
ABOVE, NOT_ABOVE = "above guessing", "not above guessing"


def short_name(task: str) -> str:
    """Name of a task in claims and charts."""
    return task.removeprefix("lra-")


def accuracy_picture(measured: Sequence[Score]) -> Picture:
    """Test accuracy by mechanism, with intervals and the share of the most frequent class, a panel for each task."""
    tasks = list(dict.fromkeys(score.task for score in measured))
    panels = [_panel([score for score in measured if score.task == task]) for task in tasks]
    caption = (
        "Accuracy on the test, with 95% intervals over seeds, or over test sequences where one seed is finished; "
        "dashed: always guessing the most frequent class"
    )
    drawn = alt.concat(*panels, columns=COLUMNS, spacing={"row": 30, "column": 25})
    return Picture("accuracy", caption, drawn.configure(background="transparent").configure_view(stroke=None))


def _panel(scores: Sequence[Score]) -> alt.LayerChart:
    rows: list[Row] = []
    for score in scores:
        value, low, high = score.accuracy.as_share
        about = {"attention": score.mechanism, "guessing": score.guessing, "seeds": len(score.accuracies)}
        above = ABOVE if low > score.guessing else NOT_ABOVE
        rows.append({**about, "accuracy": value, "low": low, "high": high, "beside": above})
    ends = [row[name] for row in rows for name in ("low", "high", "guessing")]
    scale = alt.Scale(domain=[max(0.0, min(ends) - 0.01), min(1.0, max(ends) + 0.01)], nice=False)
    axis = alt.Axis(format="%", tickCount=5)
    colour = alt.Color("beside:N", title=None).scale(domain=[ABOVE, NOT_ABOVE], range=[PALETTE[2], PALETTE[1]])
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("attention:N", title=None).sort(list(MECHANISMS)), color=colour.legend(orient="top", symbolOpacity=1)
    )
    hints = [alt.Tooltip(f"{name}:Q", format=".1%") for name in ("accuracy", "low", "high", "guessing")]
    level = alt.Chart(alt.Data(values=rows[:1])).mark_rule(strokeDash=[4, 4], color=PALETTE[0])
    seeds = max(len(score.accuracies) for score in scores)
    drawn: Any = alt.layer(
        level.encode(x=alt.X("guessing:Q", title=None, scale=scale, axis=axis)),
        base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", title=None, scale=scale), x2="high:Q"),
        base.mark_point(filled=True, size=40, opacity=1).encode(
            x=alt.X("accuracy:Q", title=None, scale=scale), tooltip=["attention:N", "seeds:Q", *hints]
        ),
    )
    title = f"{short_name(scores[0].task)}, {seeds} {'seed' if seeds == 1 else 'seeds'}"
    return drawn.properties(title=title, width=PANEL_WIDTH, height=ROW_HEIGHT * len(scores))


def tradeoff_picture(measured: Sequence[Score], timing: Comparison, view: View | None) -> Picture | None:
    """Mean accuracy over tasks against the speed beside fused softmax; None if either is missing.

    Tasks with several seeds are taken if there are some, because a single seed says nothing of others.
    """
    several = [score for score in measured if score.planned > 1] or list(measured)
    tasks = list(dict.fromkeys(score.task for score in several))
    rows: list[Row] = []
    length = 0
    for name in timing.measured(view) if view is not None else []:
        group = [score for score in several if score.mechanism == name]
        if len(group) != len(tasks) or not tasks or view is None:
            continue
        length = int(timing.lengths(view, name)[-1])
        speedup = timing.speedup(view, name, length)
        if speedup is not None:
            mean = mean_accuracy(group)
            ends = {"low": mean.low, "high": mean.high} if len(group[0].accuracies) > 1 else {}
            rows.append({"attention": name, "accuracy": mean.value, **ends})
            rows[-1]["speed"] = 1.0 if name == BASELINE else speedup.value
    if not rows:
        return None
    x = alt.X("speed:Q", title="times as fast as fused softmax").scale(type="log", base=2, nice=False, padding=40)
    y, low = (alt.Y(f"{end}:Q", title="accuracy, mean over tasks") for end in ("accuracy", "low"))
    y, low = (end.axis(format="%").scale(zero=False, padding=20) for end in (y, low))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x)
    hints = ["attention:N", alt.Tooltip("accuracy:Q", format=".1%"), alt.Tooltip("speed:Q", format=".3~g")]
    drawn = alt.layer(
        base.transform_filter("isValid(datum.low)").mark_rule(color=PALETTE[2], opacity=0.5).encode(y=low, y2="high:Q"),
        base.mark_point(filled=True, size=60, color=PALETTE[2], opacity=1).encode(y=y, tooltip=hints),
        base.mark_text(dx=8, align="left").encode(y=y, text="attention:N"),
    ).properties(width="container", height=320)
    names = ", ".join(map(short_name, tasks))
    caption = f"Mean accuracy over {names} against speed at {length} tokens, attention forward and backward"
    return Picture("tradeoff", caption, drawn.configure(background="transparent").configure_view(stroke=None))


def mean_accuracy(scores: Sequence[Score]) -> Interval:
    """The mean over tasks of a mechanism, with its interval over the seeds that all tasks have."""
    seeds = set.intersection(*(set(score.accuracies) for score in scores))
    return mean_over_seeds([fmean(score.accuracies[seed] for score in scores) for seed in sorted(seeds)])
