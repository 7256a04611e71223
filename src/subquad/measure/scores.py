"""What the size of dot products does to softmax: their variance, the largest weight, and the slope of the weights."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Scores(NamedTuple):
    """Figures of the scores of one set of queries and keys, and of the softmax of these scores."""

    variance: float
    """Variance of the scores over all pairs of a query and a key."""
    largest_weight: float
    """Largest weight of a query, mean over queries; 1 if softmax picks a single key."""
    slope: float
    """Trace of the derivative of the weights with respect to the scores, 1 - sum of squared weights, mean over queries.

    It is 1 - 1/n for equal weights of n keys, and 0 if softmax picks a single key: then no gradient reaches the scores.
    """


def examine_scores(q: Float[Tensor, "n d"], k: Float[Tensor, "s d"], *, scaled: bool) -> Scores:
    """Returns the figures of q . k, or of q . k / sqrt d if scaled."""
    scores = q.double() @ k.double().mT
    if scaled:
        scores = scores / q.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    slopes = 1 - weights.square().sum(-1)
    return Scores(float(scores.var()), float(weights.amax(-1).mean()), float(slopes.mean()))


def random_scores(head_dim: int, length: int, generator: torch.Generator, *, scaled: bool) -> Scores:
    """Returns the figures of standard normal queries and keys."""
    q, k = torch.randn(2, length, head_dim, generator=generator, dtype=torch.float64)
    return examine_scores(q, k, scaled=scaled)
