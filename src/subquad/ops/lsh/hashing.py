"""The hash: which of many random directions, or of their opposites, a vector is closest to."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.ops.autocast import precise, prefers_parallel
from subquad.ops.scratch import WORKING_SET


@torch.no_grad()
def buckets_of(x: Float[Tensor, "b h n d"], rotations: Float[Tensor, "h r d half"]) -> Int[Tensor, "b h r n"]:
    """Returns the bucket of each vector in each round: the index of the largest entry of [x R; -x R].

    This is the hash of Andoni et al. 2015 for angles; the length of a vector does not matter.
    """
    (b, h, n, d), (rounds, half) = x.shape, rotations.shape[1:4:2]
    weights = rotations.to(precise(x.dtype)).transpose(1, 2).reshape(h, d, rounds * half)
    size = n if prefers_parallel(x) else max(1, WORKING_SET // max(1, b * h * rounds * half))
    parts = []
    for start in range(0, n, size) if size < n else [0]:
        turned = (x[:, :, start : start + size].to(weights.dtype) @ weights).unflatten(-1, (rounds, half))
        highest, lowest = turned.max(-1), turned.min(-1)
        bucket = torch.where(highest.values >= -lowest.values, highest.indices, lowest.indices + half)
        parts.append(bucket.transpose(2, 3))
    return torch.cat(parts, dim=3)
