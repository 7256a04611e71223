"""The resolution of recorded times: the width of the grid that gaps lie on, such as one second."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

ON_GRID = 1e-4
"""Largest distance of a gap from a multiple of the grid's width, in widths, beside the rounding errors of times."""

NEAR_GRID = 0.05
"""The same while the width is still adjusted to the gaps."""

MOST = 0.99
"""Share of the gaps that must lie on a grid. A few exceptions do not make the grid of all other gaps finer."""

FEWEST, SAMPLE = 4, 20_000
"""Smallest and largest number of gaps from which a grid is estimated."""

ROUND_OFF = 64.0
"""Smallest width of a grid, in rounding errors of the largest time. Finer grids would be those of floating-point numbers."""

REACH = 64.0
"""A candidate for the width is first compared with gaps of up to so many widths, whose multiples need no precise width."""

SHORTEST = 16
"""Number of gaps that a candidate is first compared with, if fewer are so short."""

DIGITS = range(-6, 10)
"""Numbers of decimals with which times may be written; a negative number for times in tens, hundreds and so on."""


class Fit(NamedTuple):
    """A width adjusted to gaps, and the share of them that lies on its grid."""

    width: float
    share: float


def grid_of(gaps: Float[ndarray, "gaps"], largest_time: float) -> float:
    """Width of the coarsest grid on which nearly all gaps lie, or 0 if there is none, as for continuous times.

    This is Euclid's algorithm for the greatest common divisor, for numbers with rounding errors: begin with a short gap, and
    replace the width by what is left of the other gaps as long as many of them are no multiples of it.
    """
    positive = np.sort(gaps[gaps > 0])
    if len(positive) < FEWEST:
        return 0.0
    sample = positive[:: -(-len(positive) // SAMPLE)]
    error = float(np.spacing(max(largest_time, float(sample[-1]))))
    for digits in DIGITS:  # counted in decimals of times, gaps have no rounding errors
        unit = 10.0**-digits
        if unit > ROUND_OFF * error and _share(sample, unit, error) >= MOST:
            return unit * _divisor(np.round(sample / unit), 0.0)
    return _divisor(sample, error)


def _divisor(gaps: Float[ndarray, "gaps"], error: float) -> float:
    """Width of the coarsest grid on which nearly all sorted gaps lie, up to rounding errors; 0 if there is none."""
    width = float(np.quantile(gaps[gaps > 0], 1.0 - MOST, method="higher"))
    while width > ROUND_OFF * error:
        near = gaps[: max(SHORTEST, np.searchsorted(gaps, REACH * width, side="right"))]
        if _fit(near, width, error).share >= MOST and (fit := _fit(gaps, width, error)).share >= MOST:
            return fit.width
        off = np.abs(near - np.round(near / width) * width)
        rest = off[off > ON_GRID * width + 2.0 * error]
        width = float(np.quantile(rest, 0.5, method="lower")) if len(rest) else 0.0
    return 0.0


def _share(gaps: Float[ndarray, "gaps"], width: float, error: float) -> float:
    """Share of the gaps that are multiples of a width, up to rounding errors."""
    multiples = np.round(gaps / width)
    return float(((multiples > 0) & (np.abs(gaps - multiples * width) <= ON_GRID * width + 2.0 * error)).mean())


def _fit(gaps: Float[ndarray, "gaps"], width: float, error: float) -> Fit:
    """Adjusts a width to ever longer gaps by least squares: the multiples of long gaps tell it most precisely."""
    reach = 2.0 * width
    while True:
        near = gaps[: np.searchsorted(gaps, reach, side="right")]
        multiples = np.round(near / width)
        used = (multiples > 0) & (np.abs(near - multiples * width) <= NEAR_GRID * width)
        if used.any():
            width = float((near * multiples)[used].sum() / np.square(multiples[used]).sum())
        if len(near) == len(gaps):
            return Fit(width, _share(gaps, width, error))
        reach *= 2.0
