"""The result of a race as it is read from its rows: qualities, paired advantages, costs, and who dominates whom.

Rows of a race are flat. A contestant is an attention or a rival, which is a model without attention.

========== ==============================================================================================
quality    score on the test sequences with its interval, by mechanism; `role` is attention, rival or trivial
advantage  by how much `mechanism` is better than `against` on the same sequences; positive is better
cost       seconds (`what`: layer, training or step) or bytes (`what`: memory) at a `length`
seen       `quantile` of the lengths of all sequences
score      score of one run on the development sequences, with its `stage` and number of `steps`
test_score score of one final run on the test sequences
========== ==============================================================================================
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import mean
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from subquad.results import Row
from subquad.statistics import Interval

SOFTMAX = "softmax"
"""Name of the exact attention, which all others are compared with."""
DERIVED = ("quality", "advantage", "perplexity")
"""Metrics of rows that are computed from others and written again whenever more is known."""
READ_AT = 0.9
"""Quantile of the lengths at which contestants' speed is compared: nine of ten sequences are no longer."""
LONGEST = 1.0
"""Quantile of the lengths at which memory is compared: the longest sequence has to fit."""
SHORTEST_MEASURED = 2
"""Smallest number of positions at which costs are measured."""
SHARE = "share"
"""Unit of scores that lie between 0 and 1."""
WORTH = 1.2
"""Speed-up from which on an attention is clearly faster than another one."""

SAME_SCORE: Mapping[tuple[str, str], Callable[[float], float]] = {
    ("perplexity", "nats_per_token"): math.log,
    ("r2", "unexplained_share"): lambda explained: 1.0 - explained,
}
"""Functions that give a score on the test from one in development that is another metric, by the names of both."""

Role = Literal["attention", "rival", "trivial"]


class Progress(NamedTuple):
    """Development scores of an attention after few training steps, its best short run, and after more, its final runs.

    They are in the metric of the test.
    """

    few_steps: float
    after_few: float
    more_steps: float
    after_more: float


class Contestant(NamedTuple):
    """What is known of an attention or a rival."""

    name: str
    role: Role
    quality: Interval
    seconds: float | None = None
    """Seconds of a forward pass through all layers, for a batch of sequences of the length `Standings.measured_at`."""
    memory: float | None = None
    """Peak bytes of one attention, forward and backward, for a batch of the longest sequences."""
    steps: float | None = None
    """Mean number of training steps of its final runs."""
    seeds: int = 1
    progress: Progress | None = None
    pace: float | None = None
    """Seconds of a training step, the mean over all of its runs."""
    by_seed: tuple[float, ...] = ()
    """Scores of its final runs on the test."""


class Standings(NamedTuple):
    """All contestants with a score on the test, and the advantages between them."""

    metric: str
    good: str
    unit: str
    contestants: Mapping[str, Contestant]
    advantages: Mapping[tuple[str, str], Interval]
    lengths: Mapping[float, float]
    """Quantiles of the lengths of all sequences."""
    measured_at: float | None = None
    """Length at which seconds of contestants were measured: that of `READ_AT`, or the nearest one that they share."""
    unscored: Mapping[str, float] = MappingProxyType({})
    """Seconds of a forward pass of attentions that have no score on the test, because their final runs were not done."""
    failures: tuple[str, ...] = ()
    """Why runs failed, in words."""
    without_rivals: str = ""
    """Why models without attention were not judged; empty if they were, or if the task has none."""
    can_go_on: bool = False
    """Whether final runs are only missing: some runs have scores in development, and no final run failed."""
    is_conversion: bool = False
    """Whether the attentions are conversions of a trained model, whose own attention is softmax."""

    def of(self, *roles: Role) -> list[Contestant]:
        """Contestants of some roles, the best first."""
        sign = -1.0 if self.good == "high" else 1.0
        return sorted(
            (each for each in self.contestants.values() if each.role in roles), key=lambda e: sign * e.quality.value
        )

    def advantage(self, ours: str, theirs: str) -> Interval | None:
        """By how much one contestant is better than another on the same sequences; None if they share no seed."""
        if ours == theirs:
            return Interval(0.0, 0.0, 0.0)
        if (known := self.advantages.get((ours, theirs))) is not None:
            return known
        known = self.advantages.get((theirs, ours))
        return None if known is None else Interval(-known.value, -known.high, -known.low)

    def front(self) -> list[str]:
        """Attentions that no other one dominates in quality, time and memory together."""
        some = self.of("attention")
        return [each.name for each in some if not any(self._dominates(other, each) for other in some)]

    def _dominates(self, ours: Contestant, theirs: Contestant) -> bool:
        sign = 1.0 if self.good == "high" else -1.0
        pairs = [(sign * ours.quality.value, sign * theirs.quality.value)]
        for mine, other in ((ours.seconds, theirs.seconds), (ours.memory, theirs.memory)):
            if mine is not None and other is not None:
                pairs.append((-mine, -other))
        return all(mine >= other for mine, other in pairs) and any(mine > other for mine, other in pairs)


