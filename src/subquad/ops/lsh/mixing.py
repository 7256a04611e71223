"""Softmax attention over the keys that several rounds of hashing find, one block of pieces at a time.

With m and l the running maximum and sum of a query's weights, and o the sum of its weighted values, a round changes them to

    m' = max(m, m_r),   l' = l 2^(m - m') + l_r 2^(m_r - m'),   o' = o 2^(m - m') + o_r 2^(m_r - m')

so that o / l in the end is softmax attention over the keys of all rounds. A key that an earlier round has found is left
out in later ones and counts once.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from subquad.ops import pages
from subquad.ops.autocast import product
from subquad.ops.lsh.layout import LATE, Round
from subquad.ops.scratch import Scratch

LOWEST = -1e30  # stands for the logarithm of zero in differences, which must not be NaN
BLOCK = 2**17  # most scores that are computed together
LANES = 64  # PyTorch computes powers of so many numbers at once, and those that are left over with another rounding


class Rule(NamedTuple):
    """Which of the keys that hashing finds a query sees."""

    causal: bool  # only those that are not after it
    others: bool  # not the key at its own position


class Block(NamedTuple):
    """Some pieces of one round, the chunks that they see, and indices of their queries and keys."""

    pieces: slice
    windows: Sequence[Tensor]  # chunk of each piece, after the chunk before it if they have one
    queries: Int[Tensor, "t p"]
    keys: Int[Tensor, "t w"]


class Flat(NamedTuple):
    """Queries, keys and values of some sequences and heads in one list."""

    q: Float[Tensor, "rows*n d"]
    k: Float[Tensor, "rows*s d"]  # times log2(e) / sqrt d, for scores whose power of 2 is the weight
    v: Float[Tensor, "rows*s e"]


class Workspace:
    """Memory for some heads at a time, which the next heads use again.

    New memory of several megabytes costs as much as computing with it (see `subquad.ops.scratch`).
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Returns an uninitialized tensor, in the memory that had this name before if it is large enough."""
        size = math.prod(shape)
        if name not in self._kept or self._kept[name].numel() < size:
            self._kept[name] = pages.new_empty(self._like, size)
        return self._kept[name][:size].view(shape)


def mix_at_once(flat: Flat, rounds: Sequence[Round], rule: Rule) -> tuple[Tensor, Tensor]:
    """Returns the mixed values, "rows*n e", and whether each query has found a key, without loops over blocks."""
    sums = []
    for at, rows in enumerate(rounds):
        block = block_of(rows, [rows.before, rows.chunk], slice(0, rows.chunk.shape[0]))
        q, k, v = _read(flat, block)
        scores = product(q, k.mT).masked_fill(hidden(rounds, at, block, rule), -math.inf)
        top = scores.detach().amax(-1, keepdim=True).clamp(min=LOWEST)
        weights = torch.exp2(scores - top)
        parts = (product(weights, v), weights.sum(-1, keepdim=True), top)
        sums.append([part.flatten(0, 1).index_select(0, rows.query_slot) for part in parts])
    highest = torch.stack([top for _, _, top in sums]).amax(0)
    mixed = sum(values * torch.exp2(top - highest) for values, _, top in sums)
    total = sum(norms * torch.exp2(top - highest) for _, norms, top in sums)
    assert isinstance(mixed, Tensor)
    assert isinstance(total, Tensor)
    found = total > 0
    return mixed / torch.where(found, total, 1.0), found[:, 0]


def mix_in_blocks(flat: Flat, rounds: Sequence[Round], rule: Rule, mixed: Float[Tensor, "all e"]) -> Float[Tensor, "n"]:
    """Writes the mixed values block by block; returns the base-2 logarithm of the total weights, -inf if no key is found.

    `mixed` has a row for each query and one more, which is overwritten with numbers that mean nothing.
    """
    scratch, count = Scratch(flat.q.dtype), len(flat.q) + 1
    norms, tops = mixed.new_empty(count, 1), mixed.new_empty(count, 1)
    for at, rows in enumerate(rounds):
        for block in blocks(rows):
            scratch.start()
            q, k, v = _read(flat, block, scratch)
            size = q.shape[0] * q.shape[1] * k.shape[1]
            filled = scratch.take(size + -size % LANES)
            weights = torch.bmm(q, k.mT, out=filled[:size].view(*q.shape[:2], k.shape[1]))
            weights.masked_fill_(hidden(rounds, at, block, rule), -math.inf)
            top = weights.amax(-1, keepdim=True).clamp_(min=LOWEST)
            weights.sub_(top)
            filled.exp2_()
            norm = weights.sum(-1).view(-1, 1)
            out = torch.bmm(weights, v, out=scratch.take(*q.shape[:2], v.shape[2])).flatten(0, 1)
            top, rows_at = top.view(-1, 1), block.queries.flatten().long()
            if at:
                before = tops.index_select(0, rows_at)
                higher = torch.maximum(before, top)
                fade, share = _power(before - higher), _power(top - higher)
                out.mul_(share).addcmul_(mixed.index_select(0, rows_at), fade)
                norm = norm.mul_(share).addcmul_(norms.index_select(0, rows_at), fade)
                top = higher
            mixed.index_copy_(0, rows_at, out)
            norms.index_copy_(0, rows_at, norm)
            tops.index_copy_(0, rows_at, top)
    norms = norms[:-1]
    mixed[:-1].div_(torch.where(norms > 0, norms, 1.0))
    return (tops[:-1] + norms.log2())[:, 0]


def _power(x: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1"]:
    """Returns 2^x, the same bits for a number whatever the others are and however many."""
    return F.pad(x, (0, 0, 0, -len(x) % LANES)).exp2_()[: len(x)]


class OfQueries(NamedTuple):
    """What the backward knows of each query: G, the gradient of its mixed values; D = G . out; its height.

    The height is the base-2 logarithm of the query's total weight, and infinite if it has found no key. There is one more,
    infinite too, for queries that do not exist.
    """

    gradient: Float[Tensor, "rows*n e"]
    slope: Float[Tensor, "rows*n"]
    height: Float[Tensor, "rows*n+1"]


def back_through(
    flat: Flat, rounds: Sequence[Round], at: int, rule: Rule, of_queries: OfQueries, into: Flat, workspace: Workspace
) -> None:
    """Adds one round's part of the gradients to `into`.

    With p the weight of a pair, the scores have the gradient p (G v^T - D): weights are computed again, from the total over
    all rounds.
    """
    rows, scratch = rounds[at], Scratch(flat.q.dtype)
    chunks, c = rows.key_at.shape
    d_keys = workspace.take("gradients of keys", chunks + 1, c, flat.k.shape[1]).zero_()
    d_values = workspace.take("gradients of values", chunks + 1, c, flat.v.shape[1]).zero_()
    for block in blocks(rows):
        scratch.start()
        q, k, v = _read(flat, block, scratch)
        existing = block.queries.clamp(max=len(flat.q) - 1)
        g, slope = (_pick(x, existing, scratch) for x in of_queries[:2])
        height = _pick(of_queries.height, block.queries, scratch)
        weights = torch.bmm(q, k.mT, out=scratch.take(*q.shape[:2], k.shape[1]))
        weights.masked_fill_(hidden(rounds, at, block, rule), -math.inf).sub_(height[..., None]).exp2_()
        d_scores = torch.bmm(g, v.mT, out=scratch.take(*weights.shape)).sub_(slope[..., None]).mul_(weights)
        d_queries = torch.bmm(d_scores, k, out=scratch.take(*q.shape)).mul_(math.log(2))
        into.q.index_add_(0, existing.flatten(), d_queries.flatten(0, 1))  # zero for queries that do not exist
        for total, left, right in ((d_values, weights, g), (d_keys, d_scores, q)):
            part = torch.bmm(left.mT, right, out=scratch.take(len(left), left.shape[2], right.shape[2]))
            for chunk_index, of_chunk in zip(block.windows, part.split(c, dim=1), strict=True):
                total.index_add_(0, chunk_index, of_chunk)
    for table, total, alpha in ((d_keys, into.k, math.log(2)), (d_values, into.v, 1.0)):
        taken = workspace.take("taken", *total.shape)
        total.add_(torch.index_select(table.flatten(0, 1), 0, rows.key_slot, out=taken), alpha=alpha)


def _pick(x: Tensor, at: Int[Tensor, "t p"], scratch: Scratch | None) -> Tensor:
    """Returns the rows of x at these indices, in memory from `scratch` if there is one."""
    if scratch is None:
        return x[at]
    shape = (*at.shape, *x.shape[1:])
    return torch.index_select(x, 0, at.flatten(), out=scratch.take(at.numel(), *x.shape[1:])).view(shape)


def _read(flat: Flat, block: Block, scratch: Scratch | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the queries, keys and values of a block, "t p d", "t w d" and "t w e".

    Queries that do not exist get the numbers of the last one; what comes out of them is not used.
    """
    q, k, v = flat
    queries = block.queries.clamp(max=q.shape[0] - 1)  # `len` would fix the length of an exported program
    return _pick(q, queries, scratch), _pick(k, block.keys, scratch), _pick(v, block.keys, scratch)


