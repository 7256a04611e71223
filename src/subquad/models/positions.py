"""Position embeddings: sinusoidal, learned and rotary."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from subquad.errors import SubquadError

LONGEST_WAVE = 10_000.0  # longest wavelength divided by 2 pi, in positions


def sinusoids(at: Real[Tensor, "*n"], dim: int) -> Float[Tensor, "*n w"]:
    """Sines and cosines with wavelengths from 2 pi to 2 pi 10000 positions (Vaswani et al. 2017, section 3.5)."""
    waves = torch.exp(torch.arange(0, dim, 2, device=at.device) * (-math.log(LONGEST_WAVE) / dim))
    angles = (at if at.dtype == torch.float64 else at.float())[..., None] * waves  # float64 keeps large positions precise
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :dim]


class Sinusoidal(nn.Module):
    """Adds sinusoidal position embeddings, for any length."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Float[Tensor, "b n w"], start: int = 0) -> Float[Tensor, "b n w"]:
        at = torch.arange(start, start + x.shape[1], device=x.device)
        return x + sinusoids(at, self.dim).to(x.dtype)


class LearnedPositions(nn.Module):
    """Adds a learned vector for each position, up to `longest` positions."""

    def __init__(self, dim: int, longest: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(longest, dim, generator=generator) * 0.02)

    def forward(self, x: Float[Tensor, "b n w"], start: int = 0) -> Float[Tensor, "b n w"]:
        end, longest = start + x.shape[1], len(self.vectors)
        if end > longest:
            raise SubquadError(
                f"the sequence has {end} positions, but the model has learned {longest}: "
                "build it with a larger `longest`, or with sinusoidal or rotary positions"
            )
        return x + self.vectors[start:end]


class Rotation(NamedTuple):
    """Cosines and sines of the angles by which pairs of coordinates are rotated at each position."""

    cosines: Float[Tensor, "*b n d"]  # n d for all sequences, or b 1 n d
    sines: Float[Tensor, "*b n d"]


def rotation(start: int, length: int, dim: int, like: Tensor) -> Rotation:
    """Returns the rotation of `length` positions from `start` (Su et al. 2021, *RoFormer*, equation 15)."""
    waves = torch.exp(torch.arange(0, dim, 2, device=like.device) * (-math.log(LONGEST_WAVE) / dim))
    angles = (torch.arange(start, start + length, device=like.device)[:, None].float() * waves).repeat_interleave(2, dim=1)
    return Rotation(angles.cos(), angles.sin())


def rotation_at(at: Real[Tensor, "b n"], dim: int) -> Rotation:
    """Returns the rotation of real-valued positions, such as times, which may differ between sequences."""
    waves = torch.exp(torch.arange(0, dim, 2, device=at.device) * (-math.log(LONGEST_WAVE) / dim))
    angles = (at[:, None, :, None] * waves).repeat_interleave(2, dim=-1)
    return Rotation(angles.cos().float(), angles.sin().float())


def rotate(x: Float[Tensor, "b h n d"], by: Rotation) -> Float[Tensor, "b h n d"]:
    """Rotates pairs of coordinates, so that q . k depends only on the difference of the positions."""
    even, odd = x[..., 0::2], x[..., 1::2]
    quarter = torch.stack([-odd, even], dim=-1).flatten(-2)  # x rotated by a right angle
    return (x * by.cosines + quarter * by.sines).to(x.dtype)
