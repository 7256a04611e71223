"""How much of the original is left in a converted model, on text that nobody learned from."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from scipy import stats
from torch import Tensor, nn

from subquad.attention.looking import watched
from subquad.conversion.convertible import Convertible
from subquad.conversion.matching import diverge
from subquad.errors import SubquadError
from subquad.measure.spectrum import effective_rank, singular_values
from subquad.results import Row
from subquad.tasks.events.metrics import mean_interval
from subquad.tasks.mlm.masking import MaskedBatch

USUAL = 256  # tokens of the longest of the texts whose vectors are compared; those of the model's longest are by themselves
SHORTEST, LENGTHS = 8, 5  # tokens; how many lengths there are at most, each half of the one before
NEIGHBOURS = 10
PAIRS = 500  # of texts, whose likeness is compared
LONG = 8  # so many times fewer texts of the longest length
WATCHED = 5  # so many times fewer texts while a stage is under way
LOOKED = 4  # texts whose attention matrices are compared
TOKENS = 8192  # that a model reads at a time,
SPOKEN = 1024  # and where it says something of each of them, of which logits are as many as the vocabulary
DRAWS = 400  # of the bootstrap
HELD_OUT, TAKEN = 10_001, 10_002  # what held-out text is drawn by, beside the seed


class Judged(NamedTuple):
    """A figure, and the ends of its 95% interval where they are known."""

    metric: str
    value: float
    low: float | None = None
    high: float | None = None

    def row(self) -> Row:
        """As it is kept."""
        ends = {} if self.low is None else {"low": self.low, "high": self.high}
        return {"metric": self.metric, "value": self.value, **ends}


class Figure(NamedTuple):
    """What is computed of some of so many things, or of all of them."""

    metric: str
    size: int
    of: Callable[[Int[ndarray, "some"]], float]

    def judged(self, *, interval: bool = True) -> Judged:
        """Of all; with the middle 95% over draws of as many, with replacement, where an interval is wanted."""
        drawing = np.random.default_rng(0)
        drawn = [self.of(drawing.integers(self.size, size=self.size)) for _ in range(DRAWS if interval else 0)]
        ends = [float(end) for end in np.quantile(drawn, [0.025, 0.975])] if drawn else []
        return Judged(self.metric, self.of(np.arange(self.size)), *ends)


class Quality:
    """Held-out text, and what the original makes of it."""

    def __init__(self, original: Convertible, texts: int, seed: int) -> None:
        self.original, self.texts, self.seed = original, texts, seed

    def judge(self, model: nn.Module, *, whole: bool) -> list[Judged]:
        """Of a model; on fewer texts unless the `whole` is wanted."""
        if self.original.kind == "encoder":
            return list(self._vectors(model, whole=whole))
        return [self._perplexity(model, whole=whole)]

    @cached_property
    def _short(self) -> list[MaskedBatch]:
        found = lengths(min(USUAL, self.original.longest))
        each = max(2, self.texts // len(found))
        return [self.original.held_out(each, length, self.seed + HELD_OUT + at) for at, length in enumerate(found)]

    @cached_property
    def _long(self) -> MaskedBatch:
        count = max(2, self.texts // (LONG if self.original.kind == "encoder" else LONG // 2))
        return self.original.held_out(count, self.original.longest, self.seed + TAKEN)

    @cached_property
    def _wanted(self) -> tuple[Float[ndarray, "texts w"], Float[ndarray, "texts w"]]:
        """The original's vectors."""
        return self._embed(self.original.teacher, self._short), self._embed(self.original.teacher, [self._long])

    def _vectors(self, model: nn.Module, *, whole: bool) -> Iterator[Judged]:
        """Beside the original's own."""
        every = 1 if whole else WATCHED
        is_original = model is self.original.teacher
        wanted, wanted_long = (part[::every] for part in self._wanted)
        kept = [_some(batch, slice(None, None, every)) for batch in self._short]
        if not whole:  # as many of each length as there are below
            wanted = np.concatenate(
                [part[::every] for part in _split(self._wanted[0], [len(b.tokens) for b in self._short])]
            )
        found = wanted if is_original else self._embed(model, kept)
        long = wanted_long if is_original else self._embed(model, [_some(self._long, slice(None, None, every))])
        cosine = (wanted_long * long).sum(1)
        far = Figure(f"cosine at {self.original.longest}", len(cosine), _mean_of(cosine))
        for figure in (*compare_vectors(wanted, found, self.seed), far):
            yield figure.judged(interval=whole)
        if whole and self.original.pairs() is not None:
            yield self._agreement(model)

    def _agreement(self, model: nn.Module) -> Judged:
        """With people's scores of pairs of sentences."""
        pairs = self.original.pairs()
        assert pairs is not None
        alike = (self._embed(model, pairs.first) * self._embed(model, pairs.second)).sum(1)
        scores = np.array(pairs.scores)
        return Figure("spearman", len(alike), rank_correlation(alike, scores)).judged()

    @torch.no_grad()
    def _embed(self, model: nn.Module, batches: Sequence[MaskedBatch]) -> Float[ndarray, "texts w"]:
        """Vectors of length 1."""
        found = []
        for batch in (part for whole in batches for part in _pieces(whole)):
            vectors = self.original.pool(self.original.outputs(model, batch).hidden[-1], batch.keep)
            found.append(F.normalize(vectors.double(), dim=1))
        return torch.cat(found).cpu().numpy()

    @torch.no_grad()
    def _perplexity(self, model: nn.Module, *, whole: bool) -> Judged:
        """exp of the mean of -log p over the tokens that are to be found; stretches are drawn again for its interval."""
        batch = _some(self._long, slice(None, None, 1 if whole else WATCHED))
        nats, counts = [], batch.chosen.sum(1).numpy()
        for part in _pieces(batch, TOKENS if self.original.kind == "masked" else SPOKEN):
            logits = self.original.outputs(model, part, logits=True).logits
            assert logits is not None
            nats.append(F.cross_entropy(logits.float(), part.right[part.chosen], reduction="none"))
        value, low, high = mean_interval(torch.cat(nats).double().cpu().numpy(), counts)
        return Judged("perplexity", *(math.exp(min(700.0, end)) for end in (value, low, high)))

    @torch.no_grad()
    def heads(self, model: nn.Module) -> list[Row]:
        """By layer and head: how far its attention is from the original's on the same text, and its effective rank."""
        held_out = self.original.held_out(LOOKED, min(USUAL, self.original.longest), self.seed + HELD_OUT)
        batch = _some(held_out, slice(LOOKED))
        sums: dict[tuple[str, int, int], float] = {}
        try:
            for row in range(len(batch.tokens)):
                own = _some(batch, slice(row, row + 1))
                own = MaskedBatch(*(part[:, : int(own.keep.sum())] for part in own))
                exact, found = (self._matrices(one, own) for one in (self.original.teacher, model))
                for layer, matrix in found.items():
                    divergence = diverge(exact[layer], matrix, torch.ones(1, matrix.shape[2], dtype=matrix.dtype))
                    rank = effective_rank(singular_values(matrix[0]))
                    for metric, values in (("attention divergence", divergence), ("effective rank", rank)):
                        for head, value in enumerate(values.tolist()):
                            sums[metric, layer, head] = sums.get((metric, layer, head), 0.0) + value / len(batch.tokens)
        except SubquadError:  # a mechanism without matrices
            return []
        return [
            {"metric": metric, "value": value, "layer": layer, "head": head}
            for (metric, layer, head), value in sorted(sums.items())
        ]

    def _matrices(self, model: nn.Module, batch: MaskedBatch) -> dict[int, Tensor]:
        """By layer; of those that have a sliding window of the model's own there is none."""
        layer_of = {id(attend): layer for layer, attend in enumerate(self.original.mechanisms(model))}
        with watched(self.original.mechanisms(model)) as calls:
            self.original.outputs(model, batch)
        return {layer_of[id(call.attend)]: call.matrix() for call in calls}


