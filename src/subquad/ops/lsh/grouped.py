"""Attention within buckets on a CPU: some heads at a time, in blocks, with a gradient written by hand.

Nothing as large as all queries or keys is made besides the results: tables, scaled keys and sums of gradients are those of a
few heads, in memory that the next ones use again.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops import pages
from subquad.ops.autocast import needs_gradient, outside_autocast, precise
from subquad.ops.lsh.layout import Round, Sizes, arrange
from subquad.ops.lsh.mixing import Flat, OfQueries, Rule, Workspace, back_through, mix_in_blocks
from subquad.ops.lsh.step import SHORTEST

GROUP = 2**15  # positions of the heads that are computed together, so that their tables stay in the cache


class Hashed(NamedTuple):
    """Buckets of queries and keys in each round, the places of the queries, and what is computed with them."""

    query_buckets: Int[Tensor, "rows r n"]
    key_buckets: Int[Tensor, "rows r s"]
    places: Int[Tensor, "n"]
    sizes: Sizes
    rule: Rule
    aligned: bool  # whether a query that finds no key gets the value at its own place
    unit: bool  # whether keys are divided by their length


def attend(
    q: Float[Tensor, "b h n d"] | None, k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s e"], hashed: Hashed
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values; without `q`, the keys are the queries too."""
    if needs_gradient(*(x for x in (q, k, v) if x is not None)):
        mixed: Tensor = _Grouped.apply(q, k, v, hashed)  # type: ignore[no-untyped-call]
        return mixed
    return _mix(q, k, v, hashed, None)[0]


