"""Attention in a sliding window on a CPU: blocks of queries against strips of keys, which are views and not copies."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from subquad.ops.parts import PIECE

LARGEST_BLOCK, SMALLEST_BLOCK = 128, 32  # queries of a block: more of them see fewer keys in common, fewer compute slowly


@dataclass(frozen=True)
class Strips:
    """Blocks of queries that follow one another, and for each a strip of keys; the strips move with the blocks.

    Queries and keys are those of a lane, such as every second position.
    """

    lane: slice
    row: int
    """Place of the first query within the lane."""
    block: int
    """Number of queries in a block, and the distance between the strips of neighbouring blocks."""
    count: int
    """Number of blocks."""
    key: int
    """Place of the first key of the first block within the lane."""
    strip: int
    """Number of keys in a strip."""
    before: int | None = None
    """How many places before itself a query sees; None for all in the strip."""
    after: int | None = None
    """How many places after itself a query sees; None for all in the strip."""
    merges: bool = False
    dtype: torch.dtype = torch.float32

    @cached_property
    def mask(self) -> Float[Tensor, "1 1 c w"] | None:
        """Zero for pairs within reach and -inf for others; None if all are."""
        shift = self.key - self.row
        low, high = shift - self.block + 1, shift + self.strip - 1
        if (self.before is None or low >= -self.before) and (self.after is None or high <= self.after):
            return None
        distance = torch.arange(self.strip) + shift - torch.arange(self.block)[:, None]
        hidden = torch.zeros(self.block, self.strip, dtype=torch.bool)
        if self.before is not None:
            hidden |= distance < -self.before
        if self.after is not None:
            hidden |= distance > self.after
        return torch.zeros(1, 1, self.block, self.strip, dtype=self.dtype).masked_fill_(hidden, -math.inf)

    def pieces(self, numbers: int) -> Iterator["Strips"]:
        size = max(1, PIECE // max(1, numbers * self.strip))
        if size >= self.count:
            yield self
            return
        mask = self.mask
        for start in range(0, self.count, size):
            shift, count = start * self.block, min(size, self.count - start)
            piece = replace(self, row=self.row + shift, key=self.key + shift, count=count)
            piece.__dict__["mask"] = mask  # the same for all blocks
            yield piece

    def pieces_of_keys(self, numbers: int) -> Iterator["Strips"]:
        size = max(1, PIECE // max(1, numbers))
        if self.count > 1 or size >= self.strip:
            yield from self.pieces(numbers)
            return
        for start in range(0, self.strip, size):
            strip = min(size, self.strip - start)
            yield replace(self, key=self.key + start, strip=strip, merges=self.merges or start > 0)

    def queries(self, x: Shaped[Tensor, "n h *d"]) -> Shaped[Tensor, "t h c *d"]:
        lane = x[self.lane][self.row : self.row + self.count * self.block]
        return lane.unflatten(0, (self.count, self.block)).transpose(1, 2)

    def keys(self, x: Shaped[Tensor, "n h d"]) -> Shaped[Tensor, "t h w d"]:
        end = self.key + (self.count - 1) * self.block + self.strip
        return x[self.lane][self.key : end].unfold(0, self.strip, self.block).mT

    def put(self, into: Shaped[Tensor, "n h *d"], blocks: Shaped[Tensor, "t h c *d"]) -> None:
        self.queries(into).copy_(blocks)

    def add_keys(self, into: Shaped[Tensor, "n h d"], strips: Shaped[Tensor, "t h w d"]) -> None:
        """Strips overlap, but their pieces of one block's length do not."""
        lane = into[self.lane]
        for start in range(0, self.strip, self.block):
            size = min(self.block, self.strip - start)
            first = self.key + start
            places = lane[first : first + (self.count - 1) * self.block + size].unfold(0, size, self.block).mT
            places.add_(strips[:, :, start : start + size])


def window_parts(
    length: int, reach: int, dilation: int, global_tokens: int, dtype: torch.dtype, *, causal: bool
) -> list[Strips]:
    """Returns the parts of a sequence: the windows of all queries but the first, which are global, then the global pairs."""
    first = min(global_tokens, length)
    parts: list[Strips] = []
    for start in range(first, min(length, first + dilation)):
        parts += _lane(slice(start, length, dilation), -(-(length - start) // dilation), reach, dtype, causal=causal)
    everything = slice(0, length)
    if first:
        after = 0 if causal else None
        seen = first if causal else length
        parts.append(Strips(everything, 0, first, 1, 0, seen, after=after, dtype=dtype))
    if first and first < length:
        parts.append(Strips(everything, first, length - first, 1, 0, first, merges=True, dtype=dtype))
    return parts


def _lane(lane: slice, length: int, reach: int, dtype: torch.dtype, *, causal: bool) -> Iterator[Strips]:
    """Yields the blocks whose strips are whole, all in one, then the blocks at both ends of the sequence."""
    after = 0 if causal else reach
    block = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, reach // 2))
    first, last = -(-reach // block), (length - after) // block
    if first < last:
        strip = reach + block + after
        yield Strips(lane, first * block, block, last - first, first * block - reach, strip, reach, after, dtype=dtype)
        ends = [*range(0, first * block, block), *range(last * block, length, block)]
    else:
        ends = [*range(0, length, block)]
    for start in ends:
        stop = min(length, start + block)
        low, high = max(0, start - reach), min(length, stop + after)
        yield Strips(lane, start, stop - start, 1, low, high - low, reach, after, dtype=dtype)
