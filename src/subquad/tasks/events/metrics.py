"""Metrics of next-event predictions, with intervals, and baselines that do not use the history.

Arrays hold the predicted events, without padding, sequence by sequence; `lengths` has the number of events of each sequence.
Intervals come from resampling sequences, not events, because events of one sequence are correlated.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.statistics import Interval, divide, grouped_mean, grouped_sums, summed_interval
from subquad.tasks.events.sequences import EventSequences

QUANTILES = 100

Sums = Float[ndarray, "sequences parts"]
"""Terms of a metric for each sequence, which are added over sequences."""

Finish = Callable[[Float[ndarray, "drawings parts"]], Float[ndarray, "drawings"]]
"""Computes a metric from added terms, for each drawing."""


class Baselines(NamedTuple):
    """Predictions without the history, learned from the training sequences."""

    type: int  # most frequent type
    mean_gap: float  # mean gap, which minimizes the RMSE
    median_gap: float  # median gap, which minimizes the MAE

    @classmethod
    def learn(cls, train: EventSequences) -> "Baselines":
        """Learns the baselines from all events but first ones, which are not predicted, unless there are no others."""
        later = ~train.first if (~train.first).any() else np.ones(len(train.times), bool)
        types = np.bincount(train.types[later], minlength=len(train.type_names))
        return cls(int(types.argmax()), float(train.gaps[later].mean()), float(np.median(train.gaps[later])))


class Residuals(NamedTuple):
    """Comparison of rescaled gaps with the exponential distribution."""

    statistic: float  # Kolmogorov-Smirnov statistic: the largest distance of the distribution functions
    p_value: float  # p-value of the test; small if gaps are not exponential
    expected: Float[ndarray, "quantiles"]  # quantiles of the exponential distribution
    observed: Float[ndarray, "quantiles"]  # quantiles of the gaps, equal to `expected` up to chance for the true process


def accuracy(types: Int[ndarray, "events"], predicted: Int[ndarray, "events"]) -> float:
    """Share of events whose type was predicted."""
    return float((types == predicted).mean()) if len(types) else float("nan")


def macro_f1(types: Int[ndarray, "events"], predicted: Int[ndarray, "events"]) -> float:
    """Mean over the types that occur of F1 = 2 right / (occurring + predicted)."""
    return _value(*_f1_parts(types, predicted, np.array([len(types)])))


def rmse(gaps: Float[ndarray, "events"], predicted: Float[ndarray, "events"]) -> float:
    """Root mean squared error, in the data's unit of time."""
    return float(np.sqrt(np.square(gaps - predicted).mean())) if len(gaps) else float("nan")


def mae(gaps: Float[ndarray, "events"], predicted: Float[ndarray, "events"]) -> float:
    """Mean absolute error, in the data's unit of time."""
    return float(np.abs(gaps - predicted).mean()) if len(gaps) else float("nan")


def crps(draws: Float[ndarray, "e n"], observed: Float[ndarray, "e"]) -> Float[ndarray, "e"]:
    """Continuous ranked probability score of distributions given by random draws: E|X - y| - E|X - X'| / 2.

    This is the integral of the squared difference of the distribution function and that of the observed value. Dividing by
    n (n - 1) pairs makes the estimate unbiased (Ferro 2014).
    """
    count = draws.shape[1]
    distance = np.abs(draws - observed[:, None]).mean(1)
    weights = 2.0 * np.arange(count) - count + 1.0  # each sorted draw is above so many more draws than it is below
    return distance - (np.sort(draws, axis=1) @ weights) / (count * (count - 1.0))


def accuracy_interval(
    types: Int[ndarray, "events"], predicted: Int[ndarray, "events"], lengths: Int[ndarray, "sequences"], seed: int = 0
) -> Interval:
    """Share of events whose type was predicted, with its interval."""
    return grouped_mean((types == predicted).astype(float), lengths, seed)