class _Grouped(torch.autograd.Function):
    """Mixed values. Each group's gradient is that of `mixing.back_through`; tables are kept, weights computed again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor | None, k: Tensor, v: Tensor, hashed: Hashed) -> Tensor:
        tables: list[Tensor] = []
        mixed, height = _mix(q, k, v, hashed, tables)
        ctx.save_for_backward(k if q is None else q, k, v, mixed, height, *tables)
        ctx.hashed, ctx.asks_with_keys = hashed, q is None
        return mixed

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mixed, height, *tables = ctx.saved_tensors
        dtype = precise(q.dtype)
        dk, dv = (pages.new_zeros(x.new_empty(0, dtype=dtype), *x.shape) for x in (k, v))
        dq = dk if ctx.asks_with_keys else pages.new_zeros(q.new_empty(0, dtype=dtype), *q.shape)
        workspace, width = Workspace(dk), len(Round._fields) * ctx.hashed.key_buckets.shape[1]
        for number, rows in enumerate(_groups(k)):
            rounds = _rounds(tables[number * width : (number + 1) * width])
            held = [_flat(x, rows, dtype) for x in (q, k, v, mixed, gradient)]
            into = Flat(*(_flat(x, rows, dtype) for x in (dq, dk, dv)))
            _back(held, height[rows], rounds, ctx.hashed, into, workspace)
        of_q = None if ctx.asks_with_keys else dq.to(q.dtype)
        return of_q, dk.to(k.dtype), dv.to(v.dtype), None


def _mix(q: Tensor | None, k: Tensor, v: Tensor, hashed: Hashed, kept: list[Tensor] | None) -> tuple[Tensor, Tensor]:
    """Returns the mixed values and their heights, "b*h n"; adds all tables to `kept`."""
    asking, dtype = k if q is None else q, precise(k.dtype)
    (b, h, n, _), e = asking.shape, v.shape[3]
    rows_and_one = pages.new_empty(k.new_empty(0, dtype=dtype), b * h * n + 1, e)  # one more, as `mix_in_blocks` needs it
    height, workspace = rows_and_one.new_empty(b * h, n), Workspace(rows_and_one)
    for rows in _groups(k):
        rounds = [
            arrange(hashed.query_buckets[rows, at], hashed.key_buckets[rows, at], hashed.places, hashed.sizes)
            for at in range(hashed.key_buckets.shape[1])
        ]
        if kept is not None:
            kept.extend(table for tables in rounds for table in tables)
        queries, keys, values = (_flat(x, rows, dtype) for x in (asking, k, v))
        scaled = torch.mul(keys, _scale(keys, hashed), out=workspace.take("keys", *keys.shape))
        mixed = rows_and_one[rows.start * n : rows.stop * n + 1]
        found = mix_in_blocks(Flat(queries, scaled, values), rounds, hashed.rule, mixed)
        if hashed.aligned:
            lonely = (found == -math.inf).nonzero()[:, 0]
            mixed.index_copy_(0, lonely, values.index_select(0, _own_places(lonely, n, k.shape[2])))
        height[rows] = found.view(-1, n)
    return rows_and_one[:-1].view(b, h, n, e), height


def _back(
    held: Sequence[Tensor], height: Tensor, rounds: Sequence[Round], hashed: Hashed, into: Flat, workspace: Workspace
) -> None:
    """Adds the gradients of some heads to `into`; `held` has their queries, keys, values, mixed values and G."""
    q, k, v, mixed, gradient = held
    n, s = height.shape[1], len(k) // len(height)
    if hashed.aligned:
        lonely = (height.flatten() == -math.inf).nonzero()[:, 0]
        into.v.index_add_(0, _own_places(lonely, n, s), gradient.index_select(0, lonely))
    ends = F.pad(height.flatten().masked_fill(height.flatten() == -math.inf, math.inf), (0, 1), value=math.inf)
    of_queries = OfQueries(gradient, torch.linalg.vecdot(gradient, mixed), ends)
    scale = _scale(k, hashed)
    flat = Flat(q, torch.mul(k, scale, out=workspace.take("keys", *k.shape)), v)
    d_scaled = workspace.take("gradients of scaled keys", *k.shape).zero_()
    for at in range(len(rounds)):
        back_through(flat, rounds, at, hashed.rule, of_queries, Flat(into.q, d_scaled, into.v), workspace)
    if hashed.unit:  # what points along the key changes its length, which does not matter
        along = torch.linalg.vecdot(d_scaled, flat.k)[:, None] * (k.shape[1] / math.log2(math.e) ** 2)
        d_scaled.addcmul_(flat.k, along, value=-1)
    into.k.addcmul_(d_scaled, scale.expand_as(d_scaled))


def _scale(keys: Float[Tensor, "x d"], hashed: Hashed) -> Float[Tensor, "#x 1"]:
    """Returns log2(e) / sqrt d for each key, divided by the key's length if keys are to have the length 1."""
    scale = math.log2(math.e) / math.sqrt(keys.shape[1])
    if not hashed.unit:
        return keys.new_full((1, 1), scale)
    length = torch.linalg.vector_norm(keys, dim=1, keepdim=True)
    return torch.where(length > SHORTEST, scale / length, 0.0)


def _own_places(queries: Int[Tensor, "x"], n: int, s: int) -> Int[Tensor, "x"]:
    """Returns the index among keys of aligned queries, which stand at the last n of s places."""
    return queries if n == s else queries // n * s + queries % n + s - n


def _groups(k: Float[Tensor, "b h s d"]) -> Iterator[slice]:
    """Yields the rows, which are sequences and heads, that are computed together."""
    rows = k.shape[0] * k.shape[1]
    size = max(1, GROUP // k.shape[2])
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))


def _flat(x: Float[Tensor, "b h n d"], rows: slice, dtype: torch.dtype) -> Float[Tensor, "x d"]:
    """Returns the vectors of some sequences and heads in one list: a view if they follow one another in memory."""
    heads = x[0] if len(x) == 1 else x.flatten(0, 1)
    return heads[rows].to(dtype).flatten(0, 1)


def _rounds(tables: Sequence[Tensor]) -> list[Round]:
    """Returns rounds from all their tables in one list."""
    width = len(Round._fields)
    return [Round(*tables[start : start + width]) for start in range(0, len(tables), width)]
