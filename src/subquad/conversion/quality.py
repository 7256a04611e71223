"""Quality of a converted model relative to the original, on held-out texts.

Development texts decide which stage of a conversion is kept. Test texts decide nothing: they only measure the result.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.conversion.convertible import Convertible, Pairs, Split, some_of
from subquad.conversion.heads import head_rows
from subquad.conversion.plan import Plan
from subquad.conversion.sight import Change, Sight, change, far_tokens
from subquad.conversion.vectors import (
    FEW,
    Figure,
    Judged,
    compare_similarities,
    compare_vectors,
    mean_figure,
    rank_correlation,
)
from subquad.results import Row
from subquad.statistics import grouped_mean, grouped_sums
from subquad.tasks.mlm.masking import MaskedBatch

TOKENS = 8192  # number of tokens that a model reads at a time
SPOKEN = 1024  # number of tokens at a time with logits for each, which take much memory
STREAMS: dict[Split, int] = {"test": 10_001, "development": 20_001}  # added to the seed when held-out texts are drawn
CHANGED = 10_002  # added to the seed when the replaced excerpts are drawn


class Quality:
    """Measures models on held-out texts against the original's outputs."""

    def __init__(self, original: Convertible, plan: Plan, sight: Sight, seed: int) -> None:
        """`sight` belongs to the new mechanism and decides which tokens count as far."""
        self.original, self.plan, self.sight, self.seed = original, plan, sight, seed
        self._kept: dict[tuple[Split, int], MaskedBatch] = {}
        self._wanted: dict[tuple[Split, int], Float[ndarray, "texts w"]] = {}

    @property
    def is_causal(self) -> bool:
        """Whether the model is a causal language model."""
        return self.original.kind == "causal"

    @property
    def decides(self) -> str:
        """Name of the metric on development texts by which the best model is chosen."""
        return "cosine" if self.original.kind == "encoder" else "perplexity"

    def develop(self, model: nn.Module) -> list[Judged]:
        """Measures a model on development texts, without intervals. The first figure is the one that decides."""
        if self.original.kind != "encoder":
            answers = self._answers(model, self._texts("development", self.plan.lengths[0]))
            return [Judged("perplexity", _perplexity(float(answers.nats.mean())))]
        return [figure.judged(interval=False) for figure in self._all_lengths(model, "development")]

    def test(self, model: nn.Module, sight: Sight) -> list[Judged]:
        """Measures a model, whose mechanism has this `sight`, on test texts: overall, by length, and for far tokens."""
        figures = self._test_vectors(model) if self.original.kind == "encoder" else self._test_answers(model)
        return [figure._replace(outside=self._outside(figure, sight)) for figure in figures]

    def by_text(self, model: nn.Module, split: Split) -> tuple[Float[ndarray, "texts"], Float[ndarray, "texts"]]:
        """Totals and counts of each of the longest texts: nats of the chosen tokens, or the cosine with the original."""
        longest = self.plan.lengths[0]
        if self.original.kind == "encoder":
            wanted, vectors = self._vectors(model, split, longest)
            return (wanted * vectors).sum(1), np.ones(len(wanted))
        return self._answers(model, self._texts(split, longest)).by_text()

    def chosen_tokens(self, split: Split) -> list[Int[ndarray, "_"]]:
        """The right tokens at the chosen places of each of the longest texts of a language model."""
        batch = self._texts(split, self.plan.lengths[0])
        return [right[chosen].numpy() for right, chosen in zip(batch.right, batch.chosen, strict=True)]

    def _outside(self, judged: Judged, sight: Sight) -> float | None:
        """Share of token pairs that a mechanism does not weigh exactly in a figure's texts; None if it does not apply."""
        if judged.metric == "spearman":
            return self._outside_pairs(sight)
        return None if judged.length is None else sight.outside(judged.length, causal=self.is_causal)

    def heads(self, model: nn.Module) -> list[Row]:
        """Rows by layer and head: divergence from the original's attention on the same texts, and effective rank."""
        texts, length = self.plan.heads_texts, self.plan.heads_length
        if not texts:
            return []
        held_out = self.original.held_out("test", texts, length, self.seed + STREAMS["test"])
        return head_rows(self.original, model, some_of(held_out, slice(texts)))

    def _texts(self, split: Split, length: int) -> MaskedBatch:
        """Returns held-out texts of a length, the same for every model."""
        if (split, length) not in self._kept:
            count = self.plan.tests if split == "test" else self.plan.developments
            stream = STREAMS[split] + 10 * self.plan.lengths.index(length)
            held_out = self.original.held_out(split, count, length, self.seed + stream)
            self._kept[split, length] = some_of(held_out, slice(count)) if self.plan.is_limited else held_out
        return self._kept[split, length]

    # Encoders: vectors compared with the original's.

    def _vectors(self, model: nn.Module, split: Split, length: int) -> tuple[ndarray, ndarray]:
        """Returns the original's vectors of the texts of a length, and the model's."""
        if (split, length) not in self._wanted:
            self._wanted[split, length] = self._embed(self.original.teacher, [self._texts(split, length)])
        wanted = self._wanted[split, length]
        if model is self.original.teacher:
            return wanted, wanted
        return wanted, self._embed(model, [self._texts(split, length)])

    def _all_lengths(self, model: nn.Module, split: Split) -> list[Figure]:
        vectors_by_length = [self._vectors(model, split, length) for length in self.plan.lengths]
        wanted, vectors = (np.concatenate(side) for side in zip(*vectors_by_length, strict=True))
        return compare_vectors(wanted, vectors, self.seed)

    def _test_vectors(self, model: nn.Module) -> Iterator[Judged]:
        vectors_by_length = {length: self._vectors(model, "test", length) for length in self.plan.lengths}
        wanted, vectors = (np.concatenate(side) for side in zip(*vectors_by_length.values(), strict=True))
        longest = self.plan.lengths[0]
        far = mean_figure(f"cosine at {longest}", (vectors_by_length[longest][0] * vectors_by_length[longest][1]).sum(1))
        for figure in (*compare_vectors(wanted, vectors, self.seed), far, *self._far_change(model)):
            yield figure.judged()
        if self.plan.pairs:
            yield self._agreement(model)
        for length, (before, after) in vectors_by_length.items():
            figures = [mean_figure("cosine", (before * after).sum(1))]
            if len(before) >= FEW:
                figures.append(compare_similarities(before, after, self.seed))
            for figure in figures:
                yield figure._replace(metric=f"{figure.metric} by length").judged()._replace(length=length)

    def _far_change(self, model: nn.Module) -> Iterator[Figure]:
        """Figures of the effect far from a replaced excerpt: cosine and size relative to the effect in the original."""
        if self._change is None:
            return
        exact_change = self._original_change
        model_change = exact_change if model is self.original.teacher else self._change_of(model, self._change)
        sizes = np.linalg.norm(exact_change, axis=1), np.linalg.norm(model_change, axis=1)
        cosine = (exact_change * model_change).sum(1) / np.maximum(sizes[0] * sizes[1], np.finfo(float).tiny)
        ratio = sizes[1] / np.maximum(sizes[0], np.finfo(float).tiny)
        yield mean_figure("far change", cosine)
        yield Figure("far change, size", len(ratio), lambda drawn: float(np.median(ratio[drawn])))

    @cached_property
    def _change(self) -> Change | None:
        texts = self._texts("test", self.plan.lengths[0])
        drawing = torch.Generator().manual_seed(self.seed + CHANGED)
        return change(some_of(texts, slice((len(texts.tokens) + 1) // 2)), self.sight.reach, drawing)

    @cached_property
    def _original_change(self) -> Float[ndarray, "texts w"]:
        assert self._change is not None
        return self._change_of(self.original.teacher, self._change)

    @torch.no_grad()
    def _change_of(self, model: nn.Module, changed: Change) -> Float[ndarray, "texts w"]:
        """Difference that the replaced excerpt makes to the vector pooled over the far places."""
        changes = []
        for before, after, far in zip(
            *(_pieces(part) for part in (changed.before, changed.after)), _parts(changed), strict=True
        ):
            vectors_before, vectors_after = (
                self.original.pool(self.original.outputs(model, batch).hidden[-1].double(), far) for batch in (before, after)
            )
            changes.append(vectors_after - vectors_before)
        return torch.cat(changes).cpu().numpy()

    @cached_property
    def _some_pairs(self) -> Pairs:
        """As many sentence pairs as the plan has time for."""
        pairs = self.original.pairs(self.plan.pairs)
        assert pairs is not None
        return pairs

    def _agreement(self, model: nn.Module) -> Judged:
        """Spearman correlation of the model's similarities with human scores of sentence pairs."""
        pairs = self._some_pairs
        alike = (self._embed(model, pairs.first) * self._embed(model, pairs.second)).sum(1)
        return Figure("spearman", len(alike), rank_correlation(alike, np.array(pairs.scores))).judged()

    def _outside_pairs(self, sight: Sight) -> float:
        """Mean share of token pairs not weighed exactly, over the sentences of all pairs."""
        sides = [*self._some_pairs.first, *self._some_pairs.second]
        return float(np.mean([sight.outside(n, causal=False) for batch in sides for n in batch.keep.sum(1).tolist()]))

    @torch.no_grad()
    def _embed(self, model: nn.Module, batches: Sequence[MaskedBatch]) -> Float[ndarray, "texts w"]:
        """Returns one vector of norm 1 for each text."""
        normalized = []
        for batch in (part for whole in batches for part in _pieces(whole)):
            vectors = self.original.pool(self.original.outputs(model, batch).hidden[-1], batch.keep)
            normalized.append(F.normalize(vectors.double(), dim=1))
        return torch.cat(normalized).cpu().numpy()

    # Language models: predictions of the chosen tokens.

    @torch.no_grad()
    def _answers(self, model: nn.Module, batch: MaskedBatch) -> "Answers":
        nats, hits = [], []
        for part in _pieces(batch, SPOKEN if self.is_causal else TOKENS):
            logits = self.original.outputs(model, part, logits=True).logits
            assert logits is not None
            right = part.right[part.chosen]
            nats.append(F.cross_entropy(logits.float(), right, reduction="none"))
            hits.append(logits.argmax(1) == right)
        return Answers(torch.cat(nats).double().cpu().numpy(), torch.cat(hits).double().cpu().numpy(), batch.chosen)

    def _test_answers(self, model: nn.Module) -> Iterator[Judged]:
        """Yields perplexity, exp of the mean of -log p over the chosen tokens, overall and by length, and for far tokens."""
        longest = self.plan.lengths[0]
        answers_by_length = {length: self._answers(model, self._texts("test", length)) for length in self.plan.lengths}
        yield answers_by_length[longest].perplexity("perplexity")
        far = self._far_places
        if bool(far.any()):
            yield answers_by_length[longest].among(far).perplexity("far perplexity")
            yield answers_by_length[longest].among(far).recall("far recall")
        for length, answers in answers_by_length.items():
            if len(answers.nats):
                yield answers.perplexity("perplexity by length")._replace(length=length)

    @cached_property
    def _far_places(self) -> Bool[Tensor, "b n"]:
        return far_tokens(self._texts("test", self.plan.lengths[0]), self.sight.reach, causal=self.is_causal)


class Answers(NamedTuple):
    """A language model's predictions of the chosen tokens, in the order of the texts."""

    nats: Float[ndarray, "tokens"]  # -log of the right token's probability
    hits: Float[ndarray, "tokens"]  # 1 where the right token is the likeliest
    chosen: Bool[Tensor, "b n"]  # places of these tokens

    def among(self, places: Bool[Tensor, "b n"]) -> "Answers":
        """Returns the answers at these places only."""
        selected = places[self.chosen].cpu().numpy()
        return Answers(self.nats[selected], self.hits[selected], places)

    @property
    def _counts(self) -> Int[ndarray, "b"]:
        counts: ndarray = self.chosen.sum(1).cpu().numpy()
        return counts

    def by_text(self) -> tuple[Float[ndarray, "texts"], Float[ndarray, "texts"]]:
        """Sum of -log p and number of tokens of each text."""
        return grouped_sums(self.nats, self._counts), self._counts.astype(float)

    def perplexity(self, metric: str) -> Judged:
        """Perplexity, exp of the mean of -log p. Its interval comes from resampling texts."""
        value, low, high = map(_perplexity, grouped_mean(self.nats, self._counts))
        return Judged(metric, value, low, high)

    def recall(self, metric: str) -> Judged:
        """Share of the tokens whose likeliest prediction is right."""
        return Judged(metric, *grouped_mean(self.hits, self._counts))


def _perplexity(nats: float) -> float:
    return math.exp(min(700.0, nats))


def _pieces(batch: MaskedBatch, tokens: int = TOKENS) -> Iterator[MaskedBatch]:
    for start, end in _bounds(batch.tokens.shape, tokens):
        yield some_of(batch, slice(start, end))


def _parts(changed: Change) -> Iterator[Bool[Tensor, "some n"]]:
    for start, end in _bounds(changed.far.shape, TOKENS):
        yield changed.far[start:end]


def _bounds(shape: Sequence[int], tokens: int) -> Iterator[tuple[int, int]]:
    size = max(1, tokens // shape[1])
    return ((start, start + size) for start in range(0, shape[0], size))
