"""The length from which linear attention pays, extrapolated by a published replication from lengths of 8 to 64.

Do and Bergner (2022), a replication of *Transformers are RNNs* in Julia, timed 3000 steps of training at four short lengths
(their table 1), fitted a + c L^2 to softmax and a + b L to linear attention, and read off that linear pays from 3149 on.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from subquad.measure.fits import Array

LENGTHS = (8, 16, 32, 64)
SOFTMAX_SECONDS = (221, 236, 287, 416)
LINEAR_SECONDS = (1738, 3004, 5373, 10071)
PUBLISHED = 3149


class Meeting(NamedTuple):
    """Where two regressions meet, with a 95% interval, and the share of coefficient draws for which they never meet."""

    model: str
    middle: float
    low: float
    high: float  # infinite if more than one draw in forty never meets
    never: float


def extrapolations(seed: int = 0) -> list[Meeting]:
    """The published regression, and the same regression with a linear term for softmax."""
    rng = np.random.default_rng(seed)
    return [
        _meeting("softmax a + c L^2, linear a + b L, as published", (2, 0), rng),
        _meeting("softmax a + b L + c L^2, linear a + b L", (2, 1, 0), rng),
    ]


def curve(seconds: Sequence[float], powers: tuple[int, ...], at: Array) -> Array:
    """The replication's regression, evaluated at the lengths `at`."""
    best = coefficient_draws(LENGTHS, seconds, powers, np.random.default_rng(0), draws=0)[0]
    return np.polyval(best, at)


def _meeting(model: str, powers: tuple[int, ...], rng: np.random.Generator) -> Meeting:
    softmax = coefficient_draws(LENGTHS, SOFTMAX_SECONDS, powers, rng)
    linear = coefficient_draws(LENGTHS, LINEAR_SECONDS, (1, 0), rng)
    middle, *draws = (_passes(*difference) for difference in softmax - linear)
    low, high = np.quantile(draws, [0.025, 0.975], method="nearest")
    return Meeting(model, middle, float(low), float(high), float(np.mean(np.isinf(draws))))


def coefficient_draws(
    x: Sequence[float], y: Sequence[float], powers: tuple[int, ...], rng: np.random.Generator, draws: int = 20_000
) -> Array:
    """Coefficients of x^2, x and 1 by ordinary least squares in the first row, and random draws of them below.

    The coefficients scatter as Student's t, whose degrees of freedom are the points minus the coefficients.
    """
    columns = np.stack([np.array(x, dtype=float) ** power for power in powers], axis=1)
    inverse = np.linalg.inv(columns.T @ columns)
    best = inverse @ columns.T @ np.array(y, dtype=float)
    freedom = len(x) - len(powers)
    variance = float(((np.array(y) - columns @ best) ** 2).sum()) / freedom
    normal = rng.standard_normal((draws, len(powers))) @ np.linalg.cholesky(inverse * variance).T
    drawn = np.vstack([best, best + normal / np.sqrt(rng.chisquare(freedom, (draws, 1)) / freedom)])
    coefficients = np.zeros((draws + 1, 3))
    coefficients[:, [2 - power for power in powers]] = drawn
    return coefficients


def _passes(c: float, b: float, a: float) -> float:
    """The x from which on c x^2 + b x + a stays positive; infinity if there is none."""
    inside = b * b - 4 * a * c
    return float((-b + np.sqrt(inside)) / (2 * c)) if c > 0 and inside >= 0 else float("inf")
