"""The vectors that a model gives of texts, beside those that it should give."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy import stats

from subquad.results import Row
from subquad.statistics import percentile_interval, resample

NEIGHBOURS = 10
PAIRS = 500  # largest number of pairs of texts whose similarities are compared
FEW = 10  # texts below which neighbours and ranks of similarities say nothing
DRAWS = 400  # samples of the bootstrap


class Judged(NamedTuple):
    """A figure, and the ends of its 95% interval where they are known."""

    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    length: int | None = None  # tokens of the texts that it is measured on, where it is by length
    outside: float | None = None  # share of these texts' pairs of tokens that the mechanism does not weigh exactly

    def row(self) -> Row:
        """The figure as a row, without what is not known."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class Figure(NamedTuple):
    """A figure that is computed from some of a number of things, or from all of them."""

    metric: str
    size: int
    of: Callable[[Int[ndarray, "some"]], float]

    def judged(self, *, interval: bool = True) -> Judged:
        """The figure of all things, with a bootstrap interval where one is wanted."""
        value = self.of(np.arange(self.size))
        if not interval:
            return Judged(self.metric, value)
        draws = resample(self.size, lambda drawn: np.array([self.of(some) for some in drawn]), resamples=DRAWS)
        return Judged(self.metric, *percentile_interval(value, draws))


def compare_vectors(wanted: Float[ndarray, "texts w"], found: Float[ndarray, "texts w"], seed: int) -> list[Figure]:
    """Vectors of length 1 with those that they should be: their angles and, unless they are few, what is near to what."""
    cosine = (wanted * found).sum(1)
    figures = [
        mean_figure("cosine", cosine),
        Figure("cosine, 5th percentile", len(cosine), lambda some: float(np.quantile(cosine[some], 0.05))),
    ]
    if len(wanted) < FEW:
        return figures
    shared = common_neighbours(wanted, found)
    return [*figures, compare_similarities(wanted, found, seed), mean_figure("neighbours", shared)]


def compare_similarities(wanted: Float[ndarray, "texts w"], found: Float[ndarray, "texts w"], seed: int) -> Figure:
    """Spearman's correlation of the similarities of pairs of texts with what they should be."""
    one, other = some_pairs(len(wanted), PAIRS, seed)
    before, after = ((vectors[one] * vectors[other]).sum(1) for vectors in (wanted, found))
    return Figure("rank correlation", len(one), rank_correlation(before, after))


def mean_figure(metric: str, values: Float[ndarray, "n"]) -> Figure:
    """The mean of some values."""
    return Figure(metric, len(values), lambda some: float(values[some].mean()))


def common_neighbours(wanted: Float[ndarray, "texts w"], found: Float[ndarray, "texts w"]) -> Float[ndarray, "texts"]:
    """Share of each text's nearest neighbours that are the same in both."""
    count = min(NEIGHBOURS, len(wanted) - 1)
    nearest = [_nearest(vectors, count) for vectors in (wanted, found)]
    return np.array([len({*a} & {*b}) / count for a, b in zip(*nearest, strict=True)])


def _nearest(vectors: Float[ndarray, "texts w"], count: int) -> Int[ndarray, "texts count"]:
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1, kind="stable")[:, :count]


def some_pairs(texts: int, count: int, seed: int) -> tuple[Int[ndarray, "pairs"], Int[ndarray, "pairs"]]:
    """Different pairs of different texts."""
    one, other = np.triu_indices(texts, 1)
    some = np.random.default_rng(seed).permutation(len(one))[:count]
    return one[some], other[some]


def rank_correlation(a: Float[ndarray, "n"], b: Float[ndarray, "n"]) -> Callable[[Int[ndarray, "some"]], float]:
    """Spearman's correlation of drawn values by their ranks among all values; 0 where all are equal."""
    ranks = np.stack([stats.rankdata(values) for values in (a, b)])

    def among(some: Int[ndarray, "some"]) -> float:
        x, y = ranks[:, some] - ranks[:, some].mean(1, keepdims=True)
        size = math.sqrt(float((x @ x) * (y @ y)))
        return float(x @ y) / size if size else 0.0

    return among
