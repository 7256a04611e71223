"""Attention within buckets of a locality-sensitive hash (Kitaev et al. 2020): the equation and its fast form.

The paper sorts positions by bucket and cuts the sorted sequence into chunks, so that a position's chunk depends on how many
later positions fall into lower buckets. Here the keys of each bucket are cut into chunks by themselves, counted from the
first. What a query sees then depends on no later position, the causal form can be continued, and padding moves nothing.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops.autocast import needs_gradient, precise, prefers_parallel
from subquad.ops.lsh.hashing import buckets_of
from subquad.ops.lsh.layout import Sizes, arrange
from subquad.ops.lsh.mixing import Mix, Rule, flatten, mix_at_once, mix_in_blocks
from subquad.ops.lsh.step import attend_last, unit

PIECE = 32  # queries of one chunk that are computed together; half as many where buckets hold few


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
    s, rounds, dtype = k.shape[2], key_buckets.shape[2], precise(q.dtype)
    if n == 0 or s == 0 or b == 0:
        return 0.0 * (q.sum() + k.sum() + v.sum()) + v.new_zeros(b, h, n, v.shape[3])
    places = torch.arange(s - n, s, device=q.device) if aligned else torch.full((n,), s - 1, device=q.device)
    by_key = shared and aligned and n == s and keep is None
    if keep is not None:
        key_buckets = key_buckets.masked_fill(~keep[:, None, None], buckets)
    piece = PIECE // 2 if not prefers_parallel(q) and n < PIECE * buckets else PIECE
    sizes = Sizes(buckets, chunk, min(chunk, piece), by_key, not prefers_parallel(q), not (causal or prefers_parallel(q)))
    tables = [
        arrange(query_buckets[:, :, at].flatten(0, 1), key_buckets[:, :, at].flatten(0, 1), places, sizes)
        for at in range(rounds)
    ]
    flat, rule = flatten(q.to(dtype), k.to(dtype), v.to(dtype)), Rule(causal, shared and aligned)
    if prefers_parallel(q):
        mixed, found = mix_at_once(flat, tables, rule)
    else:
        by_hand = needs_gradient(*flat)
        mixed, height = Mix.apply(*flat, tables, rule) if by_hand else mix_in_blocks(flat, tables, rule)  # type: ignore[no-untyped-call]
        found = height > -math.inf
    mixed, found = mixed.view(b, h, n, -1), found.view(b, h, n, 1)
    if aligned and (prefers_parallel(q) or not found.all()):
        mixed = torch.where(found, mixed, v[:, :, s - n :].to(dtype))
    return mixed


__all__ = ["attend", "attend_last", "buckets_of", "unit"]
