"""What block-sparse attention needs to know of a pattern, and the hash that random patterns are drawn with."""

from typing import Protocol

from jaxtyping import Int
from torch import Tensor

Rows = Int[Tensor, "*x"]
Columns = Int[Tensor, "*x c"]


class Pattern(Protocol):
    """Which blocks of keys a block of queries sees."""

    def columns(self, row: Rows, count: Rows, most: int, *, causal: bool) -> Columns:
        """Returns the blocks that the block of queries `row` of a sequence of `count` blocks sees.

        Each stands there once, in any order, with -1 in the places that are left. In the causal form none is after the row.
        `most` is the largest number of blocks of a sequence.
        """
        ...

    def dense_rows(self, *, causal: bool) -> int:
        """Returns the number of first rows that see every block; `columns` need not hold for them."""
        ...


def drawn(seed: Int[Tensor, ""], row: Int[Tensor, "*#x"], run: Int[Tensor, "*#x"]) -> Int[Tensor, "*x"]:
    """Returns numbers from 0 to 2^31 - 1 that depend on nothing but the arguments: a hash, the same on every device."""
    mixed = seed + row * 0x9E3779B97F4A7C1 + run * 0x2545F4914F6CDD1D
    for factor in (0x3F58476D1CE4E5B9, 0x14D049BB133111EB):
        mixed = (mixed ^ (mixed >> 29)) * factor  # wraps around
    return (mixed ^ (mixed >> 32)) & 0x7FFFFFFF
