"""How well next events are predicted, beside what knows nothing of the history, and how sure that is.

Everything is given event by event, those that are predicted only and without padding, sequence by sequence; `lengths` says
how many are each sequence's. Intervals come from drawing sequences again, not events: those of one sequence are alike.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy import stats

from subquad.statistics import Interval, divide, grouped_mean, grouped_sums, summed_interval
from subquad.tasks.events.sequences import EventSequences

QUANTILES = 100

Sums = Float[ndarray, "sequences parts"]
"""What a metric needs to know of each sequence: parts that are added up over sequences."""

Finish = Callable[[Float[ndarray, "drawings parts"]], Float[ndarray, "drawings"]]
"""From added parts to the metric."""


class Baselines(NamedTuple):
    """What is known without looking at the history: from the training sequences, first events left out."""

    type: int  # the most frequent
    mean_gap: float  # the best constant for the RMSE
    median_gap: float  # the best constant for the MAE

    @classmethod
    def learn(cls, train: EventSequences) -> "Baselines":
        """A first event is not predicted, so it does not count; unless there are no others."""
        later = ~train.first if (~train.first).any() else np.ones(len(train.times), bool)
        types = np.bincount(train.types[later], minlength=len(train.type_names))
        return cls(int(types.argmax()), float(train.gaps[later].mean()), float(np.median(train.gaps[later])))


class Residuals(NamedTuple):
    """How far rescaled gaps are from exponential ones."""

    statistic: float  # of Kolmogorov and Smirnov: the largest distance of the distribution functions
    p_value: float  # small where gaps are not exponential
    wanted: Float[ndarray, "quantiles"]  # of the exponential distribution
    found: Float[ndarray, "quantiles"]  # of the gaps: beside each other they lie on the diagonal


def accuracy(types: Int[ndarray, "events"], predicted: Int[ndarray, "events"]) -> float:
    """The share of events whose type was predicted."""
    return float((types == predicted).mean()) if len(types) else float("nan")


def macro_f1(types: Int[ndarray, "events"], predicted: Int[ndarray, "events"]) -> float:
    """The mean of F1 = 2 right / (there + predicted) over the types that occur."""
    return _value(*_f1_parts(types, predicted, np.array([len(types)])))


def rmse(gaps: Float[ndarray, "events"], predicted: Float[ndarray, "events"]) -> float:
    """Root of the mean squared error, in the data's unit of time."""
    return float(np.sqrt(np.square(gaps - predicted).mean())) if len(gaps) else float("nan")


def mae(gaps: Float[ndarray, "events"], predicted: Float[ndarray, "events"]) -> float:
    """Mean absolute error, in the data's unit of time."""
    return float(np.abs(gaps - predicted).mean()) if len(gaps) else float("nan")


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
    """Rescaled gaps with the sequences laid end to end, so that each stretch after a last event counts.

    A sequence that is watched until a set time breaks off more long gaps than short ones. Left out, they would make the
    others look too short; but the rescaled sequences are all parts of one Poisson process, where the next one goes on.
    `ends` are the integrals from each last event to the sequence's end, 0 where the sequence ends with its last event.
    """
    after = np.cumsum(lengths) + np.arange(len(lengths))  # where a sequence's end stands among all stretches
    is_event = np.ones(len(rescaled) + len(ends), bool)
    is_event[after] = False
    stretches = np.empty(len(is_event))
    stretches[is_event], stretches[after] = rescaled, ends
    return np.diff(np.cumsum(stretches)[is_event], prepend=0.0)


def residuals(rescaled: Float[ndarray, "events"]) -> Residuals:
    """Tests whether rescaled gaps are exponential with mean 1, as those of the true process, with points of a QQ plot."""
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    wanted = -np.log1p(-levels)
    if not len(rescaled):
        return Residuals(float("nan"), float("nan"), wanted, np.full(QUANTILES, np.nan))
    test = stats.kstest(rescaled, "expon")
    return Residuals(float(test.statistic), float(test.pvalue), wanted, np.quantile(rescaled, levels))


def _f1_parts(
    types: Int[ndarray, "events"], predicted: Int[ndarray, "events"], lengths: Int[ndarray, "sequences"]
) -> tuple[Sums, Finish]:
    """For each type: how many are right, how many are there, how many are predicted."""
    kinds = 1 + int(max(types.max(initial=0), predicted.max(initial=0)))
    where = np.repeat(np.arange(len(lengths)), lengths) * kinds

    def counts(of: Int[ndarray, "some"]) -> Float[ndarray, "sequences types"]:
        return np.bincount(of, minlength=len(lengths) * kinds).reshape(len(lengths), kinds).astype(float)

    right = types == predicted
    parts = [counts((where + types)[right]), counts(where + types), counts(where + predicted)]

    def finish(added: Float[ndarray, "drawings parts"]) -> Float[ndarray, "drawings"]:
        right, there, said = np.split(added, 3, axis=1)
        occurs = there > 0
        return divide(np.where(occurs, 2.0 * right / np.maximum(there + said, 1.0), 0.0).sum(1), occurs.sum(1).astype(float))

    return np.concatenate(parts, axis=1), finish


def _value(parts: Sums, finish: Finish) -> float:
    return float(finish(parts.sum(0, keepdims=True))[0])
