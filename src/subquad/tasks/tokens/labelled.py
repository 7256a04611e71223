"""Labels of sequences of symbols: an encoder, beside logistic regression on how often each symbol occurs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.data.buckets import Buckets, bounded
from subquad.data.ragged import keep_of, pad
from subquad.data.splits import SplitName
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.tasks.base import Counted, Cut, LineForm, Predictions
from subquad.tasks.classify.model import TextClassifier
from subquad.tasks.lm.vocabulary import BEGIN
from subquad.tasks.mlm.limits import check_longest
from subquad.tasks.targets.linear import fit_linear
from subquad.tasks.targets.target import Target
from subquad.tasks.targets.task import TargetedTask
from subquad.tasks.tokens.loading import load_symbols
from subquad.tasks.tokens.source import Encoded, Source
from subquad.types import AttentionOptions

BAG = "linear model of token counts"
"""Name of the baseline."""
MOST_COUNTED = 500
"""Largest number of different tokens that the baseline counts, the most frequent ones."""
SHOWN = 40
"""Number of tokens of a sample that are shown."""


class LabelledBatch(NamedTuple):
    """Token ids of sequences, a mask that is false at padding, and the targets."""

    tokens: Int[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]
    target: Float[Tensor, "b k"]


class LabelTokens(TargetedTask[LabelledBatch]):
    """Batches, model, loss and metrics for sequences with labels."""

    kind = "tokens"
    line_form: ClassVar[LineForm] = "text"
    reads_files: ClassVar[bool] = True
    source: Source

    def __init__(self, source: Source) -> None:
        self.source, self.options = source, source.options

    @property
    def target(self) -> Target:
        """The classes, labels or number that is predicted."""
        return self.source.target

    @cached_property
    def train(self) -> Encoded:
        """The training sequences."""
        return self.source.encoded("train")

    @cached_property
    def development(self) -> Encoded:
        """The sequences that are evaluated during training."""
        encoded = self.source.encoded("development")
        count = max(1, int(np.searchsorted(np.cumsum(encoded.lengths), self.options.held_out, side="right")))
        return Encoded(
            encoded.raw.take(range(min(count, len(encoded.tokens)))), encoded.tokens[:count], encoded.truth[:count]
        )

    @cached_property
    def test(self) -> Encoded:
        """The sequences that are evaluated at the end."""
        return self.source.encoded("test")

    @cached_property
    def buckets(self) -> Buckets:
        """Indices of the training sequences, grouped by length."""
        lengths = self.train.lengths
        return Buckets(np.arange(len(lengths)), lengths)

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> TextClassifier:
        if self.source.kept is None:
            longest = min(int(self.source.raw.lengths.max()), self.options.latest)
            check_longest(longest, "tokens", attention, model, "--latest")
        return TextClassifier(self.source.vocabulary.size, self.target.outputs, attention, model, generator)

    def cut(self, length: int) -> Cut:
        """The same task with the last positions of each sequence only."""
        return Cut(replace(self.options, latest=min(length, self.options.latest)), "last")

    def batch(self, size: int, generator: torch.Generator) -> LabelledBatch:
        """Training sequences of similar length."""
        places = self.buckets.draw(size, generator)
        tokens, keep = padded([self.train.tokens[at] for at in places])
        return LabelledBatch(tokens, keep, torch.from_numpy(self.train.truth[places]).float())

    def loss(self, model: nn.Module, batch: LabelledBatch) -> Counted:
        """The loss of the target of each sequence."""
        outputs = model(batch.tokens, keep=batch.keep).float()
        return Counted(self.target.loss(outputs, batch.target).sum(), self.count(batch))

    def count(self, batch: LabelledBatch) -> int:
        return len(batch.target)

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        return {"train": self.train.lengths, "development": self.development.lengths, "test": self.test.lengths}

    def truth(self, split: SplitName) -> Float[ndarray, "sequences k"]:
        return self._of(split).truth

    def scores(self, model: nn.Module, split: SplitName) -> Float[ndarray, "sequences p"]:
        return self.predicted(model, self._of(split).tokens)

    def _of(self, split: SplitName) -> Encoded:
        return {"train": self.train, "development": self.development, "test": self.test}[split]

    @torch.no_grad()
    def predicted(self, model: nn.Module, sequences: Sequence[Int[ndarray, "_"]]) -> Float[ndarray, "sequences p"]:
        """What a model predicts for the tokens of each sequence."""
        model.eval()
        device = next(model.parameters()).device
        outputs = np.zeros((len(sequences), self.target.outputs))
        for rows in bounded(np.array([len(tokens) for tokens in sequences]), self.options.evaluation_tokens):
            tokens, keep = padded([sequences[at] for at in rows])
            outputs[rows] = model(tokens.to(device), keep=keep.to(device)).double().cpu().numpy()
        return self.target.predict(outputs)

    def baselines(self) -> dict[str, Float[ndarray, "test p"]]:
        tables = [bag_of_tokens(encoded.tokens, self.source.vocabulary.size) for encoded in (self.train, self.test)]
        linear, _ = fit_linear(tables[0], self.train.truth, self.target)
        return {BAG: self.target.predict(linear.logits(tables[1]))}

    def final(self, model: nn.Module) -> list[Row]:
        rows = super().final(model)
        if not self.options.data:
            best = self.options.simulator.best_accuracy(self.test.raw)
            rows.append({"metric": "best_possible_accuracy", "split": "test", "value": best})
        return rows

    def sample_text(self, split: SplitName, place: int) -> str:
        encoded = self._of(split)
        tokens = encoded.tokens[place]
        shown = self.source.vocabulary.spell(tokens[:SHOWN].tolist())
        return f"{encoded.raw.names[place]}, {len(tokens)} tokens: {shown}{' ...' if len(tokens) > SHOWN else ''}"

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The prediction for a user's sequence, with the probability of each class."""
        vocabulary = self.source.vocabulary
        text = ("" if vocabulary.form.characters else " ").join(words)
        tokens = vocabulary.encode_symbols(vocabulary.form.split(text))[-self.options.latest :]
        if not len(tokens):
            raise SubquadError("there is no symbol in the sequence: give at least one")
        predicted = self.predicted(model, [tokens])[0]
        named = zip(self.answer_columns, self.answer_line(predicted), strict=True)
        return ", ".join(f"{column} {value}" for column, value in named)

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The prediction for each sequence of a file or folder, in its order."""
        raw = load_symbols(path, self.options.columns, form=self.source.vocabulary.form, keep_empty=True, labels=False)
        predicted = self.predicted(model, self.source.encode(raw))
        lines = [[name, *self.answer_line(values)] for name, values in zip(raw.names, predicted, strict=True)]
        return Predictions(["sequence", *self.answer_columns], lines, raw.complaints)


def padded(sequences: Sequence[Int[ndarray, "_"]]) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """The tokens of sequences in one tensor, and the mask of real ones."""
    return pad([torch.from_numpy(tokens) for tokens in sequences], BEGIN), keep_of([len(tokens) for tokens in sequences])


def bag_of_tokens(sequences: Sequence[Int[ndarray, "_"]], size: int) -> Float[ndarray, "sequences counts"]:
    """Logarithms of one more than the number of each of the most frequent tokens, and of the length, for each sequence."""
    most = min(size, MOST_COUNTED)
    counts = np.stack([np.bincount(tokens, minlength=size)[:most] for tokens in sequences])
    lengths = np.array([len(tokens) for tokens in sequences])
    return np.log1p(np.concatenate([counts, lengths[:, None]], axis=1)).astype(np.float64)
