"""The equation of linear attention as written, with the whole attention matrix in memory."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops.reference import visible
from subquad.types import Features


def weights(
    queries: Features,
    keys: Features,
    keep: Bool[Tensor, "b s"] | None = None,
    causal: bool = False,
    places: Int[Tensor, "r"] | None = None,
) -> Float[Tensor, "b h r s"]:
    """Equations 4 and 8 of Katharopoulos et al. 2020: the weight of key j for query i is phi(q_i) . phi(k_j) / sum.

    A query's exponent cancels in the quotient. A key's exponent is relative to the largest one that the query sees. A row
    without weight is zero. With `places`, the queries are those at these places of the keys.
    """
    s = keys.values.shape[2]
    seen = visible(queries.values.shape[2] if places is None else s, s, keep, causal, keys.values.device)
    seen = seen if places is None else seen[:, :, places]
    scores = queries.values @ keys.values.mT
    if keys.exponent is not None and s:
        exponents = keys.exponent.mT.masked_fill(~seen, -math.inf)
        largest = exponents.amax(-1, keepdim=True)
        scores = scores * torch.exp2(exponents - largest.masked_fill(largest == -math.inf, 0.0))
    scores = scores.masked_fill(~seen, 0.0)
    total = scores.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, scores / torch.where(total == 0, 1.0, total))


def cosine_weights(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    query_places: Int[Tensor, "b n"],
    key_places: Int[Tensor, "b s"],
    longest: int,
) -> Float[Tensor, "b h n s"]:
    """Equation 10 of Qin et al. 2022, *cosFormer*: relu(q_i) . relu(k_j) cos(pi/2 (i - j) / M), before normalisation."""
    apart = query_places[:, None, :, None] - key_places[:, None, None, :]
    return (q.relu() @ k.relu().mT) * torch.cos(math.pi / 2 * apart.to(q.dtype) / longest)
