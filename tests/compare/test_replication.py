"""The cautionary tale, told by its own figures."""

import math

import numpy as np
import pytest

from subquad.compare.replication import PUBLISHED, coefficient_draws, extrapolations


def test_the_published_figure_comes_out() -> None:
    published, fuller = extrapolations()
    assert round(published.middle) == PUBLISHED
    assert published.low < 2500
    assert published.high > 4500
    assert fuller.low < 2000
    assert math.isinf(fuller.high)
    assert 0.025 < fuller.never < 0.2


def test_draws_scatter_as_regressions_do() -> None:
    """Against the textbook's standard error of a slope."""
    x, y = np.arange(30.0), 2.0 * np.arange(30.0) + np.random.default_rng(1).normal(0, 1, 30)
    draws = coefficient_draws(list(x), list(y), (1, 0), np.random.default_rng(0))
    slope, intercept = np.polyfit(x, y, 1)
    assert draws[0, 1:] == pytest.approx([slope, intercept])
    error = np.sqrt(((y - slope * x - intercept) ** 2).sum() / 28 / ((x - x.mean()) ** 2).sum())
    assert draws[1:, 1].std() == pytest.approx(error * np.sqrt(28 / 26), rel=0.03)
    assert (draws[:, 0] == 0).all()
