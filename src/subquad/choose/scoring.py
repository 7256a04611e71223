"""Qualities and paired advantages of contestants, from the scores of single test sequences in their final runs.

Two sources of chance are added: which sequences are in the test, by drawing them again, the same for all contestants; and
which seed a model was trained with, by the scatter of its seeds. Scatters of few seeds are hardly known by themselves, so
each is moderated by the typical one of all attentions, as if that had been seen `PRIOR_SEEDS` times (Smyth 2004). The
difference of two attentions has twice the typical variance, as if their seeds had nothing in common.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float
from numpy import ndarray

from subquad.choose.standings import SHARE, Role
from subquad.results import Row
from subquad.statistics import ENDS, RESAMPLES, Interval, percentile_interval
from subquad.tasks.comparing import Judged
from subquad.tasks.targets.metrics import auroc_draws, ratio_draws

PRIOR_SEEDS = 4
"""Degrees of freedom of the typical scatter of seeds."""

Draws = Float[ndarray, "draws"]
"""The score of all test sequences, followed by those of draws of them."""


class Entrant(NamedTuple):
    """The final runs of an attention, or a rival, with scores of the same test sequences."""

    name: str
    role: Role
    judged: Mapping[int, Judged]
    """Scores by seed; a rival has one."""
    steps: float | None = None


def score_rows(entrants: Sequence[Entrant]) -> list[Row]:
    """Rows with the quality of each entrant, and with the advantage of each pair that shares a seed."""
    if not entrants:
        return []
    judged = next(iter(entrants[0].judged.values()))
    sign = 1.0 if judged.good == "high" else -1.0
    draws = {each.name: {seed: score_draws(known) for seed, known in each.judged.items()} for each in entrants}
    about = {"of": judged.metric, "good": judged.good, "unit": judged.unit}
    typical = typical_variance([list(draws[each.name].values()) for each in entrants if each.role == "attention"])
    rows = list(_quality_rows(entrants, draws, about, typical))
    for ours, theirs in combinations(entrants, 2):
        if differences := _differences(ours, theirs, draws, sign):
            trained = (ours.role, theirs.role).count("attention")
            about_pair: Row = {"metric": "advantage", "mechanism": ours.name, "against": theirs.name, "unit": judged.unit}
            rows.append({**about_pair, **_ends(_interval(differences, trained * typical))})
    return [row for row in rows if all(math.isfinite(row[end]) for end in Interval._fields)]  # one class has no AUROC


def score_draws(judged: Judged, resamples: int = RESAMPLES) -> Draws:
    """The score of all test sequences, and of draws of them, which are the same for all models."""
    if judged.statistic == "auroc":
        return auroc_draws(judged.parts[:, 0].astype(int), judged.parts[:, 1], resamples)
    return ratio_draws(judged.parts[:, 0], judged.parts[:, 1], resamples)


def _quality_rows(
    entrants: Sequence[Entrant], draws: Mapping[str, Mapping[int, Draws]], about: Mapping[str, str], typical: float
) -> Iterator[Row]:
    for each in entrants:
        by_seed = list(draws[each.name].values())
        found = _interval(by_seed, typical if each.role == "attention" else 0.0)
        if about["unit"] == SHARE:  # an error rate may be above 1
            most = 1.0 if about["good"] == "high" else math.inf
            found = Interval(found.value, max(0.0, found.low), min(most, found.high))
        steps = {} if each.steps is None else {"steps": each.steps}
        row: Row = {"metric": "quality", "mechanism": each.name, "role": each.role, "seeds": len(by_seed)}
        yield {**row, **about, **steps, **_ends(found)}


def _differences(ours: Entrant, theirs: Entrant, draws: Mapping[str, Mapping[int, Draws]], sign: float) -> list[Draws]:
    """By how much ours is better, for each seed that both have; a rival, which has no seeds, goes with every seed."""
    mine, other = draws[ours.name], draws[theirs.name]
    if ours.role == theirs.role == "attention":
        return [sign * (mine[seed] - other[seed]) for seed in sorted(mine.keys() & other.keys())]
    return [sign * (a - b) for a in mine.values() for b in other.values()]


def typical_variance(groups: Sequence[Sequence[Draws]]) -> float:
    """The median over attentions of the variance between their seeds; 0 if no attention has two seeds.

    One attention that learns with some seeds only does not make the others uncertain. The variance of few seeds is mostly
    below the true one, so each is divided by the median of its distribution, for seeds that are normally distributed.
    """
    known = []
    for group in groups:
        freedom = len(group) - 1
        if freedom > 0:
            variance = float(np.var([each[0] for each in group], ddof=1))
            known.append(variance * freedom / float(scipy.stats.chi2.median(freedom)))
    finite = [variance for variance in known if math.isfinite(variance)]
    return median(finite) if finite else 0.0


def _interval(by_seed: Sequence[Draws], typical: float) -> Interval:
    """The mean over seeds, with an interval for the choice of sequences and of seeds together."""
    means = np.mean(by_seed, axis=0)
    drawn = percentile_interval(float(means[0]), means[1:])
    seeds = len(by_seed)
    own = float(np.var([each[0] for each in by_seed], ddof=1)) if seeds > 1 else 0.0
    if not typical and not own:
        return drawn
    freedom = PRIOR_SEEDS + seeds - 1
    variance = (PRIOR_SEEDS * typical + (seeds - 1) * own) / freedom
    half = float(scipy.stats.t.ppf(ENDS[1], freedom)) * math.sqrt(variance / seeds)
    low, high = (math.hypot(drawn.value - drawn.low, half), math.hypot(drawn.high - drawn.value, half))
    return Interval(drawn.value, drawn.value - low, drawn.value + high)


def _ends(found: Interval) -> dict[str, float]:
    return {name: float(value) for name, value in found._asdict().items()}
