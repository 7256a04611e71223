"""Compares a model's vectors of texts with the original's."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.results import Row
from subquad.statistics import percentile_interval, resample

NEIGHBOURS = 10  # number of nearest neighbours that are compared
PAIRS = 500  # largest number of pairs of texts whose similarities are compared
FEW = 10  # with fewer texts, neighbours and ranks of similarities are not compared
DRAWS = 400  # number of bootstrap samples


class Judged(NamedTuple):
    """A measured figure, with the ends of its 95% interval if they are known."""

    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    length: int | None = None  # length in tokens of the texts, for a figure by length
    outside: float | None = None  # share of token pairs that the mechanism does not weigh exactly

    def row(self) -> Row:
        """Returns the figure as a row, without the fields that are None."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class Figure(NamedTuple):
    """A figure that can be computed from any subset of `size` items, given their indices."""

    metric: str
    size: int
    of: Callable[[Int[ndarray, "some"]], float]

    def judged(self, *, interval: bool = True) -> Judged:
        """Computes the figure of all items, with a bootstrap interval if `interval`."""
        value = self.of(np.arange(self.size))
        if not interval:
            return Judged(self.metric, value)
        draws = resample(self.size, lambda drawn: np.array([self.of(indices) for indices in drawn]), resamples=DRAWS)
        return Judged(self.metric, *percentile_interval(value, draws))


def compare_vectors(wanted: Float[ndarray, "texts w"], vectors: Float[ndarray, "texts w"], seed: int) -> list[Figure]:
    """Compares vectors of norm 1: their cosines and, with at least `FEW` texts, similarities and neighbours."""
    cosine = (wanted * vectors).sum(1)
    figures = [
        mean_figure("cosine", cosine),
        Figure("cosine, 5th percentile", len(cosine), lambda indices: float(np.quantile(cosine[indices], 0.05))),
    ]
    if len(wanted) < FEW:
        return figures
    shared = common_neighbours(wanted, vectors)
    return [*figures, compare_similarities(wanted, vectors, seed), mean_figure("neighbours", shared)]


def compare_similarities(wanted: Float[ndarray, "texts w"], vectors: Float[ndarray, "texts w"], seed: int) -> Figure:
    """Spearman correlation of the similarities of text pairs between two sets of vectors."""
    first, second = some_pairs(len(wanted), PAIRS, seed)
    before, after = ((side[first] * side[second]).sum(1) for side in (wanted, vectors))
    return Figure("rank correlation", len(first), rank_correlation(before, after))


def mean_figure(metric: str, values: Float[ndarray, "n"]) -> Figure:
    """Figure that is the mean of values."""
    return Figure(metric, len(values), lambda indices: float(values[indices].mean()))


def common_neighbours(wanted: Float[ndarray, "texts w"], vectors: Float[ndarray, "texts w"]) -> Float[ndarray, "texts"]:
    """Share of each text's nearest neighbours that are the same in both sets of vectors."""
    count = min(NEIGHBOURS, len(wanted) - 1)
    nearest = [_nearest(side, count) for side in (wanted, vectors)]
    return np.array([len({*a} & {*b}) / count for a, b in zip(*nearest, strict=True)])


def _nearest(vectors: Float[ndarray, "texts w"], count: int) -> Int[ndarray, "texts count"]:
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1, kind="stable")[:, :count]


def some_pairs(texts: int, count: int, seed: int) -> tuple[Int[ndarray, "pairs"], Int[ndarray, "pairs"]]:
    """Draws at most `count` distinct pairs of different texts, as two arrays of indices."""
    first, second = np.triu_indices(texts, 1)
    drawn = np.random.default_rng(seed).permutation(len(first))[:count]
    return first[drawn], second[drawn]


def rank_correlation(a: Float[ndarray, "n"], b: Float[ndarray, "n"]) -> Callable[[Int[ndarray, "some"]], float]:
    """Figure function: Spearman correlation of a subset by ranks among all values; 0 if all are equal."""
    ranks = np.stack([scipy.stats.rankdata(values) for values in (a, b)])

    def among(indices: Int[ndarray, "some"]) -> float:
        x, y = ranks[:, indices] - ranks[:, indices].mean(1, keepdims=True)
        size = math.sqrt(float((x @ x) * (y @ y)))
        return float(x @ y) / size if size else 0.0

    return among
