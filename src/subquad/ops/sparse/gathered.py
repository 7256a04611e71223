"""Block-sparse attention on a CPU: the key blocks of each block of queries are gathered, those of a few rows at a time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from subquad.ops.parts import PIECE
from subquad.ops.sparse.patterns import Pattern
from subquad.ops.window.strips import Strips


@dataclass(frozen=True)
class Gathered:
    """Rows, which are blocks of queries, that see equally many blocks of keys."""

    block: int
    rows: Int[Tensor, "t"]
    columns: Int[Tensor, "t m"]
    last: int | None
    """Number of keys that count in the last column of each row: None for all, 0 for those up to the query."""
    dtype: torch.dtype
    merges: bool = False

    @cached_property
    def mask(self) -> Float[Tensor, "1 1 c w"] | None:
        """Zero for keys that count and -inf for others."""
        if self.last is None:
            return None
        key = torch.arange(self.block)
        hidden = key > key[:, None] if self.last == 0 else (key >= self.last).expand(self.block, -1)
        mask = torch.zeros(1, 1, self.block, self.columns.shape[1] * self.block, dtype=self.dtype)
        mask[..., -self.block :].masked_fill_(hidden, -math.inf)
        return mask

    def pieces(self, numbers: int) -> Iterator["Gathered"]:
        size = max(1, PIECE // max(1, numbers * self.block * self.columns.shape[1]))
        mask = self.mask
        for rows, columns in zip(self.rows.split(size), self.columns.split(size), strict=True):
            piece = Gathered(self.block, rows, columns, self.last, self.dtype)
            piece.__dict__["mask"] = mask  # the same for all rows
            yield piece

    def pieces_of_keys(self, numbers: int) -> Iterator["Gathered"]:
        return self.pieces(numbers)

    def queries(self, x: Shaped[Tensor, "n h *d"]) -> Shaped[Tensor, "t h c *d"]:
        return self._blocks(x).index_select(0, self.rows).transpose(1, 2)

    def keys(self, x: Shaped[Tensor, "n h d"]) -> Shaped[Tensor, "t h w d"]:
        t, m = self.columns.shape
        chosen = self._blocks(x).index_select(0, self.columns.flatten())
        return chosen.view(t, m * self.block, *x.shape[1:]).transpose(1, 2)

    def put(self, into: Shaped[Tensor, "n h *d"], blocks: Shaped[Tensor, "t h c *d"]) -> None:
        self._blocks(into).index_copy_(0, self.rows, blocks.transpose(1, 2))

    def add_keys(self, into: Shaped[Tensor, "n h d"], strips: Shaped[Tensor, "t h w d"]) -> None:
        chosen = strips.transpose(1, 2).unflatten(1, (self.columns.shape[1], self.block)).flatten(0, 1)
        self._blocks(into).index_add_(0, self.columns.flatten(), chosen)

    def _blocks(self, x: Shaped[Tensor, "n h *d"]) -> Shaped[Tensor, "t c h *d"]:
        return x.unflatten(0, (-1, self.block))


def sparse_parts(
    pattern: Pattern, length: int, block: int, dtype: torch.dtype, *, causal: bool, first: int = 0
) -> list[Gathered | Strips]:
    """Returns the parts of a sequence, those of the queries from position `first` on.

    Rows are grouped by how many columns they have, and by whether part of their last column does not count.
    """
    count = -(-length // block)
    parts: list[Gathered | Strips] = []
    dense = min(count, pattern.dense_rows(causal=causal))
    if dense:
        parts.append(Strips(slice(0, length), 0, min(length, dense * block), 1, 0, length, dtype=dtype))
    rows = torch.arange(max(dense, first // block), count)
    columns = pattern.columns(rows, torch.full_like(rows, count), count, causal=causal)
    columns = torch.where(columns < 0, count, columns).sort(dim=1).values
    number = (columns < count).sum(1)
    latest = columns.gather(1, (number - 1).clamp(min=0)[:, None])[:, 0]
    rest = length % block
    cut = latest == rows if causal else (latest == count - 1) & (rest > 0)
    for size, is_cut in sorted(set(zip(number.tolist(), cut.tolist(), strict=True))):
        chosen = (number == size) & (cut == is_cut)
        last = (0 if causal else rest) if is_cut else None
        if size:
            parts.append(Gathered(block, rows[chosen], columns[chosen, :size], last, dtype))
    return parts