def read_standings(rows: Sequence[Row]) -> Standings:
    """Returns the standings that the rows of a race tell."""
    qualities = [row for row in rows if row["metric"] == "quality"]
    first: Mapping[str, Any] = qualities[0] if qualities else {}
    lengths = {row["quantile"]: row["value"] for row in rows if row["metric"] == "seen"}
    measured_at, costs = read_costs(rows, lengths)
    progress, paces = read_progress(rows, str(first.get("of", ""))), read_paces(rows)
    contestants = {}
    for row in qualities:
        name = row["mechanism"]
        seconds, memory = costs.get(name, (None, None))
        known = (Interval.of_row(row), seconds, memory, row.get("steps"), row["seeds"])
        by_seed = tuple(each["value"] for each in rows if each["metric"] == "test_score" and each["mechanism"] == name)
        contestants[name] = Contestant(name, row["role"], *known, progress.get(name), paces.get(name), by_seed)
    advantages = {(row["mechanism"], row["against"]): Interval.of_row(row) for row in rows if row["metric"] == "advantage"}
    about = (str(first.get("of", "")), str(first.get("good", "high")), str(first.get("unit", "")))
    failed = [row for row in rows if row["metric"] == "score" and row["value"] is None]
    return Standings(
        *about,
        contestants,
        advantages,
        lengths,
        measured_at,
        _unscored(rows, costs, contestants),
        tuple(f"{row['failure']} ({row['message']})" for row in failed),
        _without_rivals(rows),
        can_go_on=any(row["metric"] == "score" and row["value"] is not None for row in rows)
        and not any(row["stage"] == "final" for row in failed),
        is_conversion=any(row["metric"] == "candidate" for row in rows),
    )


def _unscored(
    rows: Sequence[Row], costs: Mapping[str, tuple[float | None, float | None]], scored: Collection[str]
) -> dict[str, float]:
    """Seconds of attentions that were searched and have no final run, whether one that failed or one with a score."""
    known = [row for row in rows if row["metric"] == "score"]
    searched = {row["mechanism"] for row in known if row["stage"] == "search" and row["value"] is not None}
    tried = {row["mechanism"] for row in known if row["stage"] == "final"}
    waiting = sorted(searched - tried - set(scored))
    return {name: seconds for name in waiting if (seconds := costs.get(name, (None,))[0]) is not None}


def _without_rivals(rows: Sequence[Row]) -> str:
    """Why models without attention were not judged in the last attempt; empty if they were."""
    last = next((row for row in reversed(rows) if row["metric"] == "rival"), None)
    return "" if last is None or last["value"] is not None else f"{last['failure']}: {last['message']}"


