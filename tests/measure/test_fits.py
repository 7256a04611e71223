"""Fits and crossovers, on costs whose truth is known."""

from typing import Any

import numpy as np
import pytest

from subquad.measure.fits import (
    Costs,
    Scatter,
    crossover,
    draw_costs,
    extrapolated_crossover,
    growth,
    interpolate,
    middle,
    pays_from,
    polynomial,
    pooled_scatter,
    scaling,
)

LENGTHS = np.array([128, 256, 512, 1024, 2048, 4096], dtype=float)


def costs(of: np.ndarray, scatter: float = 0.02, visits: int = 2) -> Costs:
    return draw_costs(
        {int(length): [float(cost)] * visits for length, cost in zip(LENGTHS, of, strict=True)},
        Scatter(scatter, 100.0),
        np.random.default_rng(0),
    )


def test_the_polynomial_is_found_again() -> None:
    a, b, c = polynomial(LENGTHS, 3.0 + 0.5 * LENGTHS + 0.001 * LENGTHS**2)
    assert (a, b, c) == pytest.approx((3.0, 0.5, 0.001), rel=1e-6)


def test_no_coefficient_is_negative() -> None:
    a, b, c = polynomial(LENGTHS, 0.5 * LENGTHS - 10.0)
    assert min(a, b, c) == 0.0


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
def test_the_exponent_is_found_again(exponent: float) -> None:
    found = growth(costs(LENGTHS**exponent))
    assert found is not None
    assert found.exponent is not None
    assert found.exponent.value == pytest.approx(exponent)
    assert found.exponent.low < exponent < found.exponent.high
    assert growth(Costs(LENGTHS[:2], LENGTHS[:2], LENGTHS[None, :2])) is None


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
def test_the_exponent_beyond_fixed_costs_is_found_again(exponent: float) -> None:
    """It would be .65 for an exponent of 1 if fixed costs were not taken off."""
    found = scaling(costs(512.0**exponent + LENGTHS**exponent))
    assert found is not None
    assert (found.first_length, found.last_length) == (512, 4096)
    assert found.exponent.value == pytest.approx(exponent, abs=0.02)
    assert found.exponent.low < exponent < found.exponent.high
    assert found.exponent.high - found.exponent.low < 0.5


def test_draws_are_finite_where_the_scatter_is_hardly_known() -> None:
    """With two noisy visits the deviation is an estimate of one degree of freedom, and draws once overflowed."""
    costs = draw_costs({16: [1.0, 9.0], 32: [2.0, 3.0]}, Scatter(1.0, 1.0), np.random.default_rng(0), draws=100_000)
    assert np.isfinite(costs.draws).all()
    assert (costs.draws > 0).all()


def test_there_is_no_exponent_where_fixed_costs_rule() -> None:
    assert scaling(costs(3000 + LENGTHS)) is None
    assert scaling(costs(np.ones(len(LENGTHS)))) is None


def test_a_crossover_between_lengths() -> None:
    found = crossover(costs(LENGTHS / 700))
    assert found.middle == pytest.approx(700)
    assert found.low is not None
    assert found.high is not None
    assert 600 < found.low < 700 < found.high < 800


def test_a_crossover_outside_is_not_made_up() -> None:
    never, always = crossover(costs(LENGTHS / 1e5)), crossover(costs(LENGTHS / 10))
    assert not never.within
    assert never.high is None
    assert always.middle == always.high == 128
    assert always.low is None


def test_an_interval_may_leave_the_range() -> None:
    """Just before the end: a repeat may not find it."""
    found = crossover(costs(LENGTHS / 4000, scatter=0.2))
    assert found.middle == pytest.approx(4000)
    assert found.low is not None
    assert found.high is None


def test_an_extrapolation_is_one() -> None:
    quadratic, linear = costs(1.0 + 0.001 * LENGTHS**2), costs(10.0 + 10.0 * LENGTHS)
    found = extrapolated_crossover(quadratic, linear)
    assert found is not None
    assert found.value == pytest.approx(10_000, rel=0.01)
    assert 4096 < found.low < found.value < found.high
    assert extrapolated_crossover(linear, quadratic) is None


def test_costs_between_and_beyond_lengths() -> None:
    measured = list(0.001 * LENGTHS**2)
    assert interpolate(list(LENGTHS), measured, 512) == pytest.approx(0.001 * 512**2)
    assert interpolate(list(LENGTHS), measured, 700) == pytest.approx(0.001 * 700**2)
    assert interpolate(list(LENGTHS), measured, 8192) == pytest.approx(0.001 * 8192**2)


def test_the_scatter_is_found_again_and_bears_wild_values() -> None:
    rng = np.random.default_rng(0)
    cells = [list(np.exp(rng.normal(0, 0.08, 3))) for _ in range(200)]
    assert pooled_scatter(cells).deviation == pytest.approx(0.08, rel=0.1)
    wild = [[*values[:2], values[2] * 20] if at % 50 == 0 else values for at, values in enumerate(cells)]
    assert pooled_scatter(wild).deviation < 0.1
    assert pooled_scatter([[1.0], [2.0]]).deviation == 0.1  # nothing was visited twice
    assert pooled_scatter([[1.0, 1.0]]) == Scatter(0.01, 1.0)


def test_a_middle_bears_one_wild_visit() -> None:
    assert middle([1.0, 1.1, 30.0]) == pytest.approx(1.1)


@pytest.mark.parametrize("others", [pytest.param(0, marks=pytest.mark.slow), 20])
def test_a_repeated_run_lands_in_the_interval(others: int) -> None:
    """What the intervals promise, on simulated runs: 95 of 100, give or take what 300 trials leave.

    The scatter is known from few cells, or from others beside them.
    """
    rng = np.random.default_rng(0)
    truth = LENGTHS / 300

    def run() -> Costs:
        cells = {int(n): list(np.exp(np.log(r) + rng.normal(0, 0.1, 2))) for n, r in zip(LENGTHS, truth, strict=True)}
        beside = [list(np.exp(rng.normal(0, 0.1, 2))) for _ in range(others)]
        return draw_costs(cells, pooled_scatter([*cells.values(), *beside]), rng)

    inside = 0
    for _ in range(300):
        first, second = crossover(run()), crossover(run())
        assert second.middle is not None
        inside += (first.low or 0) <= second.middle <= (first.high or np.inf)
    assert 0.91 < inside / 300 < 0.99


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [([0.5, 2.0, 8.0], 200.0), ([2.0, 4.0, 8.0], 100.0), ([0.5, 0.6, 0.7], None), ([2.0, 0.5, 2.0], 800.0)],
)
def test_pays_from_the_last_crossing_on(ratios: list[float], wanted: float | None) -> None:
    length = pays_from([100, 400, 1600], ratios)
    assert length is None if wanted is None else length == pytest.approx(wanted)


def test_draws_that_meet_earlier_do_not_count_as_never() -> None:
    def drawn(costs: Any, seed: int) -> Costs:
        cells = {int(length): [float(cost)] * 2 for length, cost in zip(LENGTHS, costs, strict=True)}
        return draw_costs(cells, Scatter(0.05, 100.0), np.random.default_rng(seed))

    found = extrapolated_crossover(drawn(0.001 * LENGTHS**2, 1), drawn(4.2 * LENGTHS, 2))
    assert found is not None
    assert np.isfinite(found.high)
    flat = extrapolated_crossover(drawn(0.001 * LENGTHS, 1), drawn(5.0 + 0 * LENGTHS, 2))
    assert flat is not None
    assert flat.value == pytest.approx(5000, rel=0.01)
