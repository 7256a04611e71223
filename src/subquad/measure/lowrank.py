"""Attention matrices of low rank: the error of the best one (Wang et al. 2020, theorem 1), and projections compared.

Errors are relative: the Frobenius norm of the difference over that of the exact result, for each head.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def relative_errors(result: Float[Tensor, "... n d"], exact: Float[Tensor, "... n d"]) -> Float[Tensor, "..."]:
    """Norm of result - exact over the norm of exact."""
    size = torch.linalg.matrix_norm(exact).clamp_min(torch.finfo(exact.dtype).tiny)
    return torch.linalg.matrix_norm(result - exact) / size


def best_rank_errors(
    matrices: Float[Tensor, "... n s"], values: Float[Tensor, "... s d"], ranks: Sequence[int]
) -> Float[Tensor, "... ranks"]:
    """Errors of P_k V, where P_k is the best approximation of P with rank k: its singular value decomposition cut at k.

    The left singular vectors are orthonormal, so the squared error is the sum over i > k of sigma_i^2 |v_i^T V|^2.
    """
    _, singular, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    parts = singular.square() * (right @ values.double()).square().sum(-1)
    left_over = parts.flip(-1).cumsum(-1).flip(-1)
    places = torch.tensor([min(rank, parts.shape[-1]) for rank in ranks], device=parts.device)
    padded = torch.cat([left_over, torch.zeros_like(left_over[..., :1])], -1)
    total = left_over[..., :1].clamp_min(torch.finfo(parts.dtype).tiny)
    return (padded[..., places] / total).sqrt()


def projected(
    matrices: Float[Tensor, "... n s"], values: Float[Tensor, "... s d"], projection: Float[Tensor, "... k s"]
) -> Float[Tensor, "... n d"]:
    """P R^T R V for a projection R to k slots, the construction of theorem 1."""
    return (matrices @ projection.mT) @ (projection @ values)


def gram(matrices: Float[Tensor, "b h n s"]) -> Float[Tensor, "h s s"]:
    """Mean over sequences of P^T P, whose eigenvectors are the right singular vectors of all P under one another."""
    return torch.einsum("bhns,bhnt->hst", matrices, matrices) / len(matrices)


def leading_vectors(grams: Float[Tensor, "... s s"], k: int) -> Float[Tensor, "... k s"]:
    """The k eigenvectors with the largest eigenvalues, as rows."""
    return torch.linalg.eigh(grams.double()).eigenvectors.flip(-1)[..., :k].mT.to(grams.dtype)


def neighbour_means(k: int, length: int) -> Float[Tensor, "k n"]:
    """The projection whose slots are means of k runs of neighbouring positions, as even in length as possible."""
    slots = torch.arange(length) * k // length
    indicators = (slots == torch.arange(k)[:, None]).float()
    return indicators / indicators.sum(1, keepdim=True).clamp_min(1)


def share_within(projection: Float[Tensor, "... k s"], basis: Float[Tensor, "... m s"]) -> Float[Tensor, "..."]:
    """Share of a projection's squared weights that lies in the span of orthogonal rows: 1 if all, m / s at random."""
    directions = torch.nn.functional.normalize(basis, dim=-1)
    return (projection @ directions.mT).square().sum((-2, -1)) / _squares(projection)


def share_of_average(projection: Float[Tensor, "... k s"]) -> Float[Tensor, "..."]:
    """Share of a projection's squared weights in the mean over all positions: 1 if every slot is a multiple of it."""
    return share_within(projection, torch.ones_like(projection[..., :1, :]))


def share_of_positions(projection: Float[Tensor, "... k s"]) -> Float[Tensor, "..."]:
    """Share of a projection's squared weights on the k positions with most: 1 if slots see k fixed positions only."""
    k = projection.shape[-2]
    by_position = projection.square().sum(-2)
    return by_position.topk(min(k, by_position.shape[-1]), -1).values.sum(-1) / _squares(projection)


def _squares(projection: Float[Tensor, "... k s"]) -> Float[Tensor, "..."]:
    return projection.square().sum((-2, -1)).clamp_min(torch.finfo(projection.dtype).tiny)


def theorem_slots(length: float, error: float) -> float:
    """Number of slots with which theorem 1 promises an error with high probability: 5 log n / (e^2 - e^3)."""
    return 5 * math.log(length) / (error**2 - error**3)


def random_projection(k: int, length: int, generator: torch.Generator) -> Float[Tensor, "k s"]:
    """The projection of theorem 1: independent entries of variance 1 / k."""
    return torch.randn(k, length, generator=generator) / math.sqrt(k)


def by_centre(projection: Float[Tensor, "k s"]) -> Int[Tensor, "k"]:
    """The order of slots by the position on which each has its largest weight."""
    return projection.abs().argmax(-1).argsort(stable=True)
