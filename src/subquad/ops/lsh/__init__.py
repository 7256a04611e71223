"""Attention within buckets of a locality-sensitive hash (Kitaev et al. 2020): the equation and its fast form.

The paper sorts positions by bucket and cuts the sorted sequence into chunks, so that a position's chunk depends on how many
later positions fall into lower buckets. Here the keys of each bucket are cut into chunks by themselves, counted from the
first. What a query sees then depends on no later position, the causal form can be continued, and padding moves nothing.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops.autocast import precise, prefers_parallel
from subquad.ops.lsh import dense, grouped
from subquad.ops.lsh.grouped import Hashed
from subquad.ops.lsh.hashing import buckets_of
from subquad.ops.lsh.layout import Sizes, arrange
from subquad.ops.lsh.mixing import Flat, Rule, mix_at_once
from subquad.ops.lsh.step import attend_last, unit

PIECE = 32  # queries of one chunk that are computed together; half as many where buckets hold few


def attend(
    q: Float[Tensor, "b h n d"] | None,
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

    An aligned query that finds no key gets its own value. If `shared`, keys are divided by their length, and an aligned
    query does not see its own key before that. Without `q`, keys are the queries too.
    """
    asking = k if q is None else q
    (b, h, n, _), s = asking.shape, k.shape[2]
    if n == 0 or s == 0 or b == 0:
        return 0.0 * (asking.sum() + k.sum() + v.sum()) + v.new_zeros(b, h, n, v.shape[3])
    if keep is not None:
        key_buckets = key_buckets.masked_fill(~keep[:, None, None], buckets)
    places = torch.arange(s - n, s, device=k.device) if aligned else torch.full((n,), s - 1, device=k.device)
    at_once = prefers_parallel(k)
    piece = PIECE // 2 if not at_once and n < PIECE * buckets else PIECE
    by_key = shared and aligned and n == s and keep is None
    sizes = Sizes(buckets, chunk, min(chunk, piece), by_key, not at_once, not (causal or at_once))
    rule = Rule(causal, shared and aligned)
    rows = (query_buckets.flatten(0, 1), key_buckets.flatten(0, 1))
    hashed = Hashed(*rows, places, sizes, rule, aligned, shared)
    if at_once:
        return _at_once(asking, k, v, hashed)
    if dense.serves(n, hashed):
        return dense.attend(asking, k, v, hashed)
    return grouped.attend(q, k, v, hashed)


def _at_once(
    q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s e"], hashed: Hashed
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values of all heads together, by operations that compilers see through."""
    (b, h, n, d), dtype = q.shape, precise(q.dtype)
    tables = [
        arrange(hashed.query_buckets[:, at], hashed.key_buckets[:, at], hashed.places, hashed.sizes)
        for at in range(hashed.key_buckets.shape[1])
    ]
    keys = (unit(k) if hashed.unit else k.to(dtype)) * (math.log2(math.e) / math.sqrt(d))
    flat = Flat(*(x.to(dtype).flatten(0, 2) for x in (q, keys, v)))
    mixed, found = mix_at_once(flat, tables, hashed.rule)
    mixed, found = mixed.view(b, h, n, -1), found.view(b, h, n, 1)
    return torch.where(found, mixed, v[:, :, k.shape[2] - n :].to(dtype)) if hashed.aligned else mixed


__all__ = ["attend", "attend_last", "buckets_of", "unit"]
