"""Induction heads (Olsson et al. 2022; as a task in Gu and Dao 2023, section 4.1): what came after this the last time?"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.checking import LARGEST, AtLeastTwo
from subquad.errors import SubquadError
from subquad.tasks.recall.answering import UNASKED, AnswerBatch, Answering, number_in, one_sequence

MARK = "*"
"""Word for the special token."""


@dataclass(frozen=True)
class Induction(Answering):
    """Name the symbol that came after a special token, when that token comes again at the end. Sequences are random."""

    length: Annotated[int, Ge(3), Le(LARGEST)] = 256  # number of positions of a sequence, both special tokens included
    symbols: AtLeastTwo = 16  # number of different symbols
    kind: str = field(default="induction", init=False)

    @property
    def vocabulary(self) -> int:
        return self.symbols + 1

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def can_be_answer(self, tokens: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        return tokens < self.symbols

    @property
    def default_steps(self) -> int:
        return 800

    def batch(self, size: int, generator: torch.Generator) -> AnswerBatch:
        """Draws symbols, and a position of the special token that leaves room for the symbol after it."""
        tokens = torch.randint(self.symbols, (size, self.length), generator=generator)
        marked = torch.randint(self.length - 2, (size, 1), generator=generator)
        answers = torch.full_like(tokens, UNASKED)
        answers[:, -1:] = tokens.gather(1, marked + 1)
        tokens[:, -1] = self.symbols
        return AnswerBatch(tokens.scatter(1, marked, self.symbols), answers)

    def read(self, words: Sequence[str]) -> AnswerBatch:
        """Converts symbols and special tokens such as ``4 1 * 7 2 *``."""
        if len(words) > self.length:
            raise SubquadError(f"the model reads {self.length} positions, but was given {len(words)}")
        tokens = [self.symbols if word == MARK else number_in(word, "symbol", self.symbols) for word in words]
        if (
            len(tokens) < 3
            or tokens[-1] != self.symbols
            or tokens[:-2].count(self.symbols) != 1
            or tokens[-2] == self.symbols
        ):
            raise SubquadError(
                f"induction takes symbols with one {MARK} before another symbol, and a second {MARK} at the end, such as "
                f"4 1 {MARK} 7 2 {MARK}"
            )
        return one_sequence(tokens, [len(tokens) - 1])

    def spell(self, tokens: Sequence[int]) -> str:
        """Writes symbols as numbers from 0, and the special token as a star."""
        return " ".join(MARK if token == self.symbols else str(token) for token in tokens)

    def spell_answers(self, tokens: Sequence[int]) -> str:
        return self.spell(tokens)
