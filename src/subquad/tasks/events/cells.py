"""Probabilities of cells: a gap that is recorded on a grid stands for all gaps that would be recorded as the same one."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.special import log_ndtr

PRECISION = 1e-5
"""Smallest width of a cell relative to its gap: float32 holds the logarithm of a gap to about a tenth of it."""

LEAST = 0.125
"""Smallest standard deviation of a component, in widths of the cell around its mean, which then has nearly all of it."""

SMALL = 0.1
"""Largest width of a cell, in standard deviations, whose probability is computed from the density at its centre."""


FAR = 20.0
"""Number of standard deviations beyond which the tail of a normal distribution is computed by its asymptotic series."""

LOG_SQRT_TAU = 0.9189385332046727
"""Logarithm of the square root of 2 pi."""


class Cells(NamedTuple):
    """The cell of each gap on the axis of log-gaps, and the logarithm of its width on the axis of gaps."""

    centres: Float[Tensor, "e"]
    halves: Float[Tensor, "e"]  # half of the width on the axis of log-gaps
    log_widths: Float[Tensor, "e"]


def first_cell(shortest: float, grid: float) -> float:
    """End of the cell of all gaps below the shortest one of the training sequences: where that of the shortest begins."""
    return shortest - grid / 2.0


def cells_of(gaps: Float[Tensor, "e"], grid: float) -> Cells:
    """The cells from gap - width / 2 to gap + width / 2, where the width is that of the grid, if float32 can hold it.

    A gap must be more than half a width of the grid.
    """
    ratio = (grid / gaps).clamp(min=PRECISION) / 2.0  # half of the cell relative to its gap
    halves = torch.atanh(ratio)
    centres = gaps.log() + torch.log1p(-ratio.square()) / 2.0
    return Cells(centres, halves, gaps.log() + (2.0 * ratio).log())


def log_upper_tail(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Log-probability that a standard normal variable is above x.

    `torch.special.log_ndtr` has the same values, but in float32 its gradient has no correct digit from 1,000 deviations on
    and overflows a little later. Components that are as narrow as a cell are a million deviations from most gaps.
    """
    return torch.where(x > FAR, _log_mills(x) - x.square() / 2.0, log_ndtr(-x.clamp(max=FAR)))


def log_normal_mass(centres: Float[Tensor, "*n"], halves: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Log-probability that a standard normal variable lies within `halves` of `centres`.

    The difference of two distribution functions has no correct digits for narrow cells. There, with z the centre and d the
    width, the integral of exp(-z u - u^2 / 2) over u from -d / 2 to d / 2 is 2 sinh(z d / 2) / z up to a factor of
    1 - d^2 / 24, which does not cancel.
    """
    is_small = halves <= SMALL / 2.0
    z = centres.abs()  # the lower tail is the upper one mirrored
    narrow = torch.where(is_small, halves, SMALL / 4.0)
    constant = torch.log(2.0 * narrow) - narrow.square() / 6.0 - LOG_SQRT_TAU
    by_density = constant - z.square() / 2.0 + _log_sinhc(z * narrow)
    wide = torch.where(is_small, SMALL, halves)
    near, beyond = log_upper_tail(z - wide), _log_mills(z + wide) - _log_mills(z - wide) - 2.0 * z * wide
    by_difference = near + torch.log(-torch.expm1(beyond))  # `beyond` is the logarithm of a ratio of two tails
    return torch.where(is_small, by_density, by_difference)


def _log_mills(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Logarithm of the probability above x divided by exp(-x^2 / 2), by its asymptotic series far above 0."""
    far = x.clamp(min=FAR)
    inverse = far.square().reciprocal()
    series = torch.log1p(inverse * (-1.0 + inverse * (3.0 - 15.0 * inverse)))
    near = x.clamp(max=FAR)
    return torch.where(x > FAR, series - far.log() - LOG_SQRT_TAU, log_ndtr(-near) + near.square() / 2.0)


def _log_sinhc(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Logarithm of sinh(x) / x for x >= 0."""
    is_small = x < 0.1
    large = torch.where(is_small, 1.0, x)
    return torch.where(is_small, x.square() / 6.0, large + torch.log(-torch.expm1(-2.0 * large) / (2.0 * large)))
