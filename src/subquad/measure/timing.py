"""How long things take, relative to each other, on a machine that is never quiet."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A median and the range that 95 of 100 bootstrap samples of the measurements give for it."""

    middle: float
    low: float
    high: float


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float, at_least: int = 3, at_most: int = 50
) -> dict[str, list[float]]:
    """Seconds of each run of each candidate, round after round of all of them, so that drift hits all alike.

    One round warms up. Rounds end when `seconds` are over, within the limits on their number.
    """
    for candidate in candidates.values():
        candidate()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for done in range(at_most):
        if done >= at_least and time.perf_counter() - start > seconds:
            break
        for name, candidate in candidates.items():
            before = time.perf_counter()
            candidate()
            taken[name].append(time.perf_counter() - before)
    return taken


def median(measured: Sequence[float], *, seed: int = 0) -> Interval:
    """The median of some measurements."""
    values = np.asarray(measured)
    picks = np.random.default_rng(seed).integers(0, len(values), (1000, len(values)))
    low, high = np.quantile(np.median(values[picks], axis=1), [0.025, 0.975])
    return Interval(float(np.median(values)), float(low), float(high))


def ratio(baseline: Sequence[float], measured: Sequence[float]) -> Interval:
    """How many times as fast as the baseline: the median over rounds of the ratio within a round."""
    return median(np.asarray(baseline) / np.asarray(measured))


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