def blocks(rows: Round) -> Iterator[Block]:
    """Cuts a round into blocks of pieces that fit into the cache; those that see one chunk come first."""
    t, p, c = len(rows.chunk), rows.query_at.shape[1], rows.key_at.shape[1]
    early = t - int(rows.before.count_nonzero())
    for first, last, windows in ((0, early, [rows.chunk]), (early, t, [rows.before, rows.chunk])):
        size = max(1, BLOCK // (len(windows) * p * c))
        for start in range(first, last, size):
            yield block_of(rows, windows, slice(start, min(last, start + size)))


def block_of(rows: Round, windows: Sequence[Tensor], pieces: slice) -> Block:
    """Returns the block of these pieces."""
    seen = [window[pieces] for window in windows]
    return Block(pieces, seen, rows.query_at[pieces], _entries(rows.key_at, seen))


def hidden(rounds: Sequence[Round], at: int, block: Block, rule: Rule) -> Tensor:
    """Returns the mask, "t p w", of pairs that do not count: hidden by the rule, missing, or found in an earlier round."""
    rows = rounds[at]
    key = _entries(rows.key_place, block.windows)[:, None]
    query = rows.query_place[block.pieces][..., None]
    if rule.causal:
        out = key >= query if rule.others else key > query
    else:
        out = key == LATE
        if rule.others:
            out = out | (key == query)
    for earlier in rounds[:at]:
        apart = earlier.query_code[block.queries][..., None] - earlier.key_code[block.keys][:, None]
        out = out | (apart >> 1 == 0)  # the same chunk, or the one before
    return out


def _entries(table: Int[Tensor, "g c"], windows: Sequence[Tensor]) -> Int[Tensor, "t w"]:
    """Returns the entries of the chunks that each piece sees."""
    return torch.cat([table.index_select(0, chunks) for chunks in windows], dim=1)
