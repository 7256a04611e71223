"""Made-up series whose structure is known, and so is how well they can be forecast.

To forecast: a wave whose number of steps, height and phase differ between series, plus noise in which each step remembers
the one before it (an autoregression). No linear function of the last steps is right for all series. To tell classes apart:
saw teeth that rise slowly and fall at once, or the other way round, so that means and spreads tell nothing.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float
from numpy import ndarray

from subquad.checking import AtLeastTwo, Checked, Count, Seed
from subquad.tasks.series.sets import SeriesSet, from_arrays

PERIODS = (12.0, 36.0)
"""Shortest and longest wave, in steps."""
MEMORY, NOISE = 0.8, 0.3
"""Share of the last step's noise that stays, and standard deviation of the new noise."""
CLASSES = ("rising", "falling")


@dataclass(frozen=True)
class Simulator(Checked):
    """Draws series of random lengths around a mean length, with two channels for forecasts and one for classes."""

    series: Count
    mean_length: AtLeastTwo
    seed: Seed
    labelled: bool

    def draw(self) -> SeriesSet:
        """The series, with labels if these are to be predicted."""
        rng = np.random.default_rng([self.seed, int(self.labelled)])
        lengths = rng.integers(max(2, self.mean_length * 3 // 4), self.mean_length * 5 // 4 + 1, self.series)
        if not self.labelled:
            return from_arrays([self._waves(int(length), rng) for length in lengths], ("first", "second"))
        numbers = rng.integers(0, 2, self.series)
        arrays = [self._teeth(int(length), int(number), rng) for length, number in zip(lengths, numbers, strict=True)]
        return from_arrays(arrays, ("value",), labels=[CLASSES[number] for number in numbers])

    def _waves(self, length: int, rng: np.random.Generator) -> Float[ndarray, "n 2"]:
        steps = np.arange(length)[:, None] / rng.uniform(*PERIODS)
        heights, phases, levels = rng.uniform(0.5, 2.0, 2), rng.uniform(0, 2 * np.pi, 2), rng.normal(0, 2, 2)
        new = rng.normal(size=(length, 2))
        new[0] /= math.sqrt(1 - MEMORY**2)  # the first step has the variance of all others
        noise = scipy.signal.lfilter([NOISE], [1.0, -MEMORY], new, axis=0)
        return levels + heights * np.sin(2 * np.pi * steps + phases) + noise

    def _teeth(self, length: int, number: int, rng: np.random.Generator) -> Float[ndarray, "n 1"]:
        teeth = (np.arange(length) / rng.uniform(10, 30) + rng.random()) % 1.0
        return ((teeth if number == 0 else 1 - teeth) + rng.normal(0, NOISE, length))[:, None]


def best_crps(horizon: int) -> float:
    """Mean CRPS of the best forecast of the made-up series, which knows wave and noise: Gaussian, by steps ahead."""
    ahead = np.arange(1, horizon + 1)
    deviations = NOISE * np.sqrt((1 - MEMORY ** (2 * ahead)) / (1 - MEMORY**2))
    return float(deviations.mean() / math.sqrt(math.pi))  # the CRPS of a normal distribution at its own draws
