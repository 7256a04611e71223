"""How well scores tell two classes apart, and how sure that is."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.stats import rankdata

RESAMPLES = 1000
ROOM = 4_000_000  # numbers at a time


class Interval(NamedTuple):
    """A value, and the interval that holds it with a confidence of 95%."""

    value: float
    low: float
    high: float


def auroc(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"]) -> float:
    """The share of pairs, one client of each class, in which class 1 has the higher score; a tie counts half."""
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((rankdata(scores)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def accuracy(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"]) -> float:
    """The share of clients whose score is on the right side of one half."""
    return float(((scores >= 0.5) == (labels == 1)).mean())


def auroc_interval(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], seed: int = 0) -> Interval:
    """By the bootstrap: clients drawn again with replacement."""
    return _interval(auroc(labels, scores), resampled_aurocs(labels, scores, seed))


def accuracy_interval(labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], seed: int = 0) -> Interval:
    """By the bootstrap."""
    right = ((scores >= 0.5) == (labels == 1)).astype(float)
    drawn = np.concatenate([counts @ right / len(right) for counts in _resamples(len(labels), seed)])
    return _interval(accuracy(labels, scores), drawn)


def auroc_difference(
    labels: Int[ndarray, "clients"], first: Float[ndarray, "clients"], second: Float[ndarray, "clients"], seed: int = 0
) -> Interval:
    """How much higher the first scores' AUROC is than the second's, on the same clients, drawn again together."""
    drawn = resampled_aurocs(labels, first, seed) - resampled_aurocs(labels, second, seed)
    return _interval(auroc(labels, first) - auroc(labels, second), drawn)


def _interval(value: float, drawn: Float[ndarray, "resamples"]) -> Interval:
    known = drawn[np.isfinite(drawn)]  # of few clients, some drawings have one class only
    if not len(known):
        return Interval(value, value, value)
    low, high = np.quantile(known, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def _resamples(clients: int, seed: int) -> list[Float[ndarray, "resamples clients"]]:
    """How often each client is drawn. The same for the same seed, so that two scores can be compared pair by pair."""
    rng = np.random.default_rng(seed)
    rows = max(1, min(RESAMPLES, ROOM // clients))
    parts = []
    for start in range(0, RESAMPLES, rows):
        number = min(rows, RESAMPLES - start)
        drawn = rng.integers(clients, size=(number, clients)) + clients * np.arange(number)[:, None]
        parts.append(np.bincount(drawn.ravel(), minlength=number * clients).reshape(number, clients).astype(np.float32))
    return parts


def resampled_aurocs(
    labels: Int[ndarray, "clients"], scores: Float[ndarray, "clients"], seed: int
) -> Float[ndarray, "resamples"]:
    """The scores are sorted once: pairs are then counted by how many of class 0 stand below, and half of those beside."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=np.nan) != 0)  # of equal scores
    positive = (labels[order] == 1).astype(float)
    found = []
    for counts in _resamples(len(labels), seed):
        drawn = counts[:, order].astype(float)
        ones = np.add.reduceat(drawn * positive, starts, axis=1)
        zeros = np.add.reduceat(drawn * (1.0 - positive), starts, axis=1)
        below = np.cumsum(zeros, axis=1) - zeros / 2.0
        pairs = ones.sum(1) * zeros.sum(1)
        found.append(np.divide((ones * below).sum(1), pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))
    return np.concatenate(found)
