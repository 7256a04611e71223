"""Attention within buckets for short sequences: PyTorch's fused attention with a mask of the pairs that hashing finds.

Arranging keys into chunks takes a hundred small operations, which cost more than all pairs of a short sequence.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops import exact
from subquad.ops.autocast import precise
from subquad.ops.lsh.grouped import Hashed
from subquad.ops.lsh.step import unit

PAIRS = 2**16  # most pairs of queries and keys of a head; for more of them `grouped` is faster
ALL_PAIRS = 2**22  # most pairs in all heads, as a mask of this size is kept for the backward
COUNTS = 2**19  # most counts of a head: few queries may have many keys, which are counted in every bucket
ALL_COUNTS = 2**23  # most counts in all heads, 32 megabytes


def serves(n: int, hashed: Hashed) -> bool:
    """Whether n queries and their keys are few enough."""
    rows, rounds, s = hashed.key_buckets.shape
    pairs, counts = n * s, rounds * s * (hashed.sizes.buckets + 1)
    return pairs <= PAIRS and counts <= COUNTS and rows * pairs <= ALL_PAIRS and rows * counts <= ALL_COUNTS


def attend(
    q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s e"], hashed: Hashed
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values."""
    (b, h, n, _), s, dtype = q.shape, k.shape[2], precise(q.dtype)
    keys, values = unit(k) if hashed.unit else k.to(dtype), v.to(dtype)
    seen = _visible(hashed).view(b, h, n, s)
    mixed = exact.attend(q.to(dtype), keys, values, seen)
    found = seen.any(-1, keepdim=True)
    if found.all():
        return mixed
    return torch.where(found, mixed, values[:, :, s - n :] if hashed.aligned else 0.0)


def _visible(hashed: Hashed) -> Bool[Tensor, "rows n s"]:
    """Returns which keys a query sees: those of its chunk and the one before, in any round, as far as the rule says."""
    query_codes, key_codes = _codes(hashed)
    seen = None
    for queries, keys in zip(query_codes.unbind(1), key_codes.unbind(1), strict=True):
        found = (queries[..., None] - keys[:, None]) >> 1 == 0
        seen = found if seen is None else seen.logical_or_(found)
    assert seen is not None
    apart = hashed.places[:, None] - torch.arange(key_codes.shape[2])
    if hashed.rule.causal:
        return seen.logical_and_(apart > 0 if hashed.rule.others else apart >= 0)
    return seen.logical_and_(apart != 0) if hashed.rule.others else seen


def _codes(hashed: Hashed) -> tuple[Int[Tensor, "rows r n"], Int[Tensor, "rows r s"]]:
    """Returns the numbers of the chunks of queries and keys, with a gap between those of different buckets.

    They are those of `layout`: the keys of a bucket are counted from the first, and a query belongs to the chunk of the last
    key of its bucket that is not after it. Padding has the number -2, which no query sees.
    """
    sizes, (rows, rounds, s) = hashed.sizes, hashed.key_buckets.shape
    gap = s // sizes.chunk + 3
    count = torch.zeros(rows, rounds, s, sizes.buckets + 1, dtype=torch.int32)
    count = count.scatter_(3, hashed.key_buckets[..., None], 1).cumsum(2, dtype=torch.int32)

    def codes(buckets: Tensor, counted: Tensor) -> Tensor:
        rank = (counted.gather(3, buckets[..., None])[..., 0] - 1).clamp_(min=0)
        return rank.div_(sizes.chunk, rounding_mode="floor").add_(buckets, alpha=gap)

    keys = codes(hashed.key_buckets, count)
    if sizes.by_key:
        return keys, keys
    keys.masked_fill_(hashed.key_buckets == sizes.buckets, -2)
    return codes(hashed.query_buckets, count[:, :, hashed.places]), keys
