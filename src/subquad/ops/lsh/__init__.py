"""Attention within buckets of a locality-sensitive hash (Kitaev et al. 2020): the equation and its fast form.

The paper sorts positions by bucket and cuts the sorted sequence into chunks, so that a position's chunk depends on how many
later positions fall into lower buckets. Here the keys of each bucket are cut into chunks by themselves, counted from the
first. What a query sees then depends on no later position, the causal form can be continued, and padding moves nothing.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops.autocast import needs_gradient, precise, prefers_parallel
from subquad.ops.lsh.hashing import buckets_of
from subquad.ops.lsh.layout import Sizes, arrange
from subquad.ops.lsh.mixing import Mix, Rule, flatten, mix_at_once, mix_in_blocks
from subquad.ops.lsh.step import attend_last, unit

PIECE = 32  # queries of one chunk that are computed together; half as many where buckets hold few
GROUP = 2**15  # positions of the heads that are computed together, so that their tables stay in the cache


class Group(NamedTuple):
    """Some heads, in rows, with the buckets of their queries and keys in each round."""

    q: Float[Tensor, "rows n d"]
    k: Float[Tensor, "rows s d"]
    v: Float[Tensor, "rows s e"]
    query_buckets: Int[Tensor, "rows r n"]
    key_buckets: Int[Tensor, "rows r s"]


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    query_buckets: Int[Tensor, "b h r n"],
    key_buckets: Int[Tensor, "b h r s"],
    keep: Bool[Tensor, "b s"] | None,
    *,
    buckets: int,
    chunk: int,
    causal: bool,
    aligned: bool,
    shared: bool,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values. Aligned queries stand at the places of the last keys, others after all keys.

    An aligned query that finds no key gets its own value. If `shared`, it does not see its own key before that.
    """
    b, h, n, _ = q.shape
    s, dtype = k.shape[2], precise(q.dtype)
    if n == 0 or s == 0 or b == 0:
        return 0.0 * (q.sum() + k.sum() + v.sum()) + v.new_zeros(b, h, n, v.shape[3])
    if keep is not None:
        key_buckets = key_buckets.masked_fill(~keep[:, None, None], buckets)
    places = torch.arange(s - n, s, device=q.device) if aligned else torch.full((n,), s - 1, device=q.device)
    at_once = prefers_parallel(q)
    piece = PIECE // 2 if not at_once and n < PIECE * buckets else PIECE
    by_key = shared and aligned and n == s and keep is None
    sizes = Sizes(buckets, chunk, min(chunk, piece), by_key, not at_once, not (causal or at_once))
    rule = Rule(causal, shared and aligned)
    size = b * h if at_once else max(1, GROUP // s)
    heads = [x.flatten(0, 1).split(size) for x in (q, k, v, query_buckets, key_buckets)]
    groups = [Group(*parts) for parts in zip(*heads, strict=True)]
    if at_once or needs_gradient(q, k, v):
        mixed = torch.cat([_mixed(group, places, sizes, rule, aligned=aligned) for group in groups])
        return mixed.view(b, h, n, -1)
    mixed = v.new_empty(b * h, n, v.shape[3], dtype=dtype)
    for rows, group in zip(mixed.split(size), groups, strict=True):
        rows.copy_(_mixed(group, places, sizes, rule, aligned=aligned))
    return mixed.view(b, h, n, -1)


def _mixed(group: Group, places: Int[Tensor, "n"], sizes: Sizes, rule: Rule, *, aligned: bool) -> Float[Tensor, "rows n e"]:
    """Returns the mixed values of some heads, whose tables and queries are made and forgotten together."""
    q, k, v, query_buckets, key_buckets = group
    n, s, dtype = q.shape[1], k.shape[1], precise(q.dtype)
    tables = [arrange(query_buckets[:, at], key_buckets[:, at], places, sizes) for at in range(key_buckets.shape[1])]
    flat = flatten(q.to(dtype), k.to(dtype), v.to(dtype))
    if prefers_parallel(q):
        mixed, found = mix_at_once(flat, tables, rule)
    else:
        by_hand = needs_gradient(*flat)
        mixed, height = Mix.apply(*flat, tables, rule) if by_hand else mix_in_blocks(flat, tables, rule)  # type: ignore[no-untyped-call]
        found = height > -math.inf
    mixed, found = mixed.view(len(q), n, -1), found.view(len(q), n, 1)
    if aligned and (prefers_parallel(q) or not found.all()):
        mixed = torch.where(found, mixed, v[:, s - n :].to(dtype))
    return mixed


__all__ = ["attend", "attend_last", "buckets_of", "unit"]
