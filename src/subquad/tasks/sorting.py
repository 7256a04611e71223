"""The sorting task (Martins et al. 2022, section 4.1): order symbols by their frequency in a long sequence.

The symbols' probabilities drift along the sequence, so that no part of it represents the whole, and a model that forgets
the beginning cannot answer. The model gives a score for each symbol at the end of the sequence. The likelihood of an order
is that of choosing the symbols one after the other, each among those not yet chosen (Plackett and Luce).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.checking import AtLeastTwo, Count, Moderate
from subquad.errors import SubquadError
from subquad.models import Decoder, ModelOptions, Size, decoder_size
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.tasks.comparing import TEST_SEED, Judged, Rival, judged_means
from subquad.types import AttentionOptions


class SortingBatch(NamedTuple):
    """Sequences of symbols, and for each the symbols from the most to the least frequent."""

    symbols: Int[Tensor, "b n"]
    order: Int[Tensor, "b symbols"]


@dataclass(frozen=True)
class Sorting(TaskOptions, Task[SortingBatch]):
    """Order symbols by their frequency in a long random sequence."""

    length: AtLeastTwo = 4096  # number of positions of a sequence, including the final token that asks for the answer
    symbols: AtLeastTwo = 20  # number of different symbols
    concentration: Moderate = 1.0  # concentration of the Dirichlet distribution of the symbols' probabilities
    held_out: Count = 64  # number of new sequences in an evaluation
    evaluation_batch: Count = 8  # number of sequences per batch in evaluations
    kind: str = field(default="sorting", init=False)

    line_form: ClassVar[LineForm] = "words"

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of `subquad reproduce infinity`, by the length of the sequences."""
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
        """Lower bound on the size of the model and of a step, with the one-hot vectors that symbols are counted by."""
        size = decoder_size(self.symbols + 1, attention, model, positions=self.length)
        return size._replace(sequence_bytes=8 * (self.length - 1) * self.symbols)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "Sorting":
        """Returns the task itself, which needs no data."""
        return self

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> Decoder:
        return Decoder(self.symbols + 1, attention, model, generator=generator)

    def batch(self, size: int, generator: torch.Generator) -> SortingBatch:
        """Draws sequences whose symbol probabilities move linearly from those of the first position to those of the last."""
        drawn_length = self.length - 1
        ends = self._probabilities(2 * size, generator)
        first, last = (torch.multinomial(end, drawn_length, replacement=True, generator=generator) for end in ends.chunk(2))
        along = (torch.arange(drawn_length) + 0.5) / drawn_length
        drawn = torch.where(torch.rand(size, drawn_length, generator=generator) < along, last, first)
        return SortingBatch(drawn, self._order(drawn))

    def loss(self, model: nn.Module, batch: SortingBatch) -> Counted:
        """Negative log-probability of each symbol in the true order, among the symbols not yet chosen."""
        named = self.scores(model, batch.symbols).gather(1, batch.order)
        among = named.flip(1).logcumsumexp(1).flip(1)
        return Counted((among - named).sum(), self.count(batch))

    def count(self, batch: SortingBatch) -> int:
        return batch.order.numel()

    @property
    def ranked_by(self) -> Best:
        """The share of positions with the right symbol."""
        return Best("token_accuracy", "high")

    @property
    def is_causal(self) -> bool:
        return True

    @torch.no_grad()
    def judge(self, model: nn.Module) -> Judged:
        """Share of positions with the right symbol in each test sequence."""
        drawing = torch.Generator().manual_seed(TEST_SEED)
        shares: list[float] = []
        model.eval()
        while len(shares) < self.held_out:
            batch = self.batch(min(self.evaluation_batch, self.held_out - len(shares)), drawing)
            shares += (self.answer(model, batch.symbols) == batch.order).double().mean(1).tolist()
        return judged_means("token_accuracy", "high", "share", np.array(shares), np.ones(len(shares)))

    def rivals(self) -> dict[str, Rival]:
        """Any order, which has one symbol in its right place on average."""
        ones = np.ones(self.held_out)
        return {"guessing": Rival(judged_means("token_accuracy", "high", "share", ones / self.symbols, ones), True)}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Share of positions with the right symbol, and the mean distance of a symbol from its right position."""
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
        """The model's score for each symbol at the end of the sequence."""
        logits: Tensor = model(F.pad(symbols, (0, 1), value=self.symbols), last=1)
        return logits[:, 0, : self.symbols].float()

    def answer(self, model: nn.Module, symbols: Int[Tensor, "b n"]) -> Int[Tensor, "b symbols"]:
        """The symbols in descending order of their scores."""
        device = next(model.parameters()).device
        return self.scores(model, symbols.to(device)).argsort(1, descending=True).cpu()

    def read(self, words: Sequence[str]) -> SortingBatch:
        """Converts a user's sequence of numbers from 0 into a batch."""
        wrong = [word for word in words if not word.isdigit() or int(word) >= self.symbols]
        if wrong or not words:
            problem = repr(wrong[0]) if wrong else "nothing"
            raise SubquadError(f"sorting takes symbols from 0 to {self.symbols - 1}, at least one, but was given {problem}")
        numbers = torch.tensor([[int(word) for word in words]])
        return SortingBatch(numbers, self._order(numbers))

    @torch.no_grad()
    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The model's answer to a user's sequence of any length."""
        return self.spell(self.answer(model, self.read(words).symbols)[0])

    def spell(self, symbols: Tensor) -> str:
        """Writes symbols as numbers from 0."""
        return " ".join(str(symbol) for symbol in symbols.tolist())

    def _order(self, symbols: Int[Tensor, "b n"]) -> Int[Tensor, "b symbols"]:
        """Symbols from the most to the least frequent. Among equally frequent ones, the lower number comes first."""
        counts = F.one_hot(symbols, self.symbols).sum(1)
        return counts.argsort(dim=1, descending=True, stable=True)

    def _probabilities(self, size: int, generator: torch.Generator) -> Float[Tensor, "b symbols"]:
        shapes = torch.full((size, self.symbols), self.concentration)
        drawn = torch._standard_gamma(shapes, generator=generator).clamp_min(1e-30)
        return drawn / drawn.sum(1, keepdim=True)
