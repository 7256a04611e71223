"""Intervals, the bootstrap, paired differences, and verdicts on claims.

Every interval is a 95% interval. Where observations are drawn again, the draws depend on the seed and the number of
observations only, so that two statistics of the same observations are compared draw by draw.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import ndarray

ENDS = (0.025, 0.975)
"""Quantiles at the ends of a 95% interval."""
RESAMPLES = 1000
BATCH_NUMBERS = 4_000_000
"""Largest number of drawn observations that are held in memory at a time."""


class Interval(NamedTuple):
    """A value and the ends of its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Interval":
        """The fields ``value``, ``low`` and ``high`` of a row."""
        return cls(row["value"], row["low"], row["high"])

    @property
    def spread(self) -> float:
        """Half of the width of the interval; not finite if it has no ends."""
        return (self.high - self.low) / 2

    @property
    def as_share(self) -> "Interval":
        """The interval of a share, with ends cut to 0 and 1. Infinite ends stay: they say that there is no interval."""
        if not math.isfinite(self.spread):
            return self
        return Interval(self.value, max(0.0, self.low), min(1.0, self.high))


class Verdict(NamedTuple):
    """A claim, whether it held, and the figures that decide it."""

    claim: str
    held: bool | None  # None: not decided by what was measured
    figures: str


Statistic = Callable[[Int[ndarray, "resamples units"]], Float[ndarray, "resamples"]]
"""Maps the indices of drawn observations, one resample in each row, to one number for each resample."""


