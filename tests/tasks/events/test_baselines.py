"""Baselines of events against closed forms, and against what no likelihood may exceed."""

import numpy as np
import pytest
from scipy import stats

from subquad.tasks.events import EventSequences
from subquad.tasks.events.baselines import Fitted, fit_baselines
from subquad.tasks.events.scales import learn
from tests.tasks.events.sequences import random_sequences
from tests.tasks.events.test_hawkes import intensity


def continuous() -> EventSequences:
    sequences = random_sequences([40, 30, 50], unit=0.7)
    return sequences._replace(times=sequences.times + 1e-3 * np.pi * np.arange(120))


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit_baselines(continuous(), learn(continuous()))


def test_poisson_is_the_closed_form(fitted: Fitted) -> None:
    sequences = continuous()
    later = ~sequences.first
    gaps, types = sequences.gaps[later], sequences.types[later]
    rate = 1.0 / gaps.mean()
    found = fitted.judge(sequences)["poisson"]
    told_apart = gaps > gaps.min()  # the shortest gap shares its cell with all that are below it
    np.testing.assert_allclose(found.time[told_apart], (np.log(rate) - rate * gaps)[told_apart], atol=2e-5)
    shares = np.bincount(types, minlength=3) / len(types)
    np.testing.assert_allclose(found.type, np.log(shares)[types], atol=0.02)


def test_markov_counts_transitions(fitted: Fitted) -> None:
    sequences = continuous()
    later = np.flatnonzero(~sequences.first)
    counts = np.zeros((3, 3))
    for at in later:
        counts[sequences.types[at - 1], sequences.types[at]] += 1
    shares = counts / counts.sum(1, keepdims=True)
    expected = np.log(shares[sequences.types[later - 1], sequences.types[later]])
    judged = fitted.judge(sequences)
    np.testing.assert_allclose(judged["markov"].type, expected, atol=0.15)
    np.testing.assert_array_equal(judged["markov"].time, judged["poisson"].time)
    np.testing.assert_array_equal(judged["renewal-markov"].type, judged["markov"].type)
    assert judged["markov"].type.sum() > judged["poisson"].type.sum()


def test_renewal_is_the_density_of_the_mixture(fitted: Fitted) -> None:
    sequences = continuous()
    gaps = sequences.gaps[~sequences.first]
    density = np.zeros(len(gaps))
    for weight, mean, deviation in zip(*fitted.mixture, strict=True):
        density += weight * stats.lognorm(deviation, scale=np.exp(mean) * fitted.scales.mean_gap).pdf(gaps)
    found = fitted.judge(sequences)["renewal"].time
    usual = gaps > fitted.scales.resolution * fitted.scales.mean_gap * 1.01
    np.testing.assert_allclose(found[usual], np.log(density)[usual], atol=2e-3)


def test_hawkes_is_the_sum_over_all_pairs(fitted: Fitted) -> None:
    sequences, process = continuous(), fitted.hawkes
    assert process is not None
    found = fitted.judge(sequences)["hawkes"]
    first, unit = sequences.offsets[1], fitted.scales.mean_gap
    times = (sequences.times[first:] / unit).tolist()
    types = sequences.types[first:].tolist()
    for place in (1, 5, 12):
        grid = times[place - 1] + (times[place] - times[place - 1]) * np.linspace(0.0, 1.0, 1001) ** 4
        total = [intensity(process, times[:place], types[:place], at).sum() for at in grid]
        by_type = intensity(process, times[:place], types[:place], times[place])
        at = int(first) - 1 + place - 1  # sequences before have one event less that is judged
        expected = np.log(by_type.sum()) - np.trapezoid(total, grid) - np.log(unit)
        assert found.time[at] == pytest.approx(expected, abs=1e-4)
        assert found.type[at] == pytest.approx(np.log(by_type[types[place]] / by_type.sum()), abs=1e-4)


def test_ties_and_grids_gain_no_more_than_their_cell() -> None:
    """Most gaps are 0 or 60 seconds: a density would grow without bounds, a cell's probability cannot exceed 1."""
    rng = np.random.default_rng(0)
    gaps = rng.choice([0.0, 60.0, 61.0, 180.0], 400, p=[0.3, 0.5, 0.1, 0.1])
    times = np.cumsum(gaps.reshape(8, 50), axis=1)
    sequences = EventSequences(
        [str(number) for number in range(8)],
        np.arange(9) * 50,
        times.ravel(),
        rng.integers(2, size=400),
        ["a", "b"],
        starts=times[:, 0],
        ends=times[:, -1],
    )
    scales = learn(sequences)
    assert scales.grid * scales.mean_gap == pytest.approx(1.0)
    for likelihoods in fit_baselines(sequences, scales).judge(sequences).values():
        later = sequences.gaps[~sequences.first]
        assert likelihoods.time[later > 0].max() <= 1e-9  # cells are one second wide
        shortest = scales.resolution * scales.mean_gap
        assert likelihoods.time[later == 0].max() <= -np.log(shortest - 0.5) + 1e-9
        assert np.isfinite(likelihoods.time).all()
        assert np.isfinite(likelihoods.type).all()


def test_types_that_training_lacks_have_a_probability() -> None:
    training = random_sequences([20, 20])
    training = training._replace(types=np.where(training.types == 2, 0, training.types))
    judged = fit_baselines(training, learn(training)).judge(random_sequences([10, 1, 8], seed=1))
    assert all(np.isfinite(each.time).all() and np.isfinite(each.type).all() for each in judged.values())
    assert {len(each.time) for each in judged.values()} == {16}
