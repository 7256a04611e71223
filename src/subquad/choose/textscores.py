"""Scores of a trained model and of its conversions on held-out texts, one by one, so that they can be compared in pairs."""

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from subquad.conversion.convertible import Convertible, Split
from subquad.conversion.plan import Plan
from subquad.conversion.quality import Quality
from subquad.conversion.sight import EVERYTHING
from subquad.results import Row
from subquad.statistics import Interval
from subquad.tasks.comparing import Best, Judged, judged_means

SPLITS: tuple[Split, ...] = ("development", "test")
SCORING_SHARE, MOST_TEXTS, LEAST_TEXTS = 0.06, 500, 8
"""Part of the budget in which models are scored, and the largest and smallest number of texts for it."""
FREQUENCY_TOKENS = 2**16
"""Number of training tokens whose frequencies are counted."""
UNIGRAMS = "frequencies of tokens"
"""Name of the trivial answer of a language model."""
NATS, COSINE = Best("nats_per_token", "low"), Best("cosine", "high")
"""Metrics of language models and of encoders."""


class Texts:
    """The texts of a race as data: how many tokens the model reads of each."""

    def __init__(self, lengths: Mapping[str, np.ndarray], complaints: tuple[str, ...]) -> None:
        self._lengths, self.complaints = dict(lengths), complaints

    def lengths(self) -> dict[str, np.ndarray]:
        """Number of tokens of each text, up to as many as the model takes."""
        return self._lengths

    def data_rows(self) -> list[Row]:
        """No further rows."""
        return []


def ranked_by(original: Convertible) -> Best:
    """The metric by which conversions of a model are ranked."""
    return COSINE if original.kind == "encoder" else NATS


class TextScores:
    """Scores models on the same held-out texts."""

    def __init__(self, original: Convertible, length: int, number: int, seed: int) -> None:
        """`length` is the number of tokens of the texts, `number` how many test texts there are."""
        self.original, self.seed = original, seed
        self.quality = Quality(original, text_plan(length, number), EVERYTHING, seed)

    def of(self, model: nn.Module, split: Split) -> Judged:
        """Nats of the tokens of each text, or the cosine of its vector with the original's."""
        return self._judged(*self.quality.by_text(model, split))

    def frequencies(self, split: Split) -> Judged:
        """Scores of the frequencies of tokens in the training texts, each counted once more."""
        batch = self.original.batch(FREQUENCY_TOKENS, self.original.longest, self.seed)
        tokens = self.quality.chosen_tokens(split)
        size = 1 + max(int(batch.right.max()), *(int(each.max(initial=0)) for each in tokens))
        counts = 1.0 + np.bincount(batch.right[batch.keep].numpy(), minlength=size)
        nats = -np.log(counts / counts.sum())
        return self._judged(np.array([nats[each].sum() for each in tokens]), np.array([float(len(each)) for each in tokens]))

    def _judged(self, totals: np.ndarray, counts: np.ndarray) -> Judged:
        return judged_means(
            *ranked_by(self.original), "share" if self.original.kind == "encoder" else "nats", totals, counts
        )


def number_of_texts(original: Convertible, length: int, seconds: float, seed: int) -> int:
    """Number of test texts that a model is scored on, with half as many for development, in a part of so many seconds."""
    probe = TextScores(original, length, 2, seed)
    probe.of(original.teacher, "test")
    begun = time.monotonic()
    probe.of(original.teacher, "test")
    each = (time.monotonic() - begun) / 2
    return int(min(MOST_TEXTS, max(LEAST_TEXTS, SCORING_SHARE * seconds / (1.5 * max(1e-6, each)))))


def text_plan(length: int, number: int) -> Plan:
    """A plan for measuring quality on so many texts of a length, and nothing else."""
    return Plan([length], number, pairs=0, heads_length=0, heads_texts=0, batch_tokens=length, is_limited=True)


def perplexity_rows(rows: Sequence[Row]) -> list[Row]:
    """The perplexity of each model, exp of its nats per token, with its interval; none for encoders."""
    return [
        row | {"metric": "perplexity", "unit": "tokens", **{end: math.exp(min(700.0, row[end])) for end in Interval._fields}}
        for row in rows
        if row["metric"] == "quality" and row["of"] == "nats_per_token"
    ]