def lengths(longest: int) -> list[int]:
    """From the longest down, each half of the one before."""
    found = [longest]
    while found[-1] // 2 >= SHORTEST and len(found) < LENGTHS:
        found.append(found[-1] // 2)
    return found


def compare_vectors(wanted: Float[ndarray, "texts w"], found: Float[ndarray, "texts w"], seed: int) -> list[Figure]:
    """Vectors of length 1 with those that they should be."""
    cosine, shared = (wanted * found).sum(1), common_neighbours(wanted, found)
    one, other = some_pairs(len(wanted), PAIRS, seed)
    before, after = ((vectors[one] * vectors[other]).sum(1) for vectors in (wanted, found))
    return [
        Figure("cosine", len(cosine), _mean_of(cosine)),
        Figure("cosine, 5th percentile", len(cosine), lambda some: float(np.quantile(cosine[some], 0.05))),
        Figure("rank correlation", len(one), rank_correlation(before, after)),
        Figure("neighbours", len(shared), _mean_of(shared)),
    ]


def common_neighbours(wanted: Float[ndarray, "texts w"], found: Float[ndarray, "texts w"]) -> Float[ndarray, "texts"]:
    """Which share of a text's nearest ones are the same in both."""
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
    """Spearman's, of those that are drawn; 0 where all are the same. Ranks are those among all."""
    ranks = np.stack([stats.rankdata(values) for values in (a, b)])

    def among(some: Int[ndarray, "some"]) -> float:
        x, y = ranks[:, some] - ranks[:, some].mean(1, keepdims=True)
        size = math.sqrt(float((x @ x) * (y @ y)))
        return float(x @ y) / size if size else 0.0

    return among


def _mean_of(values: Float[ndarray, "n"]) -> Callable[[Int[ndarray, "n"]], float]:
    return lambda some: float(values[some].mean())


def _some(batch: MaskedBatch, rows: slice) -> MaskedBatch:
    return MaskedBatch(*(part[rows] for part in batch))


def _pieces(batch: MaskedBatch, tokens: int = TOKENS) -> Iterator[MaskedBatch]:
    size = max(1, tokens // batch.tokens.shape[1])
    for start in range(0, len(batch.tokens), size):
        yield _some(batch, slice(start, start + size))


def _split(vectors: Float[ndarray, "texts w"], sizes: Sequence[int]) -> list[Float[ndarray, "some w"]]:
    return np.split(vectors, np.cumsum(sizes)[:-1])