def resample(units: int, statistic: Statistic, *, seed: int = 0, resamples: int = RESAMPLES) -> Float[ndarray, "resamples"]:
    """The bootstrap: a statistic of so many observations, each time drawn anew with replacement."""
    if units < 2:  # which scipy refuses: every draw is the observation itself
        return np.repeat(statistic(np.zeros((1, units), int)), resamples)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():  # a statistic may be undefined for some draws
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)  # about an interval of scipy's that is not used
        drawn = scipy.stats.bootstrap(
            (np.arange(units),),
            lambda indices, axis: statistic(indices),
            n_resamples=resamples,
            batch=max(1, min(resamples, BATCH_NUMBERS // units)),
            vectorized=True,
            method="percentile",
            random_state=np.random.default_rng(seed),
        )
    distribution: ndarray = drawn.bootstrap_distribution
    return distribution


def count_draws(indices: Int[ndarray, "resamples units"]) -> Float[ndarray, "resamples units"]:
    """How often each observation was drawn, in each resample."""
    resamples, units = indices.shape
    places = indices + units * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=resamples * units).reshape(resamples, units).astype(float)


def percentile_interval(value: float, draws: Float[ndarray, "draws"]) -> Interval:
    """A value, and the range of the middle 95% of its draws. Draws that are not finite are left out."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return Interval(value, value, value)
    low, high = np.quantile(known, ENDS)
    return Interval(value, float(low), float(high))


def median_interval(measured: Sequence[float] | Float[ndarray, "n"], *, seed: int = 0) -> Interval:
    """The median of measurements, with a bootstrap interval."""
    values = np.asarray(measured)
    return percentile_interval(
        float(np.median(values)), resample(len(values), lambda drawn: np.median(values[drawn], axis=1), seed=seed)
    )


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """The median of the ratios of paired measurements, such as the seconds of two candidates in the same round."""
    return median_interval(np.asarray(numerators) / np.asarray(denominators))


def grouped_sums(values: Float[ndarray, "n"], lengths: Int[ndarray, "groups"]) -> Float[ndarray, "groups"]:
    """The sum over each group, where `lengths` says how many consecutive values each group has."""
    sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), values, minlength=len(lengths))
    return sums.astype(float)  # without any value, numpy counts in whole numbers


def divide(sums: Float[ndarray, "n"], counts: Float[ndarray, "n"]) -> Float[ndarray, "n"]:
    """Means from sums and counts; NaN where the count is 0."""
    return sums / np.where(counts > 0, counts, np.nan)


def summed_interval(
    parts: Float[ndarray, "groups parts"],
    finish: Callable[[Float[ndarray, "draws parts"]], Float[ndarray, "draws"]],
    seed: int = 0,
) -> Interval:
    """A statistic of sums over groups, with whole groups drawn again: values of one group are alike.

    `parts` are what each group adds to the sums, and `finish` gives the statistic from the sums, draw by draw.
    """
    draws = resample(len(parts), lambda drawn: finish(count_draws(drawn) @ parts), seed=seed)
    return percentile_interval(float(finish(parts.sum(0, keepdims=True))[0]), draws)


def grouped_mean(values: Float[ndarray, "n"], lengths: Int[ndarray, "groups"], seed: int = 0) -> Interval:
    """The mean of values that come in groups, such as the events of sequences or the tokens of texts."""
    parts = np.stack([grouped_sums(values, lengths), lengths.astype(float)], axis=1)
    return summed_interval(parts, lambda added: divide(added[:, 0], added[:, 1]), seed)


def paired_ratio(ours: Float[ndarray, "groups 2"], theirs: Float[ndarray, "groups 2"]) -> Interval:
    """Ours minus theirs, where each is a sum over groups divided by a count, with whole groups drawn again.

    Each group has what it adds to the sum and to the count, which both have in common. The same groups are drawn for both:
    groups often differ far more than what is compared, so that small differences show in pairs only.
    """
    parts = np.stack([ours[:, 0] - theirs[:, 0], ours[:, 1]], axis=1)
    return summed_interval(parts, lambda added: divide(added[:, 0], added[:, 1]))


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """The mean of independent results with Student's interval, which is infinite for a single one."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, -np.inf, np.inf)
    half = float(scipy.stats.sem(values) * scipy.stats.t.ppf(ENDS[1], len(values) - 1))
    return Interval(mean, mean - half, mean + half)


def share_interval(successes: int, trials: int) -> Interval:
    """The share of successes in independent trials, with the exact interval of Clopper and Pearson."""
    exact = scipy.stats.binomtest(successes, trials).proportion_ci(ENDS[1] - ENDS[0])
    return Interval(successes / trials, float(exact.low), float(exact.high))


def paired_gaps(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Ours minus theirs for each seed that both have, in the order of seeds."""
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """The mean over seeds of ours minus theirs, with Student's interval. None where no seed has both."""
    gaps = list(paired_gaps(ours, theirs).values())
    return mean_over_seeds(gaps) if gaps else None


def geometric_mean(logarithms: Mapping[int, float]) -> Interval | None:
    """The geometric mean over seeds of what these are the logarithms of, such as perplexities. None without seeds."""
    if not logarithms:
        return None
    return Interval(*(math.exp(end) for end in mean_over_seeds([logarithms[seed] for seed in sorted(logarithms)])))


def geometric_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """How many times theirs ours is: the geometric mean over the seeds that both have, from logarithms."""
    return geometric_mean(paired_gaps(ours, theirs))


def at_most(found: Interval, limit: float) -> bool | None:
    """Whether a measurement stays within a limit; None where its interval holds the limit."""
    return None if found.low <= limit < found.high else found.high <= limit


def at_least(found: Interval, limit: float) -> bool | None:
    """Whether a measurement reaches a limit; None where its interval holds the limit."""
    return None if found.low < limit <= found.high else found.low >= limit


def is_positive(difference: Interval) -> bool | None:
    """Whether a difference is above zero; None where its interval holds zero."""
    return True if difference.low > 0 else False if difference.high < 0 else None


def is_above(first: Interval, second: Interval) -> bool | None:
    """Whether the first interval lies above the second; None where they overlap."""
    return True if first.low > second.high else False if first.high < second.low else None


def all_held(held: Sequence[bool | None]) -> bool | None:
    """Whether all parts of a claim held: False if one certainly did not, None if one is not decided."""
    return False if False in held else None if None in held else True
