"""Verdicts on the Long Range Arena: learning at all, published differences to softmax, no winner, and speed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from subquad.attention import MECHANISMS
from subquad.compare.views import Comparison
from subquad.experiments.base import part_rows
from subquad.experiments.lra.charts import short_name
from subquad.experiments.lra.grid import BASELINE, SCALES, Grid
from subquad.experiments.lra.published import COUNTERPARTS, SPEEDS, gaps
from subquad.experiments.lra.runs import Score, scores
from subquad.statistics import Interval, Verdict, all_held, at_least, is_above, is_positive, paired_difference
from subquad.words import between

CLEAR = 3.0
"""Published differences of at least so many percentage points are judged."""


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on each claim."""
    grid = SCALES[scale]
    measured = scores(folder, grid)
    timing = Comparison(part_rows(folder / "timing", "compare") or [])
    return [*learns(measured, grid), *differs(measured), *no_winner(measured, grid), *is_faster(timing)]


def learns(measured: Sequence[Score], grid: Grid) -> Iterator[Verdict]:
    """Whether every mechanism is above the most frequent class, task by task."""
    for plan in grid.plans:
        group = [score for score in measured if score.task == plan.task.kind]
        claim = f"every attention does better than the most frequent class on {short_name(plan.task.kind)}"
        complete = [score for score in group if score.is_complete]
        if len(complete) < len(MECHANISMS):
            yield Verdict(claim, None, f"{len(complete)} of {len(MECHANISMS)} attentions done")
            continue
        gains = [Interval(*(end - score.guessing for end in score.accuracy)) for score in group]
        held = all_held([is_positive(gain) for gain in gains])
        figures = ", ".join(f"{score.mechanism} {_said(score)}" for score in group)
        yield Verdict(claim, held, f"guessing {group[0].guessing:.1%}; {figures}")


def _said(score: Score) -> str:
    return between(score.accuracy.as_share, ".1%")


def differs(measured: Sequence[Score]) -> Iterator[Verdict]:
    """Whether clear published differences to softmax have the same sign here."""
    by_key = {(score.task, score.mechanism): score for score in measured}
    for gap in gaps(CLEAR):
        ours, theirs = by_key.get((gap.task, gap.mechanism)), by_key.get((gap.task, BASELINE))
        if ours is None or theirs is None or not (ours.is_complete and theirs.is_complete):
            continue
        below = gap.points < 0
        claim = f"{gap.mechanism} is {'below' if below else 'above'} softmax on {short_name(gap.task)}"
        difference = paired_difference(ours.accuracies, theirs.accuracies)
        assert difference is not None  # both have all seeds
        turned = Interval(-difference.value, -difference.high, -difference.low) if below else difference
        figures = f"{between(difference, '+.1%')}; published {gap.points:+.1f} points ({COUNTERPARTS[gap.mechanism]})"
        yield Verdict(claim, is_positive(turned), figures)


def no_winner(measured: Sequence[Score], grid: Grid) -> Iterator[Verdict]:
    """Whether each mechanism is clearly behind another one on some task."""
    tasks = {plan.task.kind for plan in grid.plans}
    if {(score.task, score.mechanism) for score in measured if score.is_complete} != {
        (task, name) for task in tasks for name in MECHANISMS
    }:
        return
    unbeaten = [
        name
        for name in MECHANISMS
        if not any(
            is_above(other.accuracy, score.accuracy)
            for score in measured
            for other in measured
            if score.mechanism == name and other.task == score.task
        )
    ]
    figures = f"not clearly behind on any task: {', '.join(unbeaten) or 'none'}"
    yield Verdict("no attention is best on every task", len(unbeaten) == 0 or None, figures)


def is_faster(timing: Comparison) -> Iterator[Verdict]:
    """Whether each mechanism is faster than fused softmax at the longest length."""
    for view in timing.views:
        for name in timing.measured(view):
            lengths = timing.lengths(view, name)
            speedup = timing.speedup(view, name, lengths[-1]) if lengths and name != BASELINE else None
            if speedup is None:
                continue
            published = SPEEDS.get(COUNTERPARTS.get(name, ""))
            beside = "" if published is None else f"; published {published:g} times at 4096, whole models, unfused softmax"
            claim = f"{name} is faster than fused softmax at {lengths[-1]:.0f} tokens"
            yield Verdict(claim, at_least(speedup, 1.0), f"{between(speedup)} times as fast{beside}")
