"""Fits of measured costs against length: growth, crossovers, and their intervals.

Costs are positive and noisy by a factor, so everything is done with their logarithms. Intervals come from a bootstrap: each
cost is drawn anew around its middle with the scatter that its repetitions showed, and what was computed is computed again.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from subquad.statistics import ENDS, Interval, percentile_interval

Array = NDArray[np.float64]

DRAWS = 1000
FEWEST_POINTS = 3


class Costs(NamedTuple):
    """Costs by length, ascending, and draws of them: ``draws[i, j]`` is the i-th draw at the j-th length."""

    lengths: Array
    middle: Array
    draws: Array


class Crossover(NamedTuple):
    """The length from which on a mechanism pays. None stands for a length outside of the measured range."""

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
    """a + b L + c L^2 with the three coefficients, none negative, and the exponent of the longer half of the lengths."""

    constant: float
    linear: float
    quadratic: float
    exponent: Interval | None


class Scatter(NamedTuple):
    """Scatter of a measurement between visits: the standard deviation of its logarithm."""

    deviation: float
    freedom: float  # degrees of freedom of the estimate


def pooled_scatter(cells: Sequence[Sequence[float]]) -> Scatter:
    """The scatter of all cells that were visited more than once: few visits each, but many together.

    It is the one that puts nine of ten deviations where they are, so that a few wild ones do not widen everything, at the
    price of about half of the degrees of freedom. At least 1% is believed, and 10% where nothing was visited twice.
    """
    deviations = [
        np.abs(logs - logs.mean()) * np.sqrt(len(logs) / (len(logs) - 1))
        for logs in (np.log(values) for values in cells if len(values) > 1)
    ]
    if not deviations:
        return Scatter(0.1, 100.0)
    freedom = sum(len(each) - 1 for each in deviations) / 2
    return Scatter(max(0.01, float(np.quantile(np.concatenate(deviations), 0.9)) / 1.645), max(1.0, freedom))


def middle(visits: Sequence[float]) -> float:
    """The median of the logarithms, back on the original scale."""
    return float(np.exp(np.median(np.log(visits))))


def draw_costs(
    visits: Mapping[int, Sequence[float]], scatter: Scatter, rng: np.random.Generator, draws: int = DRAWS
) -> Costs:
    """The middle of the visits to each length, and draws of what another run with as many visits would find.

    Hence twice the variance of a middle: that of this run and that of the other.
    """
    lengths = np.array(sorted(visits), dtype=float)
    logs = np.log([middle(visits[int(length)]) for length in lengths])
    spread = scatter.deviation * np.sqrt([2 / len(visits[int(length)]) for length in lengths])
    unsure = np.sqrt(scatter.freedom / rng.chisquare(scatter.freedom, (draws, 1)))  # the deviation is itself an estimate
    return Costs(lengths, np.exp(logs), np.exp(logs + rng.standard_normal((draws, len(lengths))) * spread * unsure))


def pays_from(lengths: Sequence[int], ratios: Sequence[float]) -> float | None:
    """The length from which on the ratio stays above 1, by interpolation between measured lengths on logarithmic scales.

    The first length itself if it is above 1 everywhere, None if it is not at the last.
    """
    if ratios[-1] < 1:
        return None
    last_below = max((index for index, value in enumerate(ratios) if value < 1), default=None)
    if last_below is None:
        return float(lengths[0])
    x, y = np.log(lengths[last_below : last_below + 2]), np.log(ratios[last_below : last_below + 2])
    return float(np.exp(x[0] - y[0] * (x[1] - x[0]) / (y[1] - y[0])))


def crossover(ratios: Costs) -> Crossover:
    """Where the ratio baseline / measured comes above 1 to stay, by interpolation between lengths, never beyond them."""
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
    """Growth of the cost with the length. None for fewer than three lengths."""
    if len(costs.lengths) < FEWEST_POINTS:
        return None
    upper = slice(-max(FEWEST_POINTS, (len(costs.lengths) + 1) // 2), None)
    logs = np.log(costs.lengths[upper])
    slopes = np.polyfit(logs, np.log(np.vstack([costs.middle, costs.draws])[:, upper]).T, 1)[0]
    constant, linear, quadratic = polynomial(costs.lengths, costs.middle)
    return Growth(constant, linear, quadratic, percentile_interval(float(slopes[0]), slopes[1:]))


def polynomial(lengths: Array, costs: Array, degree: int = 2) -> tuple[float, ...]:
    """a, b and c of a + b L + c L^2, none negative, with the least relative error. c is 0 for the degree 1."""
    powers = np.stack([lengths**power for power in range(degree + 1)], axis=1)
    scale = powers.max(axis=0)
    coefficients, _ = nnls(powers / scale / costs[:, None], np.ones(len(lengths)))
    return tuple(float(value) for value in [*(coefficients / scale), 0.0, 0.0][:3])


def extrapolated_crossover(baseline: Costs, measured: Costs) -> Interval | None:
    """Where the two fitted costs would meet beyond the measured lengths. An extrapolation, to be called one.

    None if the fits do not meet, or do not in one of forty draws and more, which leaves the interval open.
    """
    start = float(max(baseline.lengths[-1], measured.lengths[-1]))
    middle = _meet(baseline.lengths, baseline.middle, measured.lengths, measured.middle, start)
    count = min(len(baseline.draws), 200)
    draws = [
        _meet(baseline.lengths, baseline.draws[index], measured.lengths, measured.draws[index], start)
        for index in range(count)
    ]
    if middle is None:
        return None
    low, high = np.quantile([np.inf if draw is None else draw for draw in draws], ENDS, method="nearest")
    return Interval(middle, float(low), float(high))


def _meet(baseline_lengths: Array, baseline: Array, lengths: Array, measured: Array, start: float) -> float | None:
    a, b, c = (
        one - other for one, other in zip(polynomial(baseline_lengths, baseline), polynomial(lengths, measured), strict=True)
    )
    roots = [float(root.real) for root in np.roots([c, b, a]) if abs(root.imag) < 1e-9 and root.real >= start]
    return max(roots) if roots and c > 0 else None


def interpolate(lengths: Sequence[float], costs: Sequence[float], at: float) -> float:
    """A cost between measured lengths, or beyond the last along the fitted polynomial."""
    x, y = np.array(lengths, dtype=float), np.array(costs, dtype=float)
    if at <= x[-1]:
        return float(np.exp(np.interp(np.log(at), np.log(x), np.log(y))))
    a, b, c = polynomial(x, y)
    return float((a + b * at + c * at**2) * y[-1] / (a + b * x[-1] + c * x[-1] ** 2))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
