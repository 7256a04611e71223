"""Metrics of scores for two classes, with intervals."""

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.statistics import Interval, count_draws, percentile_interval, resample


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
