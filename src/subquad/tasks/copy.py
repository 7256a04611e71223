"""The copy task (Katharopoulos et al. 2020, section 4.1): say again what was said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from subquad.checking import Count
from subquad.errors import OptionError, SubquadError
from subquad.models import Decoder, EncoderDecoder, ModelOptions, Size, decoder_size, generate, with_stack
from subquad.tasks.base import Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.types import AttentionOptions

BLANK, SEPARATOR, FIRST = 0, 1, 2  # what stands for nothing, what stands between, and the first symbol


class CopyBatch(NamedTuple):
    """Symbols, blanks behind them up to the task's length, and where the symbols are."""

    symbols: Int[Tensor, "b n"]
    real: Bool[Tensor, "b n"]


@dataclass(frozen=True)
class Copy(TaskOptions, Task[CopyBatch]):
    """Sequences of symbols, a separator, the copy."""

    length: Count = 32  # positions that a decoder reads and writes; those of the source for an encoder-decoder
    symbols: Count = 10  # number of different symbols
    form: Literal["decoder", "encoder-decoder"] = "decoder"  # the model of the paper, or that of the replication in Julia
    moving: bool = False  # start the copy right after the symbols, as in the paper, and not always at the same place
    held_out: Count = 256  # number of fresh sequences in an evaluation
    kind: str = field(default="copy", init=False)

    line_form: ClassVar[LineForm] = "words"

    @property
    def capacity(self) -> int:
        """How many symbols can be copied: a decoder has two separators and the symbols twice."""
        return (self.length - 2) // 2 if self.form == "decoder" else self.length

    def check(self) -> None:
        if self.capacity < 1:
            raise OptionError("length", f"must be at least 4, for a symbol, its copy and a separator, but is {self.length}")

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Those of `subquad reproduce copy`. Longer sequences take more steps, and more random features."""
        rounds = -(-self.length // 32)
        return Defaults(
            model={"layers": 2, "heads": 4, "head_dim": 32},
            training={"batch": 32, "steps": 900 * (1 + rounds)},
            attention={"features": min(256, 64 * rounds)} if attention == "favor" else {},
        )

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """What its model and a training step need, at least."""
        vocabulary, evaluated = self.symbols + FIRST, 8 * self.held_out * self.capacity
        if self.form == "decoder":
            return decoder_size(vocabulary, attention, model, positions=self.length)._replace(data_bytes=evaluated)
        decoder = decoder_size(vocabulary, attention, model, positions=self.length, cross=True)
        encoder = with_stack(vocabulary * model.model_dim, attention, model)
        numbers, trained = decoder.numbers + encoder.numbers, decoder.trained + encoder.trained
        return Size(numbers, trained, 2 * self.length, data_bytes=evaluated)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "Copy":
        """The task itself, as it has no data."""
        return self

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> Decoder | EncoderDecoder:
        kind = Decoder if self.form == "decoder" else EncoderDecoder
        return kind(self.symbols + FIRST, attention, model, generator=generator)

    def batch(self, size: int, generator: torch.Generator) -> CopyBatch:
        """Half of the sequences are as long as can be; the others have any length."""
        lengths = torch.randint(1, self.capacity + 1, (size, 1), generator=generator)
        lengths[: (size + 1) // 2] = self.capacity
        return self._sequences(lengths, generator)

    def loss(self, model: nn.Module, batch: CopyBatch) -> Counted:
        """Cross-entropy of the copied symbols. Blanks and what comes before the copy do not count."""
        logits, targets, counts = self._predict(model, batch)
        losses = F.cross_entropy(logits[counts].float(), targets[counts], reduction="sum")
        return Counted(losses, self.count(batch))

    def count(self, batch: CopyBatch) -> int:
        return int(batch.real.sum())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Accuracy of the copy, written token by token, of sequences that are as long as can be."""
        batch = self._sequences(torch.full((self.held_out, 1), self.capacity), generator)
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
        """The model's copies, as it writes them by itself."""
        device = next(model.parameters()).device
        symbols, real = batch.symbols.to(device), batch.real.to(device)
        if isinstance(model, EncoderDecoder):
            model.eval()
            context = model.encoder(symbols, keep=self._source_keep(real))
            start = torch.full((len(symbols), 1), SEPARATOR, device=device)
            keep = self._source_keep(real)
            return generate(model.decoder, start, length=self.capacity, context=context, context_keep=keep).cpu()
        assert isinstance(model, Decoder)
        if not self.moving:
            return generate(model, self._prompt(symbols), length=self.capacity).cpu()
        answers = torch.full_like(batch.symbols, BLANK)
        for at, length in enumerate(batch.real.sum(1).tolist()):
            written = generate(model, self._prompt(symbols[at : at + 1, :length]), length=length)
            answers[at, :length] = written[0].cpu()
        return answers

    def read(self, words: Sequence[str]) -> CopyBatch:
        """A user's sequence. Symbols are written as numbers from 0."""
        try:
            numbers = [int(word) for word in words]
        except ValueError:
            wrong = next(word for word in words if not word.lstrip("-").isdigit())
            raise SubquadError(f"{wrong!r} is no symbol: write numbers from 0 to {self.symbols - 1}") from None
        outside = [number for number in numbers if not 0 <= number < self.symbols]
        if outside:
            raise SubquadError(f"the symbol {outside[0]} is outside the vocabulary, which goes from 0 to {self.symbols - 1}")
        if not 1 <= len(numbers) <= self.capacity:
            raise SubquadError(f"the model copies 1 to {self.capacity} symbols, but was given {len(numbers)}")
        symbols = torch.full((1, self.capacity), BLANK)
        symbols[0, : len(numbers)] = torch.tensor(numbers) + FIRST
        return CopyBatch(symbols, symbols != BLANK)

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The answer to a user's sequence."""
        batch = self.read(words)
        return self.spell(self.answer(model, batch)[batch.real])

    def spell(self, symbols: Tensor) -> str:
        """Symbols as a user writes them."""
        return " ".join("_" if symbol < FIRST else str(symbol - FIRST) for symbol in symbols.tolist())

    def _sequences(self, lengths: Tensor, generator: torch.Generator) -> CopyBatch:
        real = torch.arange(self.capacity) < lengths
        drawn = torch.randint(FIRST, FIRST + self.symbols, real.shape, generator=generator)
        return CopyBatch(drawn.masked_fill(~real, BLANK), real)

    def _prompt(self, symbols: Tensor) -> Tensor:
        ends = torch.full((len(symbols), 1), SEPARATOR, device=symbols.device)
        return torch.cat([ends, symbols, ends], dim=1)

    def _source_keep(self, real: Tensor) -> Tensor | None:
        return real if self.moving else None

    def _predict(self, model: nn.Module, batch: CopyBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, the symbols that should have been said, and which of them count."""
        symbols, real = batch
        if self.form == "encoder-decoder":
            start = torch.full((len(symbols), 1), SEPARATOR, device=symbols.device)
            keep = self._source_keep(real)
            logits = model(symbols, torch.cat([start, symbols[:, :-1]], dim=1), source_keep=keep)
            return logits, symbols, real
        tokens, counts = self._spoken_twice(symbols, real)
        return model(tokens[:, :-1]), tokens[:, 1:], counts[:, 1:]

    def _spoken_twice(self, symbols: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Separator, symbols, separator, symbols; and which of them are the copy."""
        tokens = torch.cat([self._prompt(symbols), symbols], dim=1)
        counts = F.pad(real, (self.capacity + 2, 0))
        if not self.moving:
            return tokens, counts
        # without the blanks in between: what is real moves to the left, in its order
        wanted = F.pad(real, (1, 0), value=True)
        wanted = torch.cat([wanted, torch.ones_like(real[:, :1]), real], dim=1)
        order = torch.sort((~wanted).to(torch.uint8), dim=1, stable=True).indices
        return tokens.gather(1, order).masked_fill(~wanted.gather(1, order), BLANK), counts.gather(1, order)
