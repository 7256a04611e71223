"""Random projections for FAVOR+ (Choromanski et al. 2021): matrices whose columns are each close to N(0, I).

Orthogonal columns give better estimates than independent ones. They are drawn in blocks of `dim`, each an orthogonal matrix
from QR, Hadamard products or Givens rotations, and are scaled afterwards.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Projection = Literal["orthogonal", "independent", "hadamard", "givens"]
Norms = Literal["chi", "fixed"]


def draw(
    dim: int, columns: int, projection: Projection, norms: Norms, generator: torch.Generator | None
) -> Float[Tensor, "{dim} {columns}"]:
    """Draws `columns` random vectors in `dim` dimensions, as the columns of a matrix."""
    if projection == "independent":
        return torch.randn(dim, columns, generator=generator)
    count = -(-columns // dim)
    directions = torch.cat([_DRAW[projection](dim, generator) for _ in range(count)], dim=1)[:, :columns]
    if norms == "fixed":
        return directions * math.sqrt(dim)
    return directions * torch.randn(dim, columns, generator=generator).norm(dim=0)


def orthogonal(dim: int, generator: torch.Generator | None) -> Float[Tensor, "{dim} {dim}"]:
    """Draws a uniformly distributed orthogonal matrix: Q of a Gaussian matrix, with the signs of R's diagonal."""
    q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    return (q * r.diagonal().sign()).float()


def hadamard(dim: int, generator: torch.Generator | None) -> Float[Tensor, "{dim} {dim}"]:
    """Draws a product of three H D, with H a normalised Hadamard matrix and D random signs: nearly uniform at low cost.

    The size of a Hadamard matrix is a power of two. Other dimensions are cut out of the next larger matrix and their
    columns are normalised, so that they are only nearly orthogonal. A draw with a nearly zero column is repeated.
    """
    size = 1 << (dim - 1).bit_length()
    h = torch.ones(1, 1)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)]) / math.sqrt(2)
    while True:
        product = torch.eye(size)
        for _ in range(3):
            product = (product * _signs(size, generator)) @ h
        cut = (product * _signs(size, generator))[:dim, :dim]
        lengths = cut.norm(dim=0)
        if lengths.min() > 1e-3:
            return cut / lengths


def givens(dim: int, generator: torch.Generator | None) -> Float[Tensor, "{dim} {dim}"]:
    """Draws a product of random rotations in two coordinates each, in rounds with new random pairs."""
    product = torch.eye(dim) * _signs(dim, generator)
    for _ in range(4 * max(1, math.ceil(math.log2(dim)))):
        order = torch.randperm(dim, generator=generator)
        first, second = order[: dim // 2], order[dim // 2 : 2 * (dim // 2)]
        angle = torch.rand(len(first), generator=generator) * (2 * math.pi)
        cosine, sine, left, right = angle.cos(), angle.sin(), product[:, first], product[:, second]
        product[:, first], product[:, second] = left * cosine - right * sine, left * sine + right * cosine
    return product


def _signs(size: int, generator: torch.Generator | None) -> Float[Tensor, "{size}"]:
    return torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1


_DRAW: dict[str, Callable[[int, torch.Generator | None], Tensor]] = {
    "orthogonal": orthogonal,
    "hadamard": hadamard,
    "givens": givens,
}
