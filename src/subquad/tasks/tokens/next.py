"""The next symbol of sequences: a decoder, beside n-grams of the same sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn

from subquad.data.ragged import pad
from subquad.data.splits import SplitName
from subquad.models import Decoder, ModelOptions
from subquad.results import Row
from subquad.tasks.base import Best, Completion, Counted, Cut, LineForm, Predictions
from subquad.tasks.comparing import Judged, Rival, judged_terms
from subquad.tasks.lm.task import NextBatch
from subquad.tasks.lm.vocabulary import BEGIN
from subquad.tasks.lm.writing import write
from subquad.tasks.mlm.finding import perplexity
from subquad.tasks.targets.sourced import SPLITS, SourcedTask
from subquad.tasks.tokens.loading import load_symbols
from subquad.tasks.tokens.reading import (
    NATS,
    ORDERS,
    compared_rows,
    groups_of,
    next_probabilities,
    ngram_nats,
    read_sequences,
)
from subquad.tasks.tokens.source import Encoded, Source
from subquad.tasks.tokens.vocabulary import UNKNOWN
from subquad.types import AttentionOptions

GIVEN, ANSWERED = 32, 16  # number of tokens of a sample that the model reads, and that it writes


class NextTokens(SourcedTask[NextBatch]):
    """Batches, model, loss and metrics for sequences whose next token is predicted."""

    kind = "tokens"
    best: ClassVar[Best | None] = Best(NATS, "low")
    units: ClassVar[Mapping[str, str]] = {NATS: "nats", "perplexity": "tokens"}
    line_form: ClassVar[LineForm] = "text"
    completes: ClassVar[bool] = True
    reads_files: ClassVar[bool] = True
    source: Source

    def __init__(self, source: Source) -> None:
        self.source, self.options = source, source.options

    @cached_property
    def train(self) -> Encoded:
        """The training sequences."""
        return self.source.encoded("train")

    @cached_property
    def _ends(self) -> Int[ndarray, "sequences"]:
        """Number of training tokens up to the end of each sequence."""
        return np.cumsum(self.train.lengths)

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> Decoder:
        self.options.check_causal(attention, model)
        return Decoder(self.source.vocabulary.size, attention, model, generator=generator)

    def cut(self, length: int) -> Cut:
        """The same task with fewer tokens before each one that is predicted."""
        return Cut(replace(self.options, length=min(self.options.length, max(2, length)), context=None), "last")

    def batch(self, size: int, generator: torch.Generator) -> NextBatch:
        """Windows of training sequences, drawn in proportion to their tokens; short sequences are read as a whole."""
        places = torch.randint(int(self._ends[-1]), (size,), generator=generator).numpy()
        starts = torch.rand(size, generator=generator).double().numpy()
        windows = []
        for at, start in zip(np.searchsorted(self._ends, places, side="right"), starts, strict=True):
            tokens, length = self.train.tokens[at], self.options.length
            first = int(start * (max(0, len(tokens) - length) + 1))  # 0 is the place before the first token
            window = tokens[max(0, first - 1) : first + length]
            windows.append(torch.from_numpy(window if first else np.append(BEGIN, window)))
        padded = pad(windows, BEGIN)
        return NextBatch(padded[:, :-1], padded[:, 1:])

    def loss(self, model: nn.Module, batch: NextBatch) -> Counted:
        """Cross-entropy of the tokens of the sequences."""
        logits = model(batch.tokens).float().flatten(0, 1)
        losses = F.cross_entropy(logits, batch.right.flatten(), ignore_index=BEGIN, reduction="sum")
        return Counted(losses, self.count(batch))

    @property
    def can_be_cut(self) -> bool:
        return True

    def count(self, batch: NextBatch) -> int:
        return int((batch.right != BEGIN).sum())

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Nats per token and perplexity at the beginning of the development split."""
        nats = float(np.concatenate(self.nats(model, self._some("development", self.options.held_out))).mean())
        return {NATS: nats, "perplexity": perplexity(nats)}

    def nats(self, model: nn.Module, sequences: Sequence[Int[ndarray, "_"]]) -> list[Float[ndarray, "_"]]:
        """Negative log-probability of each token of each sequence."""
        options = self.options
        return read_sequences(
            model,
            sequences,
            length=options.length,
            context=options.evaluated_context,
            tokens_at_a_time=options.evaluation_tokens,
        )

    def _some(self, split: SplitName, most: int) -> list[Int[ndarray, "_"]]:
        """The first sequences of a split, with at most so many tokens together; the last one is cut."""
        chosen, left = [], most
        for tokens in self.source.encoded(split).tokens:
            if left <= 0:
                break
            chosen.append(tokens[:left])
            left -= len(tokens)
        return chosen

    def final(self, model: nn.Module) -> list[Row]:
        """Nats, bits and perplexity on the test split with intervals, beside those of n-grams and of frequencies."""
        tested, train, size = self._some("test", self.options.tested), self.train.tokens, self.source.vocabulary.size
        lengths = np.array([len(tokens) for tokens in tested], np.int64)
        ours = np.concatenate(self.nats(model, tested))
        others = {f"{order}-grams": ngram_nats(train, tested, size, order) for order in ORDERS}
        rows = compared_rows(ours, others, ngram_nats(train, tested, size, 1), lengths)
        unknown = float(np.mean(np.concatenate(tested) == UNKNOWN))
        rows.append({"metric": "unknown_tokens", "unit": "share", "split": "test", "value": unknown})
        rows.append({"metric": "evaluated_tokens", "unit": "tokens", "split": "test", "value": int(lengths.sum())})
        if not self.options.data:
            best = np.concatenate(self.options.simulator.best_nats(self.source.splits["test"]))
            rows.append({"metric": f"best_possible_{NATS}", "unit": "nats", "split": "test", "value": float(best.mean())})
        return rows

    @property
    def is_causal(self) -> bool:
        return True

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        """Numbers of tokens that the model reads of each sequence."""
        lengths = {split: self.source.encoded(split).lengths for split in SPLITS}
        return {split: np.minimum(of_split, self.options.length) for split, of_split in lengths.items()}

    def judge(self, model: nn.Module) -> Judged:
        """Nats of the tokens of each test sequence, or of each passage if there are few sequences."""
        tested = self._some("test", self.options.tested)
        return self._judged(np.concatenate(self.nats(model, tested)), tested)

    def rivals(self) -> dict[str, Rival]:
        """Frequencies of tokens, and n-grams."""
        tested, train, size = self._some("test", self.options.tested), self.train.tokens, self.source.vocabulary.size
        rivals = {"frequencies": Rival(self._judged(ngram_nats(train, tested, size, 1), tested), is_trivial=True)}
        by_order = {order: ngram_nats(train, tested, size, order) for order in ORDERS}
        return rivals | {f"{order}-grams": Rival(self._judged(nats, tested)) for order, nats in by_order.items()}

    def _judged(self, nats: Float[ndarray, "tokens"], sequences: Sequence[Int[ndarray, "_"]]) -> Judged:
        groups = groups_of(np.array([len(tokens) for tokens in sequences], np.int64))
        return judged_terms(NATS, "low", "nats", nats, groups)

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Beginnings of sequences of the development split, how the model continues them, and how they go on."""
        development, spell = self.source.encoded("development").tokens, self.source.vocabulary.spell
        samples = []
        for at in torch.randperm(len(development), generator=generator)[:count].tolist():
            tokens = development[at].tolist()
            given = min(GIVEN, len(tokens) // 2)
            right = tokens[given : given + ANSWERED]
            written = self._write(model, tokens[:given], Completion(tokens=max(1, len(right)), seed=at))
            samples.append({"given": spell(tokens[:given]), "answered": spell(written), "right": spell(right)})
        return samples

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """A user's sequence and its continuation."""
        text = " ".join(words)
        return text + self.complete(model, text, Completion())

    def complete(self, model: nn.Module, text: str, how: Completion) -> str:
        """The continuation of a sequence. The model reads as many of its last tokens as it was trained on."""
        vocabulary = self.source.vocabulary
        symbols = vocabulary.form.split(text)
        written = vocabulary.spell(self._write(model, vocabulary.encode_symbols(symbols).tolist(), how))
        glue = "" if vocabulary.form.characters or not symbols else vocabulary.form.separator or " "
        return glue + written

    def _write(self, model: nn.Module, tokens: Sequence[int], how: Completion) -> list[int]:
        assert isinstance(model, Decoder)
        drawing = torch.Generator().manual_seed(how.seed)
        return write(model, [BEGIN, *tokens], how.tokens, self.options.length, how.temperature, drawing)

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """How well each sequence of a file or folder is predicted, and its likeliest next symbol."""
        options, vocabulary = self.options, self.source.vocabulary
        raw = load_symbols(path, options.columns, form=vocabulary.form, keep_empty=True, labels=False)
        sequences = vocabulary.encode(raw)
        after = next_probabilities(model, sequences, length=options.length, tokens_at_a_time=options.evaluation_tokens)
        lines = []
        for name, tokens, nats, chances in zip(raw.names, sequences, self.nats(model, sequences), after, strict=True):
            mean = f"{nats.mean():.6g}" if len(tokens) else ""
            likeliest = int(chances.argmax())
            counts = [str(len(tokens)), str(int((tokens == UNKNOWN).sum()))]
            lines.append([name, *counts, mean, vocabulary.spell([likeliest]), f"{chances[likeliest]:.6g}"])
        columns = ["sequence", "tokens", "unknown", NATS, "next", "probability"]
        return Predictions(columns, lines, raw.complaints)
