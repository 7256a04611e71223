"""Which keys each query sees in one round of hashing, as tables of small blocks of queries and chunks of keys.

The keys of a bucket, counted from the first, are cut into chunks. A query belongs to the chunk of the last key of its bucket
that is not after it, and sees that chunk and the one before. The queries of one chunk are cut into pieces. Work and memory
are those of the pieces: their number is at most n / piece + s / chunk + buckets for each head.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

LATE = 2**31 - 1  # place of a key that does not exist, after all others


class Round(NamedTuple):
    """The pieces of one round. Rows are sequences and heads; g counts chunks, t pieces, c and p places in them.

    Chunk 0 is empty and stands for the chunk before a bucket's first. All numbers are int32.
    """

    key_at: Int[Tensor, "g c"]  # index into the keys of all rows; 0 where there is none
    key_place: Int[Tensor, "g c"]  # position of the key; `LATE` where there is none
    query_at: Int[Tensor, "t p"]  # index into the queries of all rows; their number where there is none
    query_place: Int[Tensor, "t p"]  # position of the query; -1 where there is none
    before: Int[Tensor, "t"]  # chunk before that of each piece; pieces without one come first
    chunk: Int[Tensor, "t"]  # chunk of each piece
    key_slot: Int[Tensor, "rows*s"]  # index into key_at of each key; its size for padding
    query_slot: Int[Tensor, "rows*n"]  # index into query_at of each query
    key_code: Int[Tensor, "rows*s"]  # number of the key's chunk, counted with a gap between buckets; -2 for padding
    query_code: Int[Tensor, "rows*n+1"]  # number of the query's chunk: it sees keys with this code and with one less


class Sizes(NamedTuple):
    """What the rounds have in common."""

    buckets: int
    chunk: int
    piece: int
    by_key: bool  # whether each query has the bucket of the key at its position, and no key is padding
    exact: bool  # whether tables are as small as they can be; else shapes decide on their size, as compilers need it
    narrow: bool = False  # whether chunks may be narrower; the causal form's are not, as the future would round the past


def arrange(
    query_buckets: Int[Tensor, "rows n"], key_buckets: Int[Tensor, "rows s"], places: Int[Tensor, "n"], sizes: Sizes
) -> Round:
    """Returns the tables of one round, for queries at these places among the keys. Padding is in one bucket too many."""
    (rows, s), b = key_buckets.shape, sizes.buckets
    is_real = key_buckets < b
    count, first, c, total = _chunks(key_buckets, is_real, sizes)

    sorted_buckets, order = key_buckets.sort(dim=1, stable=True)
    start = count.cumsum(1) - count
    rank = torch.arange(s, device=order.device) - start.gather(1, sorted_buckets)
    slot = torch.where(sorted_buckets < b, first.gather(1, sorted_buckets) * c + rank, total * c)
    key_slot = torch.empty_like(order).scatter_(1, order, slot)
    index = torch.arange(rows * s, device=order.device)
    key_at = _table(total, c, 0, key_slot, index)
    key_place = _table(total, c, LATE, key_slot, index % s)

    gaps = torch.arange(rows * (b + 1), device=order.device).view_as(first)
    key_code = torch.where(is_real, key_slot // c + gaps.gather(1, key_buckets), -2)
    if sizes.by_key:
        chunk = key_slot // c
    else:
        composite = sorted_buckets * s + order
        last = torch.searchsorted(composite, query_buckets * s + places, right=True) - start.gather(1, query_buckets)
        chunk = first.gather(1, query_buckets) + (last - 1).clamp(min=0) // c
        order = chunk.argsort(dim=1, stable=True)
    has_before = torch.ones(total, dtype=torch.bool, device=order.device).index_fill(0, first.flatten(), False)
    query_slot, of_piece = _pieces(chunk, order, has_before, sizes, rows * (s // c + b + 1))
    n = chunk.shape[1]
    query_at = _table(of_piece.shape[0], sizes.piece, rows * n, query_slot, torch.arange(rows * n, device=order.device))
    query_place = _table(of_piece.shape[0], sizes.piece, -1, query_slot, places.repeat(rows))
    before = torch.where(has_before[of_piece], of_piece - 1, 0).clamp(min=0)
    query_code = F.pad((chunk + gaps.gather(1, query_buckets)).flatten(), (0, 1), value=-9)
    flat = (key_slot.flatten(), query_slot.flatten(), key_code.flatten(), query_code)
    return Round(
        key_at,
        key_place,
        query_at,
        query_place,
        before.int(),
        of_piece.int(),
        *(part.int() for part in flat),
    )


def _chunks(
    key_buckets: Int[Tensor, "rows s"], is_real: Bool[Tensor, "rows s"], sizes: Sizes
) -> tuple[Int[Tensor, "rows b"], Int[Tensor, "rows b"], int, int]:
    """Returns the number of keys and the first chunk of each bucket, the length of a chunk, and the number of chunks."""
    (rows, s), b, c = key_buckets.shape, sizes.buckets, sizes.chunk
    count = is_real.new_zeros(rows, b + 1, dtype=torch.int64).scatter_add_(1, key_buckets, is_real.long())
    if sizes.narrow:  # where no bucket fills a chunk, narrower ones hold the same keys
        c = min(c, 8 * -(-int(count.max()) // 8) or 8)
    chunks = ((count + c - 1) // c).clamp(min=1)
    first = 1 + chunks.flatten().cumsum(0).view_as(chunks) - chunks
    return count, first, c, int(chunks.sum()) + 1 if sizes.exact else 1 + rows * (s // c + b + 1)


def _pieces(
    chunk: Int[Tensor, "rows n"],
    order: Int[Tensor, "rows n"],
    has_before: Bool[Tensor, "g"],
    sizes: Sizes,
    most_chunks: int,
) -> tuple[Int[Tensor, "rows n"], Int[Tensor, "t"]]:
    """Cuts the queries of each chunk into pieces; returns each query's slot in them, and the chunk of each piece.

    `order` sorts the queries of each row by chunk, and chunks of later rows have higher numbers. Pieces of chunks that have
    no chunk before them come first.
    """
    p, (rows, n) = sizes.piece, chunk.shape
    by_chunk = chunk.gather(1, order).flatten()
    index = torch.arange(rows * n, device=chunk.device)
    is_new = torch.cat([by_chunk.new_ones(1, dtype=torch.bool), by_chunk[1:] != by_chunk[:-1]])
    inside = index - torch.where(is_new, index, 0).cummax(0).values
    starts, is_late = inside % p == 0, has_before[by_chunk]
    early, late = (starts & ~is_late).cumsum(0), (starts & is_late).cumsum(0)
    piece = torch.where(is_late, early[-1] + late, early) - 1
    pieces = int(early[-1] + late[-1]) if sizes.exact else rows * (n // p) + most_chunks
    of_piece = torch.zeros(pieces, dtype=torch.int64, device=chunk.device).index_put((piece,), by_chunk)
    slot = torch.empty_like(order).scatter_(1, order, (piece * p + inside % p).view(rows, n))
    return slot, of_piece


def _table(
    count: int, width: int, missing: int, slot: Int[Tensor, "rows n"], values: Int[Tensor, "rows*n"]
) -> Int[Tensor, "count width"]:
    """Returns a table with each value in its slot, and `missing` elsewhere; slots after the last are thrown away."""
    table = torch.full((count + 1, width), missing, dtype=torch.int32, device=slot.device)
    flat = slot.flatten()
    return table.index_put((flat // width, flat % width), values.int())[:-1]
