"""Attention within buckets of a hash from one position, the last, for generation."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops import exact
from subquad.ops.autocast import precise

SHORTEST = 1e-30  # keys that are shorter count as zeros when they are divided by their length


def attend_last(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    query_buckets: Int[Tensor, "b h r 1"],
    key_buckets: Int[Tensor, "b h r s"],
    keep: Bool[Tensor, "b s"],
    *,
    chunk: int,
    shared: bool,
) -> Float[Tensor, "b h 1 e"]:
    """Returns the mixed values of the last position, from at most two chunks of keys in each round.

    Finding these keys takes a comparison for each position so far; their vectors are the only ones that are read. If
    `shared`, keys get the length 1, and the position sees its own key only if it sees no other.
    """
    s, rounds, dtype = k.shape[2], key_buckets.shape[2], precise(q.dtype)
    same = (key_buckets == query_buckets) & keep[:, None, None]
    count = same.cumsum(-1)
    oldest = ((count[..., -1:] - 1).clamp(min=0) // chunk - 1) * chunk
    seen = (same & (count > oldest)).any(2)
    if shared:
        seen = seen & (torch.arange(s, device=q.device) < s - 1)
    found, at = seen.to(torch.uint8).topk(min(s, 2 * chunk * rounds), dim=-1)
    keys, values = (x.gather(2, at[..., None].expand(*at.shape, x.shape[3])).to(dtype) for x in (k, v))
    if shared:
        keys = unit(keys)
    mixed = exact.attend(q.to(dtype), keys, values, found[:, :, None] > 0)
    return torch.where(found[..., :1, None] > 0, mixed, v[:, :, -1:].to(dtype))


def unit(k: Float[Tensor, "b h s d"]) -> Float[Tensor, "b h s d"]:
    """Returns keys of length 1; a key of zeros stays one, and its gradient is zero."""
    k = k.to(precise(k.dtype))
    length = torch.linalg.vector_norm(k, dim=-1, keepdim=True)
    return k / torch.where(length > SHORTEST, length, math.inf)
