"""Metrics of scores for two classes, with intervals."""

from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.statistics import RESAMPLES, Interval, count_draws, percentile_interval, resample


def auroc(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"]) -> float:
    """Share of pairs of one client of each class in which the client of class 1 has the higher score; a tie counts half."""
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((scipy.stats.rankdata(scores)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def accuracy(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"]) -> float:
    """Share of clients whose score is on the right side of one half."""
    return float(((scores >= 0.5) == (labels == 1)).mean())


def auroc_interval(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], seed: int = 0) -> Interval:
    """The AUROC with its bootstrap interval over clients."""
    return percentile_interval(auroc(labels, scores), resampled_aurocs(labels, scores, seed))


def accuracy_interval(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], seed: int = 0) -> Interval:
    """The accuracy with its bootstrap interval over clients."""
    right = ((scores >= 0.5) == (labels == 1)).astype(float)
    drawn = resample(len(labels), lambda indices: count_draws(indices) @ right / len(right), seed=seed)
    return percentile_interval(accuracy(labels, scores), drawn)


def resampled_aurocs(
    labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], seed: int
) -> Float[ndarray, "resamples"]:
    """AUROCs of bootstrap samples of the clients. Scores are sorted once, and pairs counted by the clients below each."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=np.nan) != 0)  # where runs of equal scores begin
    positive = (labels[order] == 1).astype(float)

    def aurocs(indices: Int[ndarray, "resamples clients"]) -> Float[ndarray, "resamples"]:
        drawn = count_draws(indices)[:, order]
        ones = np.add.reduceat(drawn * positive, starts, axis=1)
        zeros = np.add.reduceat(drawn * (1.0 - positive), starts, axis=1)
        below = np.cumsum(zeros, axis=1) - zeros / 2.0
        pairs = ones.sum(1) * zeros.sum(1)
        return np.divide((ones * below).sum(1), pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)

    return resample(len(labels), aurocs, seed=seed)


Draws = Float[ndarray, "draws"]
"""A statistic of all clients, followed by the same statistic of bootstrap samples of them."""
OfCounts = Callable[[Float[ndarray, "draws clients"]], Float[ndarray, "draws"]]
"""A statistic by how often each client is drawn."""
MOST_PAIRED = 3000
"""Largest number of clients whose pairs are compared for a concordance; of more clients, the first ones are."""


def interval_of(draws: Draws) -> Interval:
    """The statistic of all clients with its 95% interval."""
    return percentile_interval(float(draws[0]), draws[1:])


def drawn_statistic(clients: int, statistic: OfCounts, resamples: int) -> Draws:
    """A statistic of all clients, followed by so many bootstrap draws of it, which may be none."""
    whole = statistic(np.ones((1, clients)))
    if not resamples:
        return whole
    drawn = resample(clients, lambda indices: statistic(count_draws(indices)), resamples=resamples)
    return np.concatenate([whole, drawn])


def auroc_draws(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], resamples: int = RESAMPLES) -> Draws:
    """The AUROC and its bootstrap draws."""
    whole = np.array([auroc(labels, scores)])
    return np.concatenate([whole, resampled_aurocs(labels, scores, 0)]) if resamples else whole


def mean_draws(values: Float[ndarray, "clients"], resamples: int = RESAMPLES) -> Draws:
    """The mean of a value of each client and its bootstrap draws."""
    return ratio_draws(values, np.ones(len(values)), resamples)


def ratio_draws(above: Float[ndarray, "clients"], below: Float[ndarray, "clients"], resamples: int = RESAMPLES) -> Draws:
    """A sum over clients divided by another, and the bootstrap draws of the ratio."""
    parts = np.stack([above, below], axis=1)

    def ratios(counts: Float[ndarray, "draws clients"]) -> Float[ndarray, "draws"]:
        sums = counts @ parts
        return np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), np.nan), where=sums[:, 1] != 0)

    return drawn_statistic(len(parts), ratios, resamples)


def average_precision_draws(
    labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], resamples: int = RESAMPLES
) -> Draws:
    """The average precision, the area below the curve of precision by recall, and its bootstrap draws."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)  # where runs of equal scores end
    positive = (labels[order] == 1).astype(float)

    def precisions(counts: Float[ndarray, "draws clients"]) -> Float[ndarray, "draws"]:
        drawn = counts[:, order]
        right = np.cumsum(drawn * positive, axis=1)[:, ends]
        taken = np.cumsum(drawn, axis=1)[:, ends]
        gained = np.diff(right, axis=1, prepend=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            areas: ndarray = np.nansum(gained * right / taken, axis=1) / right[:, -1]
        return areas

    return drawn_statistic(len(labels), precisions, resamples)


def concordance_draws(
    times: Float[ndarray, "clients"],
    observed: Float[ndarray, "clients"],
    expected: Float[ndarray, "clients"],
    resamples: int = RESAMPLES,
) -> Draws:
    """Share of comparable pairs of clients whose expected times are in the order of the real ones, a tie counting half.

    A pair is comparable if the earlier of the two times was observed (Harrell's concordance index).
    """
    times, observed, expected = (values[:MOST_PAIRED] for values in (times, observed, expected))
    comparable = (times[:, None] < times[None, :]) & (observed[:, None] > 0)
    right = comparable * ((expected[:, None] < expected[None, :]) + 0.5 * (expected[:, None] == expected[None, :]))
    matrices = [matrix.astype(np.float32) for matrix in (right, comparable)]

    def shares(counts: Float[ndarray, "draws clients"]) -> Float[ndarray, "draws"]:
        single = counts.astype(np.float32)
        above, below = (((single @ matrix) * single).sum(1, dtype=np.float64) for matrix in matrices)
        return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)

    return drawn_statistic(len(times), shares, resamples)
