"""Random projections for FAVOR+ (Choromanski et al. 2021): matrices whose columns are each close to N(0, I).

Orthogonal columns give better estimates than independent ones. They are drawn in blocks of `dim`, each an orthogonal matrix
from QR, Hadamard products or Givens rotations, and are scaled afterwards. The last two are products of sparse factors, which
multiply a vector in O(log dim) operations for each column. `pays` says where that is faster than the dense matrix.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.ops.autocast import product

Projection = Literal["orthogonal", "independent", "hadamard", "givens"]
Norms = Literal["chi", "fixed"]

FAST_FROM: dict[str, int] = {"hadamard": 2048}
"""Dimension from which on factors are faster than a dense product on a CPU, also with the gradient, as
benchmarks/projections.py measures it. Givens rotations are slower at every dimension that was measured."""
RADIX = 32
"""Size of the Hadamard matrices that a transform is made of: a product of this size is about as fast as a copy."""


class HadamardFactors(NamedTuple):
    """Blocks D1 H D2 H D3 H D4, with H a normalised Hadamard matrix and D random signs, cut to `dim` rows and columns."""

    signs: Float[Tensor, "4 blocks size"]
    lengths: Float[Tensor, "blocks dim"]
    """Lengths of the cut columns, by which they are divided."""

    def matrix(self) -> Float[Tensor, "dim columns"]:
        """The blocks side by side as a dense matrix."""
        size, dim = self.signs.shape[-1], self.lengths.shape[-1]
        h, blocks = hadamard_matrix(size), []
        for signs, lengths in zip(self.signs.unbind(1), self.lengths, strict=True):
            blocks.append(_hadamard_product(signs, h)[:dim, :dim] / lengths)
        return torch.cat(blocks, dim=1)

    def multiply(self, x: Float[Tensor, "*b dim"]) -> Float[Tensor, "*b columns"]:
        """Returns x times the matrix, by three fast transforms of the signed vector for each block."""
        size, dim = self.signs.shape[-1], self.lengths.shape[-1]
        signs, lengths = self.signs.to(x), self.lengths.to(x)
        y = torch.nn.functional.pad(x, (0, size - dim))[..., None, :] * signs[0]
        for turn in range(1, 4):
            y = walsh_hadamard(y) * signs[turn]
        return (y[..., :dim] / lengths).flatten(-2)


class GivensFactors(NamedTuple):
    """Blocks of random signs and rounds of rotations, each in two coordinates."""

    signs: Float[Tensor, "blocks dim"]
    partners: Int[Tensor, "rounds blocks dim"]
    """The other coordinate of each rotation; a coordinate that is left over is its own."""
    cosines: Float[Tensor, "rounds blocks dim"]
    """1 for a coordinate that is left over."""
    sines: Float[Tensor, "rounds blocks dim"]
    """With the sign that the first or second coordinate of a rotation has; 0 for a coordinate that is left over."""

    def matrix(self) -> Float[Tensor, "dim columns"]:
        """The blocks side by side as a dense matrix."""
        return self.multiply(torch.eye(self.signs.shape[-1]))

    def multiply(self, x: Float[Tensor, "*b dim"]) -> Float[Tensor, "*b columns"]:
        """Returns x times the matrix, one round of rotations after the other."""
        blocks, dim = self.signs.shape
        places = (self.partners + dim * torch.arange(blocks, device=self.partners.device)[:, None]).flatten(1).to(x.device)
        y = (x[..., None, :] * self.signs.to(x)).flatten(-2)
        for partners, cosine, sine in zip(places, self.cosines.flatten(1).to(x), self.sines.flatten(1).to(x), strict=True):
            y = y * cosine + y[..., partners] * sine
        return y


class Directions(NamedTuple):
    """Random vectors with sparse factors: the columns of a matrix that need not be made."""

    factors: HadamardFactors | GivensFactors
    norms: Float[Tensor, "columns"]

    def matrix(self) -> Float[Tensor, "dim columns"]:
        """The vectors as the columns of a dense matrix."""
        return self.factors.matrix()[:, : len(self.norms)] * self.norms

    def multiply(self, x: Float[Tensor, "*b dim"]) -> Float[Tensor, "*b columns"]:
        """Returns x times the matrix without making it."""
        return self.factors.multiply(x)[..., : len(self.norms)] * self.norms.to(x)


def draw(
    dim: int, columns: int, projection: Projection, norms: Norms, generator: torch.Generator | None
) -> Float[Tensor, "{dim} {columns}"]:
    """Draws `columns` random vectors in `dim` dimensions, as the columns of a matrix."""
    if projection == "independent":
        return torch.randn(dim, columns, generator=generator)
    if projection != "orthogonal":
        return draw_directions(dim, columns, projection, norms, generator).matrix()
    count = -(-columns // dim)
    directions = torch.cat([orthogonal(dim, generator) for _ in range(count)], dim=1)[:, :columns]
    return directions * _norms(dim, columns, norms, generator)


def draw_directions(
    dim: int,
    columns: int,
    projection: Projection,
    norms: Norms,
    generator: torch.Generator | None,
) -> Directions:
    """Draws the same vectors as `draw`, as sparse factors."""
    factors = _FACTORS[projection](dim, -(-columns // dim), generator)
    return Directions(factors, _norms(dim, columns, norms, generator))


def pays(projection: Projection, dim: int) -> bool:
    """Whether the factors of a projection multiply faster than its dense matrix."""
    return projection in FAST_FROM and dim >= FAST_FROM[projection]


def orthogonal(dim: int, generator: torch.Generator | None) -> Float[Tensor, "{dim} {dim}"]:
    """Draws a uniformly distributed orthogonal matrix: Q of a Gaussian matrix, with the signs of R's diagonal."""
    q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    return (q * r.diagonal().sign()).float()


