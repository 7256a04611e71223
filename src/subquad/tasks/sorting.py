"""The sorting task (Martins et al. 2022, section 4.1): say the symbols of a long sequence by how often they came.

The symbols' probabilities drift along the sequence, so that no part of it tells of the whole: who forgets the beginning
cannot answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.errors import SubquadError
from subquad.models import Decoder, ModelOptions, generate
from subquad.types import AttentionOptions, Counted


class SortingBatch(NamedTuple):
    """A sequence, and its symbols from the most frequent to the rarest."""

    symbols: Int[Tensor, "b n"]
    order: Int[Tensor, "b symbols"]


@dataclass(frozen=True)
class Sorting:
    """A long sequence of symbols, a separator, and the symbols by frequency."""

    length: int = 4096  # of all that a model reads and writes
    symbols: int = 20
    concentration: float = 1.0  # of the Dirichlet distribution that a sequence's probabilities are drawn from
    held_out: int = 64  # fresh sequences in an evaluation
    evaluation_batch: int = 8  # of them at a time
    kind: str = field(default="sorting", init=False)

    @property
    def given(self) -> int:
        """How many symbols there are to sort: the separator and the answer take the rest."""
        return self.length - self.symbols - 1

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> Decoder:
        if self.symbols < 2 or self.given < 1 or self.concentration <= 0:
            raise SubquadError(
                "sorting needs at least 2 symbols, a length of at least symbols + 2 and a positive concentration, but has "
                f"{self.symbols}, {self.length} and {self.concentration}"
            )
        return Decoder(self.symbols + 1, attention, model, generator=generator)

    def batch(self, size: int, generator: torch.Generator) -> SortingBatch:
        """Probabilities go in a straight line from those of the first position to those of the last."""
        ends = self._probabilities(2 * size, generator)
        first, last = (torch.multinomial(end, self.given, replacement=True, generator=generator) for end in ends.chunk(2))
        along = (torch.arange(self.given) + 0.5) / self.given
        drawn = torch.where(torch.rand(size, self.given, generator=generator) < along, last, first)
        counts = F.one_hot(drawn, self.symbols).sum(1)
        return SortingBatch(drawn, counts.argsort(dim=1, descending=True, stable=True))  # of equals the lower one first

    def loss(self, model: nn.Module, batch: SortingBatch) -> Counted:
        """Of the answer; what comes before it cannot be foretold."""
        tokens = torch.cat([self._question(batch.symbols), batch.order[:, :-1]], dim=1)
        logits = model(tokens)[:, self.given :]
        return Counted(
            F.cross_entropy(logits.flatten(0, 1).float(), batch.order.flatten(), reduction="sum"), self.count(batch)
        )

    def count(self, batch: SortingBatch) -> int:
        return batch.order.numel()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """The share of the answer's places with the right symbol, and how far off symbols are, as the model writes them."""
        right, away, seen = 0.0, 0.0, 0
        while seen < self.held_out:
            batch = self.batch(min(self.evaluation_batch, self.held_out - seen), generator)
            answers = self.answer(model, batch.symbols)
            right += float((answers == batch.order).float().mean(1).sum())
            ranks = batch.order.argsort(1).gather(1, answers.clamp(max=self.symbols - 1))
            away += float((ranks - torch.arange(self.symbols)).abs().float().mean(1).sum())
            seen += len(answers)
        return {"token_accuracy": right / seen, "places_away": away / seen}

    @torch.no_grad()
    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        batch = self.batch(count, generator)
        return [
            {"given": f"{self.spell(symbols[:12])} ...", "answered": self.spell(answer), "right": self.spell(order)}
            for symbols, order, answer in zip(*batch, self.answer(model, batch.symbols), strict=True)
        ]

    def answer(self, model: nn.Module, symbols: Int[Tensor, "b n"]) -> Int[Tensor, "b symbols"]:
        """The model's answers, as it writes them by itself."""
        assert isinstance(model, Decoder)
        device = next(model.parameters()).device
        return generate(model, self._question(symbols.to(device)), length=self.symbols).cpu()

    def read(self, words: Sequence[str]) -> SortingBatch:
        """A user's sequence. Symbols are written as numbers from 0."""
        try:
            numbers = torch.tensor([int(word) for word in words])
        except ValueError:
            wrong = next(word for word in words if not word.lstrip("-").isdigit())
            raise SubquadError(f"{wrong!r} is no symbol: write numbers from 0 to {self.symbols - 1}") from None
        if not len(numbers) or not 0 <= int(numbers.min()) <= int(numbers.max()) < self.symbols:
            raise SubquadError(
                f"sorting takes symbols from 0 to {self.symbols - 1}, at least one, but was given {len(numbers)}"
            )
        counts = F.one_hot(numbers, self.symbols).sum(0)
        return SortingBatch(numbers[None], counts.argsort(descending=True, stable=True)[None])

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The answer to a user's sequence, of any length."""
        return self.spell(self.answer(model, self.read(words).symbols)[0])

    def spell(self, symbols: Tensor) -> str:
        """Symbols as a user writes them."""
        return " ".join("_" if symbol >= self.symbols else str(symbol) for symbol in symbols.tolist())

    def _probabilities(self, size: int, generator: torch.Generator) -> Float[Tensor, "b symbols"]:
        shapes = torch.full((size, self.symbols), self.concentration)
        drawn = torch._standard_gamma(shapes, generator=generator).clamp_min(1e-30)
        return drawn / drawn.sum(1, keepdim=True)

    def _question(self, symbols: Tensor) -> Tensor:
        return F.pad(symbols, (0, 1), value=self.symbols)