def read_gives_up(traits: Mapping[str, Any], rows: Iterable[Row]) -> dict[str, str]:
    """What a user does without, for each attention: from the traits in run.json, and from rows about conversions."""
    known = {name: str(fields.get("gives_up", "")) for name, fields in traits.items()}
    return known | {row["mechanism"]: str(row["gives_up"]) for row in rows if row["metric"] == "candidate"}


def read_progress(rows: Sequence[Row], metric: str) -> dict[str, Progress]:
    """What more training steps gave each attention that has runs of the search and of the final.

    `metric` is that of the test. An attention whose scores in development cannot be converted to it is left out.
    """
    scores: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["metric"] == "score" and row["value"] is not None:
            scores.setdefault(row["mechanism"], {}).setdefault(row["stage"], []).append(row)
    progress = {}
    for name, stages in scores.items():
        if "search" in stages and "final" in stages:
            pick = max if stages["search"][0]["good"] == "high" else min
            short, long = pick(stages["search"], key=lambda row: row["value"]), stages["final"]
            known = [_converted(row["value"], row.get("of", metric), metric) for row in (short, *long)]
            if all(value is not None and math.isfinite(value) for value in known):
                few, *more = (value for value in known if value is not None)
                progress[name] = Progress(short["steps"], few, mean(row["steps"] for row in long), mean(more))
    return progress


def _converted(value: float, of: str, metric: str) -> float | None:
    """A score in the metric of the test; None if it cannot be converted."""
    if of == metric:
        return value
    convert = SAME_SCORE.get((of, metric))
    return None if convert is None or (convert is math.log and value <= 0) else convert(value)


def read_paces(rows: Iterable[Row]) -> dict[str, float]:
    """Seconds of a training step of each attention, over all of its runs."""
    totals: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row["metric"] == "score" and row["value"] is not None and row.get("steps") and "seconds" in row:
            seconds, steps = totals.get(row["mechanism"], (0.0, 0.0))
            totals[row["mechanism"]] = seconds + row["seconds"], steps + row["steps"]
    return {name: seconds / steps for name, (seconds, steps) in totals.items()}


def speedup(ours: Contestant, theirs: Contestant) -> float:
    """How many times as fast one contestant is as another; 1 if that is not known."""
    return 1.0 if not ours.seconds or not theirs.seconds else theirs.seconds / ours.seconds


def read_costs(
    rows: Iterable[Row], lengths: Mapping[float, float]
) -> tuple[float | None, dict[str, tuple[float | None, float | None]]]:
    """The length at which times are compared, and seconds at it and bytes at the largest length by attention.

    Times are compared at the length that most attentions were measured at, of several the nearest to that of `READ_AT`. An
    attention that was not measured there, or for the largest length, has None.
    """
    seconds, memory = _by_length(rows, "layer"), _by_length(rows, "memory")
    shared = Counter(length for known in seconds.values() for length in known)
    wanted = lengths.get(READ_AT)
    most = [length for length, count in shared.items() if count == max(shared.values())]
    read_at = None if wanted is None or not most else min(most, key=lambda length: abs(length - wanted))
    return read_at, {
        name: (known.get(read_at) if read_at is not None else None, _at_largest(memory.get(name, {}), lengths.get(LONGEST)))
        for name, known in seconds.items()
    }


def _by_length(rows: Iterable[Row], what: str) -> dict[str, dict[float, float]]:
    """Costs of a kind, by attention and length."""
    known: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["metric"] == "cost" and row["what"] == what and row["value"] is not None:
            known.setdefault(row["mechanism"], {})[row["length"]] = row["value"]
    return known


def is_length(measured: float, length: float) -> bool:
    """Whether a whole number of positions is that of a quantile of lengths, which may lie between two numbers."""
    return abs(measured - length) < 1.0 or measured == SHORTEST_MEASURED > length


def _at_largest(measured: Mapping[float, float], longest: float | None) -> float | None:
    if longest is None:
        return None
    return next((value for length, value in measured.items() if is_length(length, longest)), None)