def hadamard(dim: int, blocks: int, generator: torch.Generator | None) -> HadamardFactors:
    """Draws products of three H D, with H a normalised Hadamard matrix and D random signs: nearly uniform at low cost.

    The size of a Hadamard matrix is a power of two. Other dimensions are cut out of the next larger matrix and their
    columns are normalised, so that they are only nearly orthogonal. A draw with a nearly zero column is repeated.
    """
    size = 1 << (dim - 1).bit_length()
    h = hadamard_matrix(size)
    drawn: list[tuple[Tensor, Tensor]] = []
    while len(drawn) < blocks:
        signs = torch.stack([_signs(size, generator) for _ in range(4)])
        lengths = _hadamard_product(signs, h)[:dim, :dim].norm(dim=0)
        if lengths.min() > 1e-3:
            drawn.append((signs, lengths))
    all_signs, all_lengths = zip(*drawn, strict=True)
    return HadamardFactors(torch.stack(all_signs, dim=1), torch.stack(all_lengths))


def givens(dim: int, blocks: int, generator: torch.Generator | None) -> GivensFactors:
    """Draws products of random rotations in two coordinates each, in rounds with new random pairs."""
    rounds = 4 * max(1, math.ceil(math.log2(dim)))
    signs = torch.empty(blocks, dim)
    partners = torch.arange(dim).repeat(rounds, blocks, 1)
    cosines, sines = torch.ones(rounds, blocks, dim), torch.zeros(rounds, blocks, dim)
    for block in range(blocks):
        signs[block] = _signs(dim, generator)
        for turn in range(rounds):
            order = torch.randperm(dim, generator=generator)
            first, second = order[: dim // 2], order[dim // 2 : 2 * (dim // 2)]
            angle = torch.rand(len(first), generator=generator) * (2 * math.pi)
            place = (turn, block)
            partners[place][first], partners[place][second] = second, first
            cosines[place][first] = cosines[place][second] = angle.cos()
            sines[place][first], sines[place][second] = -angle.sin(), angle.sin()
    return GivensFactors(signs, partners, cosines, sines)


def hadamard_matrix(size: int) -> Float[Tensor, "{size} {size}"]:
    """The normalised Hadamard matrix of a size that is a power of two."""
    h = torch.ones(1, 1)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)]) / math.sqrt(2)
    return h


def walsh_hadamard(x: Float[Tensor, "*b size"]) -> Float[Tensor, "*b size"]:
    """Returns x times the normalised Hadamard matrix in log(size) / log(RADIX) passes.

    The matrix is the Kronecker product of smaller ones. Each pass multiplies the last axis by one of them and moves it to
    the front, so that the axes end in their own order.
    """
    size = x.shape[-1]
    y, rest = x, size
    while rest > 1:
        radix = min(RADIX, rest)
        y = product(y.unflatten(-1, (size // radix, radix)), hadamard_matrix(radix).to(x)).mT.flatten(-2)
        rest //= radix
    return y


def _hadamard_product(signs: Float[Tensor, "4 size"], h: Float[Tensor, "size size"]) -> Float[Tensor, "size size"]:
    """D1 H D2 H D3 H D4 as a dense matrix."""
    product = torch.eye(len(h))
    for turn in range(3):
        product = (product * signs[turn]) @ h
    return product * signs[3]


def _norms(dim: int, columns: int, norms: Norms, generator: torch.Generator | None) -> Float[Tensor, "{columns}"]:
    if norms == "fixed":
        return torch.full((columns,), math.sqrt(dim))
    return torch.randn(dim, columns, generator=generator).norm(dim=0)


def _signs(size: int, generator: torch.Generator | None) -> Float[Tensor, "{size}"]:
    return torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1


_FACTORS: dict[str, Callable[[int, int, torch.Generator | None], HadamardFactors | GivensFactors]] = {
    "hadamard": hadamard,
    "givens": givens,
}
