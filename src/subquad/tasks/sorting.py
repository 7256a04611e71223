"""The sorting task (Martins et al. 2022, section 4.1): say the symbols of a long sequence by how often they came.

The symbols' probabilities drift along the sequence, so that no part of it tells of the whole: who forgets the beginning
cannot answer. The answer is given at once, as a score for each symbol at the end of the sequence: the likelihood of an order
is that of naming the symbols one after the other, each among those not yet named (Plackett and Luce).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.checking import AtLeastTwo, Count, Moderate
from subquad.errors import SubquadError
from subquad.models import Decoder, ModelOptions, Size, decoder_size
from subquad.tasks.base import Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.types import AttentionOptions


class SortingBatch(NamedTuple):
    """A sequence, and its symbols from the most frequent to the rarest."""

    symbols: Int[Tensor, "b n"]
    order: Int[Tensor, "b symbols"]


@dataclass(frozen=True)
class Sorting(TaskOptions, Task[SortingBatch]):
    """A long sequence of symbols, and the symbols by their frequency in it."""

    length: AtLeastTwo = 4096  # positions of a sequence, with the token at its end that asks for the answer
    symbols: AtLeastTwo = 20  # number of different symbols
    concentration: Moderate = 1.0  # concentration of the Dirichlet distribution of the symbols' probabilities
    held_out: Count = 64  # number of fresh sequences in an evaluation
    evaluation_batch: Count = 8  # sequences that are evaluated at a time
    kind: str = field(default="sorting", init=False)

    line_form: ClassVar[LineForm] = "words"

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Those of `subquad reproduce infinity`, by the length of the sequences."""
        memory = {"segment": max(128, self.length // 16), "basis": 64, "points": 64, "widths": (0.05,)}
        return Defaults(
            model={"layers": 1, "heads": 2, "head_dim": 32, "positions": "rotary", "tied": False},
            training={
                "batch": 8 if self.length <= 4096 else 4,
                "steps": 200 if self.length <= 1024 else 300,
                "learning_rate": 2e-2,
                "schedule": "cosine",
                "evaluate_every": 50,
                "checkpoint_every": 100,
            },
            attention=memory if attention == "infinity" else {},
        )

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """What its model and a training step need, at least. Counting symbols takes a number for each at each position."""
        size = decoder_size(self.symbols + 1, attention, model, positions=self.length)
        return size._replace(sequence_bytes=8 * (self.length - 1) * self.symbols)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "Sorting":
        """The task itself, as it has no data."""
        return self

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> Decoder:
        return Decoder(self.symbols + 1, attention, model, generator=generator)

    def batch(self, size: int, generator: torch.Generator) -> SortingBatch:
        """Probabilities go in a straight line from those of the first position to those of the last."""
        given = self.length - 1
        ends = self._probabilities(2 * size, generator)
        first, last = (torch.multinomial(end, given, replacement=True, generator=generator) for end in ends.chunk(2))
        along = (torch.arange(given) + 0.5) / given
        drawn = torch.where(torch.rand(size, given, generator=generator) < along, last, first)
        return SortingBatch(drawn, self._order(drawn))

    def loss(self, model: nn.Module, batch: SortingBatch) -> Counted:
        """-log of the probability of each symbol in its turn, among those that have not been named before it."""
        named = self.scores(model, batch.symbols).gather(1, batch.order)
        among = named.flip(1).logcumsumexp(1).flip(1)
        return Counted((among - named).sum(), self.count(batch))

    def count(self, batch: SortingBatch) -> int:
        return batch.order.numel()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """The share of places with the right symbol, and how many places a symbol is off on average."""
        right, away, seen = 0.0, 0.0, 0
        while seen < self.held_out:
            batch = self.batch(min(self.evaluation_batch, self.held_out - seen), generator)
            answers = self.answer(model, batch.symbols)
            ranks = batch.order.argsort(1).gather(1, answers)
            right += float((answers == batch.order).float().mean(1).sum())
            away += float((ranks - torch.arange(self.symbols)).abs().float().mean(1).sum())
            seen += len(answers)
        return {"token_accuracy": right / seen, "places_off": away / seen}

    @torch.no_grad()
    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        batch = self.batch(count, generator)
        return [
            {"given": f"{self.spell(symbols[:12])} ...", "answered": self.spell(answer), "right": self.spell(order)}
            for symbols, order, answer in zip(*batch, self.answer(model, batch.symbols), strict=True)
        ]

    def scores(self, model: nn.Module, symbols: Int[Tensor, "b n"]) -> Float[Tensor, "b symbols"]:
        """What the model has to say of each symbol at the end."""
        logits: Tensor = model(F.pad(symbols, (0, 1), value=self.symbols), last=1)
        return logits[:, 0, : self.symbols].float()

    def answer(self, model: nn.Module, symbols: Int[Tensor, "b n"]) -> Int[Tensor, "b symbols"]:
        """The symbols by their scores."""
        device = next(model.parameters()).device
        return self.scores(model, symbols.to(device)).argsort(1, descending=True).cpu()

    def read(self, words: Sequence[str]) -> SortingBatch:
        """A user's sequence. Symbols are written as numbers from 0."""
        wrong = [word for word in words if not word.isdigit() or int(word) >= self.symbols]
        if wrong or not words:
            found = repr(wrong[0]) if wrong else "nothing"
            raise SubquadError(f"sorting takes symbols from 0 to {self.symbols - 1}, at least one, but was given {found}")
        numbers = torch.tensor([[int(word) for word in words]])
        return SortingBatch(numbers, self._order(numbers))

    @torch.no_grad()
    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The answer to a user's sequence, of any length."""
        return self.spell(self.answer(model, self.read(words).symbols)[0])

    def spell(self, symbols: Tensor) -> str:
        """Symbols as a user writes them."""
        return " ".join(str(symbol) for symbol in symbols.tolist())

    def _order(self, symbols: Int[Tensor, "b n"]) -> Int[Tensor, "b symbols"]:
        """Symbols from the most frequent to the rarest. Among equally frequent ones the lower number goes first."""
        counts = F.one_hot(symbols, self.symbols).sum(1)
        return counts.argsort(dim=1, descending=True, stable=True)

    def _probabilities(self, size: int, generator: torch.Generator) -> Float[Tensor, "b symbols"]:
        shapes = torch.full((size, self.symbols), self.concentration)
        drawn = torch._standard_gamma(shapes, generator=generator).clamp_min(1e-30)
        return drawn / drawn.sum(1, keepdim=True)
