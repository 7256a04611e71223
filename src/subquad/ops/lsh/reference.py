"""Attention within buckets of a locality-sensitive hash, as an equation, for one sequence without padding.

After Kitaev et al. 2020, *Reformer*, equations 2 to 7. The chunks are those of `subquad.ops.lsh`, which depend on no later
position.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def bucket_of(x: Float[Tensor, "h n d"], rotations: Float[Tensor, "h r d half"]) -> Int[Tensor, "h r n"]:
    """The hash of each round: the index of the largest entry of [x R; -x R]."""
    turned = x[:, None] @ rotations
    return torch.cat([turned, -turned], dim=-1).argmax(-1)


def seen_in_round(
    query_buckets: Int[Tensor, "n"], key_buckets: Int[Tensor, "s"], places: Int[Tensor, "n"], chunk: int
) -> Bool[Tensor, "n s"]:
    """Keys of the query's bucket in two chunks of that bucket: the one that its place falls into, and the one before.

    The keys of a bucket are counted from the first, `chunk` to a chunk. A query at place p is in the chunk of the last key
    of its bucket that is at p or before it, and in the first chunk if there is none.
    """
    same = query_buckets[:, None] == key_buckets
    chunk_of_key = (same.cumsum(1) - 1) // chunk  # for keys of the query's bucket
    up_to_place = (same & (torch.arange(len(key_buckets)) <= places[:, None])).sum(1, keepdim=True)
    current = (up_to_place - 1).clamp(min=0) // chunk
    return same & ((chunk_of_key == current) | (chunk_of_key == current - 1))


def attend(
    q: Float[Tensor, "h n d"],
    k: Float[Tensor, "h s d"],
    v: Float[Tensor, "h s e"],
    rotations: Float[Tensor, "h r d half"],
    chunk: int,
    places: Int[Tensor, "n"],
    *,
    causal: bool,
    aligned: Bool[Tensor, "n"],
    shared: bool,
) -> Float[Tensor, "h n e"]:
    """Softmax over the keys that any round finds, each counted once; a query that finds none gets its own value.

    Its own value is that of the key at its place, if it is `aligned` with that key. If `shared`, keys have length 1, and a
    position does not see itself unless it sees nothing else.
    """
    query_buckets, key_buckets = bucket_of(q, rotations), bucket_of(k, rotations)
    if shared:
        k = k / k.norm(dim=-1, keepdim=True)
    mixed = []
    for head in range(len(q)):
        seen = torch.zeros(q.shape[1], k.shape[1], dtype=torch.bool)
        for of_queries, of_keys in zip(query_buckets[head], key_buckets[head], strict=True):
            seen |= seen_in_round(of_queries, of_keys, places, chunk)
        if causal:
            seen &= torch.arange(k.shape[1]) <= places[:, None]
        itself = (torch.arange(k.shape[1]) == places[:, None]) & aligned[:, None]
        if shared:
            seen &= ~itself
        found = seen.any(1, keepdim=True)
        scores = (q[head] @ k[head].mT / math.sqrt(q.shape[2])).masked_fill(~seen, -math.inf)
        weights = torch.where(found, scores.masked_fill(~found, 0.0).softmax(-1), itself.to(q.dtype))
        mixed.append(weights @ v[head])
    return torch.stack(mixed)
