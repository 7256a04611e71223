"""Patterns of block-sparse attention: which blocks of keys a block of queries sees."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from subquad.ops.sparse.patterns import Columns, Rows, drawn


def _spare() -> int:
    """Number of columns that are added when compiling, so that a graph does not depend on whether there are 0, 1 or more."""
    return 2 if torch.compiler.is_compiling() else 0


class BlockPattern(nn.Module):
    """Base class of patterns, see `subquad.ops.sparse.patterns.Pattern`. What a pattern draws is a buffer."""

    def columns(self, row: Rows, count: Rows, most: int, *, causal: bool) -> Columns:
        raise NotImplementedError

    def dense_rows(self, *, causal: bool) -> int:
        """Returns the number of first rows that see every block."""
        return 0


class Mixture(BlockPattern):
    """Neighbouring, global and random blocks (Zaheer et al. 2020, BigBird).

    The blocks that are neither neighbours nor global are cut into as many equal runs as there are random blocks, and one is
    drawn from each run. The draw depends on `seed`, the row and the length, and in the causal form not on the length.
    """

    seed: Tensor

    def __init__(self, near: int, global_blocks: int, random_blocks: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.near, self.global_blocks, self.random_blocks = near, global_blocks, random_blocks
        if random_blocks:
            self.register_buffer("seed", torch.randint(2**31, (), generator=generator))

    def columns(self, row: Rows, count: Rows, most: int, *, causal: bool) -> Columns:
        row, count = (x[..., None] for x in torch.broadcast_tensors(row, count))
        last = row + 1 if causal else count
        everyone = torch.arange(self.global_blocks, device=row.device).expand(*row.shape[:-1], self.global_blocks)
        everyone = torch.where(everyone < last, everyone, -1)
        beside = row + torch.arange(-self.near, 1 if causal else self.near + 1, device=row.device)
        beside = torch.where((beside >= self.global_blocks) & (beside < last), beside, -1)
        drawn_blocks = [self._random(row, last)] if self.random_blocks else []
        return torch.cat([everyone, beside, *drawn_blocks], dim=-1)

    def dense_rows(self, *, causal: bool) -> int:
        return 0 if causal else self.global_blocks

    def _random(self, row: Tensor, last: Tensor) -> Tensor:
        first = self.global_blocks
        before = (row - self.near - first).clamp(min=0)  # blocks between the global ones and the neighbours
        rest = (row + self.near + 1).clamp(min=first)
        others = before + (last - rest).clamp(min=0)
        run = torch.arange(self.random_blocks, device=row.device)
        start, stop = (run * others) // self.random_blocks, ((run + 1) * others) // self.random_blocks
        place = start + drawn(self.seed, row, run) % (stop - start).clamp(min=1)
        block = torch.where(place < before, first + place, rest + place - before)
        return torch.where(stop > start, block, -1)


class Strided(BlockPattern):
    """The last `stride` blocks and every `stride`-th block (Child et al. 2019, Sparse Transformer, strided)."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def columns(self, row: Rows, count: Rows, most: int, *, causal: bool) -> Columns:
        row, count = (x[..., None] for x in torch.broadcast_tensors(row, count))
        beside = torch.arange(1 - self.stride, 1 if causal else self.stride, device=row.device)
        jumps = self.stride * torch.arange(1, most // self.stride + 1 + _spare(), device=row.device)
        column = row + torch.cat([beside, -jumps] if causal else [beside, -jumps, jumps])
        return torch.where((column >= 0) & (column < count), column, -1)


class Fixed(BlockPattern):
    """The own stretch of `stride` blocks and the last blocks of every stretch (Child et al. 2019, fixed)."""

    def __init__(self, stride: int, summary: int) -> None:
        super().__init__()
        self.stride, self.summary = stride, summary

    def columns(self, row: Rows, count: Rows, most: int, *, causal: bool) -> Columns:
        row, count = (x[..., None] for x in torch.broadcast_tensors(row, count))
        last = row + 1 if causal else count
        stretch = row // self.stride
        inside = stretch * self.stride + torch.arange(self.stride, device=row.device)
        ends = self.stride * torch.arange(1, most // self.stride + 2 + _spare(), device=row.device)
        summaries = (ends[:, None] - torch.arange(self.summary, 0, -1, device=row.device)).flatten()
        beyond = torch.where(summaries // self.stride == stretch, -1, summaries)
        column = torch.cat([inside, beyond], dim=-1)
        return torch.where(column < last, column, -1)


class Given(BlockPattern):
    """Any pattern, from the columns of each row."""

    table: Tensor

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        super().__init__()
        widest = max(1, *map(len, rows))
        table = torch.tensor([[*row, *[-1] * (widest - len(row))] for row in rows])
        self.register_buffer("table", table, persistent=False)

    def columns(self, row: Rows, count: Rows, most: int, *, causal: bool) -> Columns:
        row, count = torch.broadcast_tensors(row, count)
        column = self.table[row.clamp(max=len(self.table) - 1)]
        return torch.where(column < (row + 1 if causal else count)[..., None], column, -1)
