"""Fits of measured costs against length: growth, crossovers, and their intervals.

Costs are positive and their noise is multiplicative, so all computations use logarithms. Intervals come from a bootstrap:
each cost is redrawn around its median with the scatter of its repetitions, and the result is computed again.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from subquad.statistics import ENDS, Interval, percentile_interval

Array = NDArray[np.float64]

DRAWS = 1000  # number of bootstrap draws
FARTHEST = 100.0  # largest distance of a draw from the middle, as a logarithm, so that costs and their ratios are finite
FEWEST_POINTS = 3  # smallest number of lengths for a fit
RULING_SHARE = 0.5  # share of a cost above which fixed costs rule it
EXPONENTS = np.arange(0.1, 3.0, 0.01)  # exponents among which `scaling` looks for the best


class Costs(NamedTuple):
    """Costs by ascending length, and bootstrap draws: ``draws[i, j]`` is the i-th draw at the j-th length."""

    lengths: Array
    middle: Array
    draws: Array


class Crossover(NamedTuple):
    """Length from which on a mechanism is faster, with its interval. None is a length outside of the measured range."""

    middle: float | None
    low: float | None
    high: float | None
    first_length: float
    last_length: float

    @property
    def within(self) -> bool:
        """Whether the crossover lies within the measured lengths, including the shortest."""
        return self.middle is not None


class Growth(NamedTuple):
    """Coefficients a, b, c >= 0 of a + b L + c L^2, and the exponent fitted to the longer half of the lengths."""

    constant: float
    linear: float
    quadratic: float
    exponent: Interval | None


class Scaling(NamedTuple):
    """The exponent p of a + b L^p, with its interval, and the lengths at which the fixed cost a is at most half."""

    exponent: Interval
    first_length: float
    last_length: float


class Scatter(NamedTuple):
    """Scatter of a measurement between visits: the standard deviation of its logarithm."""

    deviation: float
    freedom: float  # degrees of freedom of the estimate


def pooled_scatter(cells: Sequence[Sequence[float]]) -> Scatter:
    """Estimates a common scatter from all cells that were visited more than once.

    The estimate matches the 90% quantile of the deviations, so that a few outliers do not widen all intervals; this costs
    about half of the degrees of freedom. It is at least 1%, and 10% if no cell was visited twice.
    """
    deviations = [
        np.abs(logs - logs.mean()) * np.sqrt(len(logs) / (len(logs) - 1))
        for logs in (np.log(values) for values in cells if len(values) > 1)
    ]
    if not deviations:
        return Scatter(0.1, 100.0)
    freedom = sum(len(cell_deviations) - 1 for cell_deviations in deviations) / 2
    return Scatter(max(0.01, float(np.quantile(np.concatenate(deviations), 0.9)) / 1.645), max(1.0, freedom))


def middle(visits: Sequence[float]) -> float:
    """Returns exp of the median of the logarithms."""
    return float(np.exp(np.median(np.log(visits))))


def draw_costs(
    visits: Mapping[int, Sequence[float]], scatter: Scatter, rng: np.random.Generator, draws: int = DRAWS
) -> Costs:
    """Returns the median cost at each length, and draws of the result of another run with as many visits.

    The draws have twice the variance of a median: that of this run plus that of the other.
    """
    lengths = np.array(sorted(visits), dtype=float)
    logs = np.log([middle(visits[int(length)]) for length in lengths])
    spread = scatter.deviation * np.sqrt([2 / len(visits[int(length)]) for length in lengths])
    unsure = np.sqrt(scatter.freedom / rng.chisquare(scatter.freedom, (draws, 1)))  # the deviation is itself an estimate
    noise = rng.standard_normal((draws, len(lengths))) * spread * unsure
    return Costs(lengths, np.exp(logs), np.exp(logs + np.clip(noise, -FARTHEST, FARTHEST)))


def pays_from(lengths: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Returns the length from which on the ratio stays above 1, interpolated on logarithmic scales.

    Returns the first length if the ratio is above 1 everywhere, and None if it is below 1 at the last length.
    """
    if ratios[-1] < 1:
        return None
    last_below = max((index for index, value in enumerate(ratios) if value < 1), default=None)
    if last_below is None:
        return float(lengths[0])
    x, y = np.log(lengths[last_below : last_below + 2]), np.log(ratios[last_below : last_below + 2])
    return float(np.exp(x[0] - y[0] * (x[1] - x[0]) / (y[1] - y[0])))


def crossover(ratios: Costs) -> Crossover:
    """Returns the length from which on baseline / measured stays above 1, interpolated within the measured lengths."""
    lengths = [int(length) for length in ratios.lengths]
    first, last = ratios.lengths[0], ratios.lengths[-1]
    crossings = [pays_from(lengths, draw) for draw in ratios.draws]
    # beyond the last length sorts last; at the first length or before it, first
    ordered = np.sort([np.inf if length is None else length for length in crossings])
    low, high = ordered[int(0.025 * len(ordered))], ordered[int(np.ceil(0.975 * len(ordered))) - 1]
    middle = pays_from(lengths, list(ratios.middle))
    return Crossover(
        middle=middle,
        low=None if low <= first else _finite(low),
        high=_finite(high),
        first_length=float(first),
        last_length=float(last),
    )