def macro_f1_interval(
    types: Int[ndarray, "events"], predicted: Int[ndarray, "events"], lengths: Int[ndarray, "sequences"], seed: int = 0
) -> Interval:
    """Macro F1 over the types that occur among the sequences drawn, with its interval."""
    return summed_interval(*_f1_parts(types, predicted, lengths), seed)


def rmse_interval(
    gaps: Float[ndarray, "events"], predicted: Float[ndarray, "events"], lengths: Int[ndarray, "sequences"], seed: int = 0
) -> Interval:
    """Root mean squared error, with its interval."""
    parts = np.stack([grouped_sums(np.square(gaps - predicted), lengths), lengths.astype(float)], axis=1)
    return summed_interval(parts, lambda added: np.sqrt(divide(added[:, 0], added[:, 1])), seed)


def mae_interval(
    gaps: Float[ndarray, "events"], predicted: Float[ndarray, "events"], lengths: Int[ndarray, "sequences"], seed: int = 0
) -> Interval:
    """Mean absolute error, with its interval."""
    return grouped_mean(np.abs(gaps - predicted), lengths, seed)


def join_ends(
    rescaled: Float[ndarray, "events"], lengths: Int[ndarray, "sequences"], ends: Float[ndarray, "sequences"]
) -> Float[ndarray, "events"]:
    """Rescaled gaps with the sequences laid end to end, so that the stretch after each last event counts.

    A sequence that is observed until a fixed time cuts off more long gaps than short ones. Without them, the other gaps
    would look too short. The rescaled sequences are parts of one Poisson process, which the next sequence continues. `ends`
    has the integral from the last event to the end of each sequence, 0 if the sequence ends with its last event.
    """
    after = np.cumsum(lengths) + np.arange(len(lengths))  # index of each sequence's end among all stretches
    is_event = np.ones(len(rescaled) + len(ends), bool)
    is_event[after] = False
    stretches = np.empty(len(is_event))
    stretches[is_event], stretches[after] = rescaled, ends
    return np.diff(np.cumsum(stretches)[is_event], prepend=0.0)


def residuals(rescaled: Float[ndarray, "events"]) -> Residuals:
    """Tests whether rescaled gaps are exponential with mean 1, as under the true process, and computes a QQ plot."""
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    expected = -np.log1p(-levels)
    if not len(rescaled):
        return Residuals(float("nan"), float("nan"), expected, np.full(QUANTILES, np.nan))
    test = scipy.stats.kstest(rescaled, "expon")
    return Residuals(float(test.statistic), float(test.pvalue), expected, np.quantile(rescaled, levels))


def _f1_parts(
    types: Int[ndarray, "events"], predicted: Int[ndarray, "events"], lengths: Int[ndarray, "sequences"]
) -> tuple[Sums, Finish]:
    """Counts of right predictions, of occurrences and of predictions of each type by sequence, and the F1 of their sums."""
    kinds = 1 + int(max(types.max(initial=0), predicted.max(initial=0)))
    where = np.repeat(np.arange(len(lengths)), lengths) * kinds

    def counts(keys: Int[ndarray, "some"]) -> Float[ndarray, "sequences types"]:
        return np.bincount(keys, minlength=len(lengths) * kinds).reshape(len(lengths), kinds).astype(float)

    right = types == predicted
    parts = [counts((where + types)[right]), counts(where + types), counts(where + predicted)]

    def finish(added: Float[ndarray, "drawings parts"]) -> Float[ndarray, "drawings"]:
        right, there, chosen = np.split(added, 3, axis=1)
        occurs = there > 0
        f1 = np.where(occurs, 2.0 * right / np.maximum(there + chosen, 1.0), 0.0)
        return divide(f1.sum(1), occurs.sum(1).astype(float))

    return np.concatenate(parts, axis=1), finish


def _value(parts: Sums, finish: Finish) -> float:
    return float(finish(parts.sum(0, keepdims=True))[0])
