"""Multi-query associative recall (Arora et al. 2023, *Zoology*): pairs of keys and values, then questions for values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.checking import AtLeastTwo, Count, Positive
from subquad.errors import SubquadError
from subquad.tasks.recall.answering import UNASKED, AnswerBatch, Answering, number_in, one_sequence

BLANK, FIRST_KEY = 0, 1  # token at positions that say nothing, and the token of key 0


@dataclass(frozen=True)
class Recall(Answering):
    """Remember pairs of keys and values: the value of each key is asked once. Sequences are random."""

    length: Count = 64  # number of positions of a sequence: two for each pair, one for each question, and blanks
    pairs: Count = 8  # number of pairs in a sequence
    keys: AtLeastTwo = 32  # number of different keys
    values: AtLeastTwo = 32  # number of different values
    near: Positive = 1.0  # 1 puts questions anywhere after the pairs; 0.01, as in the paper, most of them right after them
    kind: str = field(default="recall", init=False)

    def check(self) -> None:
        if self.keys < self.pairs:
            raise SubquadError(f"each pair has another key: --keys must be at least {self.pairs}, but is {self.keys}")
        if self.length < 3 * self.pairs:
            raise SubquadError(
                f"{self.pairs} pairs and as many questions take {3 * self.pairs} positions, but --length is {self.length}"
            )

    @property
    def vocabulary(self) -> int:
        return FIRST_KEY + self.keys + self.values

    @property
    def chance(self) -> float:
        return 1 / self.values

    @property
    def share_of_frequent(self) -> float:
        """Expected share of right answers of naming the value that stands most often in a sequence, whatever the key."""
        return sum(1 - self._none_above(most) for most in range(self.pairs)) / self.pairs

    def _none_above(self, most: int) -> float:
        """Probability that no value stands in more than `most` pairs.

        It is pairs! times the coefficient of x^pairs in (1 + y + ... + y^most / most!)^values, where y is x / values.
        """
        terms = np.array([float(self.values) ** -number / math.factorial(number) for number in range(most + 1)])
        ways = np.ones(1)
        for _ in range(self.values):
            ways = np.convolve(ways, terms)[: self.pairs + 1]
        return float(ways[self.pairs]) * math.factorial(self.pairs) if len(ways) > self.pairs else 0.0

    def can_be_answer(self, tokens: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        return tokens >= FIRST_KEY + self.keys

    @property
    def default_steps(self) -> int:
        return 100 * max(6, self.pairs)

    def batch(self, size: int, generator: torch.Generator) -> AnswerBatch:
        """Draws pairs with different keys, and the positions and the order in which they are asked."""
        keys = FIRST_KEY + torch.rand(size, self.keys, generator=generator).argsort(1)[:, : self.pairs]
        values = FIRST_KEY + self.keys + torch.randint(self.values, keys.shape, generator=generator)
        tokens = torch.full((size, self.length), BLANK)
        tokens[:, 0 : 2 * self.pairs : 2], tokens[:, 1 : 2 * self.pairs : 2] = keys, values
        places = 2 * self.pairs + self._places(size, generator)
        answers = torch.full_like(tokens, UNASKED)
        return AnswerBatch(tokens.scatter(1, places, keys), answers.scatter(1, places, values))

    def read(self, words: Sequence[str]) -> AnswerBatch:
        """Converts pairs such as ``3:7`` followed by keys."""
        pairs = [word.partition(":") for word in words if ":" in word]
        asked = list(words[len(pairs) :])
        if not pairs or not asked or any(":" in word for word in asked):
            raise SubquadError(
                "recall takes pairs, then the keys whose values are asked, such as 3:7 1:2 3: give both, pairs first"
            )
        tokens = []
        for key, _, value in pairs:
            tokens += [FIRST_KEY + number_in(key, "key", self.keys)]
            tokens += [FIRST_KEY + self.keys + number_in(value, "value", self.values)]
        tokens += [FIRST_KEY + number_in(word, "key", self.keys) for word in asked]
        if (taken := len(tokens)) > self.length:
            raise SubquadError(
                f"the model reads {self.length} positions, but {len(pairs)} pairs and {len(asked)} questions take {taken}"
            )
        unknown = [key for key in tokens[2 * len(pairs) :] if key not in tokens[0 : 2 * len(pairs) : 2]]
        if unknown:
            raise SubquadError(f"the key {unknown[0] - FIRST_KEY} is asked but is in no pair: ask for one that is")
        return one_sequence(tokens, range(2 * len(pairs), len(tokens)))

    def spell(self, tokens: Sequence[int]) -> str:
        """Writes the pairs as ``key:value``, the keys that are asked, and "_" for blanks."""
        first_value = FIRST_KEY + self.keys
        words = [
            "_" if token == BLANK else str(token - (FIRST_KEY if token < first_value else first_value)) for token in tokens
        ]
        pairs = [f"{words[2 * at]}:{words[2 * at + 1]}" for at in range(self.pairs)]
        return " ".join([*pairs, *words[2 * self.pairs :]])

    def spell_answers(self, tokens: Sequence[int]) -> str:
        """Writes values as numbers from 0, and other tokens as "_"."""
        first_value = FIRST_KEY + self.keys
        return " ".join("_" if token < first_value else str(token - first_value) for token in tokens)

    def _places(self, size: int, generator: torch.Generator) -> Int[Tensor, "b pairs"]:
        """Different places after the pairs, in random order. Place i has a probability in proportion to i^(near - 1).

        The places with the smallest exponential times are a draw without replacement, with the probabilities as rates.
        """
        rates = torch.arange(1, self.length - 2 * self.pairs + 1, dtype=torch.float64) ** (self.near - 1)
        times = -torch.rand(size, len(rates), generator=generator, dtype=torch.float64).log() / rates
        chosen = times.argsort(1)[:, : self.pairs]
        return chosen.gather(1, torch.rand(chosen.shape, generator=generator).argsort(1))
