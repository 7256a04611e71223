"""The grid that recorded gaps lie on."""

import numpy as np
import pytest
from numpy import ndarray

from subquad.tasks.events.resolution import grid_of


def exponential(count: int = 3000, mean: float = 300.0, seed: int = 0) -> ndarray:
    return np.random.default_rng(seed).exponential(mean, count)


def grid_of_times(times: ndarray) -> float:
    return grid_of(np.diff(times), float(np.abs(times).max()))


WHOLE = np.round(np.cumsum(exponential()))
ONE_OFF = np.where(np.arange(len(WHOLE)) == 77, WHOLE + 0.123456, WHOLE)


@pytest.mark.parametrize(
    ("times", "width"),
    [
        (WHOLE, 1.0),
        (1.7e9 + WHOLE, 1.0),
        (WHOLE / 3600, 1 / 3600),
        (WHOLE / 1440 / 365.25, 1 / 1440 / 365.25),
        (np.round(WHOLE / 60000, 11), 1 / 60000),  # rounded when it was written
        (1.7e9 + np.round(np.cumsum(exponential(mean=20.0)), 3), 0.001),  # milliseconds since 1970, not exact in floats
        (np.arange(1000.0), 1.0),
        (0.37 + 0.1 * np.arange(1000.0), 0.1),
        (np.cumsum(np.where(exponential() > 200, 7.0, 10.0)), 1.0),
        (ONE_OFF, 1.0),
    ],
)
def test_grids(times: ndarray, width: float) -> None:
    assert grid_of_times(times) == pytest.approx(width, rel=1e-6)


@pytest.mark.parametrize(
    "times",
    [
        np.cumsum(exponential()),
        np.cumsum(1 + 0.001 * np.random.default_rng(0).normal(size=3000)),
        np.cumsum(np.where(exponential() > 200, 30.0, exponential(seed=1))),  # half of the gaps are the same
        np.array([0.0, 1.0, 2.0]),
    ],
)
def test_no_grid(times: ndarray) -> None:
    assert grid_of_times(times) == 0.0
