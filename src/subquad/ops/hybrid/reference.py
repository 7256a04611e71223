"""The equation of the hybrid as written, with the whole attention matrix in memory."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops.reference import visible
from subquad.types import Features


def weights(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    queries: Features,
    keys: Features,
    log_gain: Float[Tensor, "h"],
    block: int,
    keep: Bool[Tensor, "b n"] | None = None,
    causal: bool = False,
    places: Int[Tensor, "r"] | None = None,
) -> Float[Tensor, "b h r n"]:
    """Returns the attention matrix: exp(q . k / sqrt d) for near keys, gain phi(q) . phi(k) for others, normalised.

    Keys of the same and of neighbouring blocks are near. Blocks consist of kept positions; rows of other positions are zero.
    With `places`, `queries` are the features of the queries there, and only their rows are returned.
    """
    n, kept = q.shape[2], torch.ones(1, q.shape[2], dtype=torch.bool, device=q.device) if keep is None else keep
    seen = visible(n, n, kept, causal, q.device) & kept[:, None, :, None]
    near = neighbours(kept, block) & seen
    if places is not None:
        q, seen, near = q[:, :, places], seen[:, :, places], near[:, :, places]
    scores = ((q @ k.mT) / math.sqrt(q.shape[-1])).masked_fill(~near, -math.inf)
    if not n:
        return scores
    features = queries.values @ keys.values.mT
    logs = log_gain[:, None, None].expand(-1, q.shape[2], n)
    if queries.exponent is not None and keys.exponent is not None:
        logs = logs + math.log(2) * (queries.exponent + keys.exponent.mT)
    far = seen & ~near
    logs = logs.masked_fill(~far, -math.inf)
    top = torch.maximum(scores.amax(-1, keepdim=True), logs.amax(-1, keepdim=True)).detach()
    top = top.masked_fill(top == -math.inf, 0.0)
    scaled = torch.exp(scores - top) + features.masked_fill(~far, 0.0) * torch.exp(logs - top)
    total = scaled.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, scaled / torch.where(total == 0, 1.0, total))


def neighbours(kept: Bool[Tensor, "b n"], block: int) -> Bool[Tensor, "b 1 n n"]:
    """Mask of pairs of positions in the same block of kept positions or in neighbouring blocks."""
    at = (kept.cumsum(1) - 1) // block
    return ((at[:, :, None] - at[:, None]).abs() <= 1)[:, None]
