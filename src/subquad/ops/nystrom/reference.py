"""Nyström attention as written in Xiong et al. 2021, *Nyströmformer*, for one sequence without padding."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def attend(
    q: Float[Tensor, "h n d"],
    k: Float[Tensor, "h s d"],
    v: Float[Tensor, "h s e"],
    real_queries: Float[Tensor, "h r d"],
    landmarks: int,
    iterations: int,
) -> Float[Tensor, "h n e"]:
    """Equation 13: softmax(q k~^T) (softmax(q~ k~^T))^+ softmax(q~ k^T) v, each product over sqrt d.

    Landmarks q~ are means of `real_queries`, which are those queries that do not stand at padding. With no more of them, or
    no more keys, than landmarks, each is its own landmark and the product is softmax attention itself, which is then
    computed exactly.
    """
    scale = 1 / math.sqrt(q.shape[-1])
    if real_queries.shape[1] <= landmarks or k.shape[1] <= landmarks:
        return (scale * q @ k.mT).softmax(-1) @ v
    q_means, k_means = segment_means(real_queries, landmarks), segment_means(k, landmarks)
    from_queries = (scale * q @ k_means.mT).softmax(-1)
    between = (scale * q_means @ k_means.mT).softmax(-1)
    to_keys = (scale * q_means @ k.mT).softmax(-1)
    return from_queries @ pseudo_inverse(between, iterations) @ to_keys @ v


def segment_means(x: Float[Tensor, "h n d"], landmarks: int) -> Float[Tensor, "h m d"]:
    """Landmarks: means of m runs of positions, the first n mod m of which are one position longer than the others."""
    n = x.shape[1]
    sizes = [n // landmarks + (run < n % landmarks) for run in range(landmarks)]
    return torch.stack([run.mean(1) for run in x.split(sizes, dim=1)], dim=1)


def pseudo_inverse(a: Float[Tensor, "h m m"], iterations: int) -> Float[Tensor, "h m m"]:
    """Equation 11, from Z_0 = A^T / (|A|_1 |A|_inf): Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4."""
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    norms = [torch.linalg.matrix_norm(a, ord, keepdim=True) for ord in (1, math.inf)]
    z = a.mT / (norms[0] * norms[1])
    for _ in range(iterations):
        z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
    return z
