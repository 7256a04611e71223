"""Intervals, the bootstrap, paired differences and verdicts, where the truth is known."""

import math

import numpy as np
import pytest
from numpy import ndarray

from subquad import statistics
from subquad.statistics import (
    Interval,
    all_held,
    at_least,
    at_most,
    count_draws,
    geometric_mean,
    geometric_ratio,
    grouped_mean,
    is_above,
    is_positive,
    mean_over_seeds,
    median_interval,
    paired_difference,
    percentile_interval,
    ratio_interval,
    resample,
    share_interval,
)


def resampled_counts(units: int, seed: int) -> ndarray:
    """How often each observation is drawn, written without scipy: the draws that published figures were made with."""
    drawn = np.random.default_rng(seed).integers(0, units, (1000, units))
    return np.stack([np.bincount(row, minlength=units) for row in drawn]).astype(float)


@pytest.mark.parametrize("batch", [4_000_000, 20])
@pytest.mark.parametrize("units", [2, 5, 41])
def test_scipy_draws_what_was_drawn_by_hand(units: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws in the same order, however many are held at a time."""
    monkeypatch.setattr(statistics, "BATCH_NUMBERS", batch)
    values = np.random.default_rng(1).integers(0, 1000, size=units).astype(float)  # whose sums are exact in any order
    drawn = resample(units, lambda indices: count_draws(indices) @ values, seed=3)
    assert drawn.tolist() == (resampled_counts(units, 3) @ values).tolist()
    by_hand = np.array([values[row] for row in np.random.default_rng(0).integers(0, units, (1000, units))])
    low, high = np.quantile(np.median(by_hand, axis=1), [0.025, 0.975])
    assert median_interval(values) == (np.median(values), low, high)


def test_one_observation_is_its_own_interval() -> None:
    assert median_interval([2.5]) == (2.5, 2.5, 2.5)
    assert grouped_mean(np.array([1.0, 3.0]), np.array([2])) == (2.0, 2.0, 2.0)


def test_another_seed_gives_other_draws() -> None:
    values = np.random.default_rng(1).exponential(size=30)
    alone = np.ones(30, int)
    assert grouped_mean(values, alone, seed=1) != grouped_mean(values, alone, seed=2)


def test_draws_that_are_undefined_are_left_out() -> None:
    assert percentile_interval(1.0, np.array([np.nan, 2.0, np.inf])) == (1.0, 2.0, 2.0)
    assert percentile_interval(1.0, np.array([np.nan])) == (1.0, 1.0, 1.0)


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine got ten times slower half-way: the ratio does not notice."""
    baseline, other = [2.0] * 5 + [20.0] * 5, [1.0] * 5 + [10.0] * 5
    assert ratio_interval(baseline, other) == (2.0, 2.0, 2.0)


def test_a_median_lies_in_its_interval() -> None:
    result = median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert result.low <= result.value == 3.0 <= result.high
    assert result.high > result.low


def test_student_by_hand() -> None:
    """4.302653 is the 97.5% quantile of Student's distribution with two degrees of freedom."""
    found = mean_over_seeds([1.0, 2.0, 3.0])
    assert found == pytest.approx((2.0, 2.0 - 4.302653 / math.sqrt(3), 2.0 + 4.302653 / math.sqrt(3)))
    assert mean_over_seeds([7.0]) == (7.0, -math.inf, math.inf)


def test_a_share_of_seeds_has_the_exact_interval() -> None:
    """Five of five successes leave a share of (0.025)^(1/5) or more, and none of five one minus that or less."""
    low = 0.025 ** (1 / 5)
    assert share_interval(5, 5) == pytest.approx((1.0, low, 1.0))
    assert share_interval(0, 5) == pytest.approx((0.0, 0.0, 1 - low))
    assert share_interval(4, 5) == pytest.approx((0.8, 0.2836, 0.9949), abs=1e-4)


def test_differences_and_ratios_are_between_equal_seeds() -> None:
    ours, theirs = {0: math.log(20.0), 1: math.log(40.0), 2: 7.0}, {1: math.log(20.0), 0: math.log(10.0)}
    assert geometric_ratio(ours, theirs) == pytest.approx((2.0, 2.0, 2.0))
    assert geometric_mean({0: math.log(20.0)}) == pytest.approx((20.0, 0.0, math.inf))
    assert geometric_mean({}) is None
    assert paired_difference({0: 3.0, 1: 5.0}, {0: 1.0, 1: 3.0, 2: 9.0}) == (2.0, 2.0, 2.0)
    assert paired_difference({0: 3.0}, {1: 1.0}) is None


def test_intervals_of_shares_end_at_0_and_1() -> None:
    assert Interval(0.9, 0.7, 1.1).as_share == Interval(0.9, 0.7, 1.0)
    assert Interval(0.1, -0.1, 0.3).as_share == Interval(0.1, 0.0, 0.3)
    alone = Interval(0.5, -math.inf, math.inf)
    assert alone.as_share == alone


def test_what_an_interval_holds_is_not_decided() -> None:
    found = Interval(2.0, 1.0, 3.0)
    assert [at_least(found, limit) for limit in (1.0, 2.5, 3.0, 3.1)] == [True, None, None, False]
    assert [at_most(found, limit) for limit in (0.9, 1.0, 2.5, 3.0)] == [False, None, None, True]
    assert [is_positive(Interval(0.0, low, high)) for low, high in ((1, 2), (-1, 2), (-2, -1))] == [True, None, False]
    others = [Interval(0.0, 0.1, 0.9), Interval(0.0, 0.9, 1.1), Interval(0.0, 3.1, 4.0)]
    assert [is_above(found, other) for other in others] == [True, None, False]
    assert (all_held([True, True]), all_held([True, None]), all_held([None, False])) == (True, None, False)


def test_a_row_holds_an_interval() -> None:
    assert Interval.of_row({"metric": "seconds", "value": 2.0, "low": 1.0, "high": 3.0}) == (2.0, 1.0, 3.0)
