"""The copy task (Katharopoulos et al. 2020, section 4.1): repeat a sequence of symbols."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from subquad.checking import BelowOne, Count, Share
from subquad.errors import SubquadError
from subquad.models import Decoder, EncoderDecoder, ModelOptions, Size, decoder_size, generate, with_stack
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.tasks.comparing import TEST_SEED, Judged, Rival, judged_means
from subquad.types import AttentionOptions

BLANK, SEPARATOR, FIRST = 0, 1, 2  # tokens for padding and for the separator, and the first symbol


class CopyBatch(NamedTuple):
    """Symbols padded with blanks to the task's length, and a mask that is true at symbols."""

    symbols: Int[Tensor, "b n"]
    real: Bool[Tensor, "b n"]


@dataclass(frozen=True)
class Copy(TaskOptions, Task[CopyBatch]):
    """Copy a sequence of symbols after a separator. Sequences are random."""

    length: Count = 15  # largest number of symbols to copy
    symbols: Count = 10  # number of different symbols
    form: Literal["decoder", "encoder-decoder"] = "decoder"  # the paper's model, or that of a replication in Julia
    moving: bool = False  # start the copy right after the symbols, as in the paper, instead of always at the same position
    shorter: Share = 0.5  # share of training sequences with random lengths; the others have the largest length
    label_smoothing: BelowOne = 0.0  # share of the right symbol's probability that the loss spreads over all symbols
    held_out: Count = 256  # number of new sequences in an evaluation
    kind: str = field(default="copy", init=False)

    line_form: ClassVar[LineForm] = "words"

    @property
    def positions(self) -> int:
        """Number of positions of a sequence. A decoder reads the symbols twice, and two separators."""
        return 2 * self.length + 2 if self.form == "decoder" else self.length

    @classmethod
    def updated(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Converts the length of runs from before label smoothing existed: a decoder's number of positions to symbols."""
        if "label_smoothing" in values or values.get("form", "decoder") != "decoder" or "length" not in values:
            return values
        return {**values, "length": (values["length"] - 2) // 2}

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of `subquad reproduce copy`, with more steps and random features for longer sequences."""
        rounds = -(-self.positions // 32)
        return Defaults(
            model={"layers": 2, "heads": 4, "head_dim": 32},
            training={"batch": 32, "steps": 900 * (1 + rounds)},
            attention={"features": min(256, 64 * rounds)} if attention == "favor" else {},
        )

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bound on the size of the model and of a training step."""
        vocabulary, evaluated = self.symbols + FIRST, 8 * self.held_out * self.length
        if self.form == "decoder":
            return decoder_size(vocabulary, attention, model, positions=self.positions)._replace(data_bytes=evaluated)
        decoder = decoder_size(vocabulary, attention, model, positions=self.length, cross=True)
        encoder = with_stack(vocabulary * model.model_dim, attention, model)
        numbers, trained = decoder.numbers + encoder.numbers, decoder.trained + encoder.trained
        return Size(numbers, trained, 2 * self.length, data_bytes=evaluated)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "Copy":
        """Returns the task itself, which needs no data."""
        return self

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> Decoder | EncoderDecoder:
        kind = Decoder if self.form == "decoder" else EncoderDecoder
        return kind(self.symbols + FIRST, attention, model, generator=generator)

    def batch(self, size: int, generator: torch.Generator) -> CopyBatch:
        """Draws random sequences, the share `shorter` of them with random lengths, the others with the largest length."""
        lengths = torch.randint(1, self.length + 1, (size, 1), generator=generator)
        lengths[: size - int(self.shorter * size)] = self.length
        return self._sequences(lengths, generator)

    def loss(self, model: nn.Module, batch: CopyBatch) -> Counted:
        """Cross-entropy of the copied symbols. Blanks and positions before the copy do not count.

        With label smoothing it is the Kullback-Leibler divergence from the smoothed labels, whose minimum is 0 as well.
        """
        return Counted(self._sum(*self._predict(model, batch)), self.count(batch))

    @property
    def can_be_cut(self) -> bool:
        return self.form == "decoder"

    def model_length(self, batch: CopyBatch) -> int:
        """Number of positions of a decoder: all but the last, which it predicts only."""
        return 2 * self.length + 1

    def cut_loss(self, model: nn.Module, batch: CopyBatch, start: int, stop: int) -> Tensor:
        tokens, counts = self._spoken_twice(*batch)
        return self._sum(model(tokens[:, start:stop]), tokens[:, start + 1 : stop + 1], counts[:, start + 1 : stop + 1])

    def _sum(self, logits: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """Sum of the losses of the targets that count."""
        losses = F.cross_entropy(
            logits[counts].float(), targets[counts], reduction="sum", label_smoothing=self.label_smoothing
        )
        return losses - counts.sum() * self._label_entropy

    def count(self, batch: CopyBatch) -> int:
        return int(batch.real.sum())

    @property
    def ranked_by(self) -> Best:
        """The share of symbols that are copied right."""
        return Best("token_accuracy", "high")

    @property
    def is_causal(self) -> bool:
        return True

    @torch.no_grad()
    def judge(self, model: nn.Module) -> Judged:
        """Share of symbols of each test sequence that are copied right."""
        drawn = self._sequences(torch.full((self.held_out, 1), self.length), torch.Generator().manual_seed(TEST_SEED))
        right = ((self.answer(model, drawn) == drawn.symbols) & drawn.real).sum(1)
        return judged_means("token_accuracy", "high", "share", right.numpy(), drawn.real.sum(1).numpy())

    def rivals(self) -> dict[str, Rival]:
        """Guessing each symbol."""
        counts = np.full(self.held_out, float(self.length))
        guessed = judged_means("token_accuracy", "high", "share", counts / self.symbols, counts)
        return {"guessing": Rival(guessed, is_trivial=True)}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Accuracy of copies generated token by token, for sequences of the largest length."""
        batch = self._sequences(torch.full((self.held_out, 1), self.length), generator)
        right = (self.answer(model, batch) == batch.symbols) | ~batch.real
        counted = right[batch.real].float().mean()
        return {"token_accuracy": float(counted), "sequence_accuracy": float(right.all(1).float().mean())}

    @torch.no_grad()
    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        batch = self.batch(count, generator)
        answers = self.answer(model, batch)
        return [
            {"given": self.spell(symbols[real]), "answered": self.spell(answer[real]), "right": self.spell(symbols[real])}
            for symbols, real, answer in zip(batch.symbols, batch.real, answers, strict=True)
        ]

    def answer(self, model: nn.Module, batch: CopyBatch) -> Int[Tensor, "b n"]:
        """The copies that the model generates token by token."""
        device = next(model.parameters()).device
        symbols, real = batch.symbols.to(device), batch.real.to(device)
        if isinstance(model, EncoderDecoder):
            model.eval()
            context = model.encoder(symbols, keep=self._source_keep(real))
            start = torch.full((len(symbols), 1), SEPARATOR, device=device)
            keep = self._source_keep(real)
            return generate(model.decoder, start, length=self.length, context=context, context_keep=keep).cpu()
        assert isinstance(model, Decoder)
        if not self.moving:
            return generate(model, self._prompt(symbols), length=self.length).cpu()
        answers = torch.full_like(batch.symbols, BLANK)
        for at, length in enumerate(batch.real.sum(1).tolist()):
            written = generate(model, self._prompt(symbols[at : at + 1, :length]), length=length)
            answers[at, :length] = written[0].cpu()
        return answers

    def read(self, words: Sequence[str]) -> CopyBatch:
        """Converts a user's sequence of numbers from 0 into a batch."""
        try:
            numbers = [int(word) for word in words]
        except ValueError:
            wrong = next(word for word in words if not word.lstrip("-").isdigit())
            raise SubquadError(f"{wrong!r} is no symbol: write numbers from 0 to {self.symbols - 1}") from None
        outside = [number for number in numbers if not 0 <= number < self.symbols]
        if outside:
            raise SubquadError(f"the symbol {outside[0]} is outside the vocabulary, which goes from 0 to {self.symbols - 1}")
        if not 1 <= len(numbers) <= self.length:
            raise SubquadError(f"the model copies 1 to {self.length} symbols, but was given {len(numbers)}")
        symbols = torch.full((1, self.length), BLANK)
        symbols[0, : len(numbers)] = torch.tensor(numbers) + FIRST
        return CopyBatch(symbols, symbols != BLANK)

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The model's copy of a user's sequence."""
        batch = self.read(words)
        return self.spell(self.answer(model, batch)[batch.real])

    def spell(self, symbols: Tensor) -> str:
        """Writes symbols as numbers from 0, and other tokens as "_"."""
        return " ".join("_" if symbol < FIRST else str(symbol - FIRST) for symbol in symbols.tolist())

    @property
    def _label_entropy(self) -> float:
        """Entropy in nats of a smoothed label."""
        if not self.label_smoothing:
            return 0.0
        tokens = self.symbols + FIRST
        wrong = self.label_smoothing / tokens
        right = 1 - self.label_smoothing + wrong
        return -right * math.log(right) - (tokens - 1) * wrong * math.log(wrong)

    def _sequences(self, lengths: Tensor, generator: torch.Generator) -> CopyBatch:
        real = torch.arange(self.length) < lengths
        drawn = torch.randint(FIRST, FIRST + self.symbols, real.shape, generator=generator)
        return CopyBatch(drawn.masked_fill(~real, BLANK), real)

    def _prompt(self, symbols: Tensor) -> Tensor:
        ends = torch.full((len(symbols), 1), SEPARATOR, device=symbols.device)
        return torch.cat([ends, symbols, ends], dim=1)

    def _source_keep(self, real: Tensor) -> Tensor | None:
        return real if self.moving else None

    def _predict(self, model: nn.Module, batch: CopyBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The logits, the target symbols, and a mask of the targets that count."""
        symbols, real = batch
        if self.form == "encoder-decoder":
            start = torch.full((len(symbols), 1), SEPARATOR, device=symbols.device)
            keep = self._source_keep(real)
            logits = model(symbols, torch.cat([start, symbols[:, :-1]], dim=1), source_keep=keep)
            return logits, symbols, real
        tokens, counts = self._spoken_twice(symbols, real)
        return model(tokens[:, :-1]), tokens[:, 1:], counts[:, 1:]

    def _spoken_twice(self, symbols: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Separator, symbols, separator, symbols; and a mask that is true at the copy."""
        tokens = torch.cat([self._prompt(symbols), symbols], dim=1)
        counts = F.pad(real, (self.length + 2, 0))
        if not self.moving:
            return tokens, counts
        # removes the blanks in between by moving real tokens to the left, in their order
        wanted = F.pad(real, (1, 0), value=True)
        wanted = torch.cat([wanted, torch.ones_like(real[:, :1]), real], dim=1)
        order = torch.sort((~wanted).to(torch.uint8), dim=1, stable=True).indices
        return tokens.gather(1, order).masked_fill(~wanted.gather(1, order), BLANK), counts.gather(1, order)