def growth(costs: Costs) -> Growth | None:
    """Fits the growth of the cost with the length. Returns None for fewer than three lengths."""
    if len(costs.lengths) < FEWEST_POINTS:
        return None
    upper = slice(-max(FEWEST_POINTS, (len(costs.lengths) + 1) // 2), None)
    logs = np.log(costs.lengths[upper])
    slopes = np.polyfit(logs, np.log(np.vstack([costs.middle, costs.draws])[:, upper]).T, 1)[0]
    constant, linear, quadratic = polynomial(costs.lengths, costs.middle)
    return Growth(constant, linear, quadratic, percentile_interval(float(slopes[0]), slopes[1:]))


def scaling(costs: Costs) -> Scaling | None:
    """Fits a + b L^p with a, b >= 0. Returns None if fixed costs rule at all but the last one or two lengths."""
    constants, exponents = _power_fits(costs.lengths, np.vstack([costs.middle, costs.draws]))
    free = costs.lengths[constants[0] <= RULING_SHARE * costs.middle]
    if len(free) < FEWEST_POINTS:
        return None
    exponent = percentile_interval(float(exponents[0]), exponents[1:])
    return Scaling(exponent, float(free[0]), float(free[-1]))


def _power_fits(lengths: Array, costs: Array) -> tuple[Array, Array]:
    """Returns a and p of a + b L^p with the least relative error, for each row of costs."""
    fits = [_power_fit((lengths / lengths[-1]) ** exponent, costs) for exponent in EXPONENTS]
    constants, errors = (np.stack(parts, axis=1) for parts in zip(*fits, strict=True))
    best = errors.argmin(axis=1)
    return constants[np.arange(len(best)), best], EXPONENTS[best]


def _power_fit(powers: Array, costs: Array) -> tuple[Array, Array]:
    """Returns a of a + b x with a, b >= 0 and the least relative error, and this error, for each row of costs."""
    ones, x = 1 / costs, powers / costs  # a ones + b x is to be 1
    oo, ox, xx = (ones * ones).sum(1), (ones * x).sum(1), (x * x).sum(1)
    o, y = ones.sum(1), x.sum(1)
    slope = np.clip((oo * y - ox * o) / np.maximum(oo * xx - ox * ox, 1e-300), 0, y / xx)  # y / xx: its value for a = 0
    constant = np.maximum((o - slope * ox) / oo, 0)
    return constant, ((constant[:, None] * ones + slope[:, None] * x - 1) ** 2).sum(1)


def polynomial(lengths: Array, costs: Array, degree: int = 2) -> tuple[float, ...]:
    """Returns a, b, c >= 0 of a + b L + c L^2 with the least relative error; c is 0 for degree 1."""
    powers = np.stack([lengths**power for power in range(degree + 1)], axis=1)
    scale = powers.max(axis=0)
    coefficients, _ = scipy.optimize.nnls(powers / scale / costs[:, None], np.ones(len(lengths)))
    return tuple(float(value) for value in [*(coefficients / scale), 0.0, 0.0][:3])


def extrapolated_crossover(baseline: Costs, measured: Costs) -> Interval | None:
    """Extrapolates the length at which two fitted costs meet beyond the measured lengths.

    Returns None if the fits do not meet there. The upper end of the interval is infinite if more than 2.5% of the draws do
    not meet at any length. Draws that meet before the last measured length count as meeting there.
    """
    start = float(max(baseline.lengths[-1], measured.lengths[-1]))
    middle = _meet(baseline.lengths, baseline.middle, measured.lengths, measured.middle, start)
    count = min(len(baseline.draws), 200)
    draws = [
        _meet(baseline.lengths, baseline.draws[index], measured.lengths, measured.draws[index], start)
        for index in range(count)
    ]
    if middle is None or middle <= start:
        return None
    low, high = np.quantile([np.inf if draw is None else draw for draw in draws], ENDS, method="nearest")
    return Interval(middle, float(low), float(high))


def _meet(baseline_lengths: Array, baseline: Array, lengths: Array, measured: Array, start: float) -> float | None:
    a, b, c = (
        theirs - ours
        for theirs, ours in zip(polynomial(baseline_lengths, baseline), polynomial(lengths, measured), strict=True)
    )
    if c < 0 or (c == 0 and b <= 0):  # the difference does not become positive for long sequences
        return None
    roots = [float(root.real) for root in np.roots([c, b, a]) if abs(root.imag) < 1e-9]
    return max([start, *roots])


def interpolate(lengths: Sequence[float], costs: Sequence[float], at: float) -> float:
    """Returns the cost at a length: interpolated between measured lengths, extrapolated by the fit beyond the last."""
    x, y = np.array(lengths, dtype=float), np.array(costs, dtype=float)
    if at <= x[-1]:
        return float(np.exp(np.interp(np.log(at), np.log(x), np.log(y))))
    a, b, c = polynomial(x, y)
    return float((a + b * at + c * at**2) * y[-1] / (a + b * x[-1] + c * x[-1] ** 2))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
