"""Processes whose truth is known, each against its equation written out."""

from itertools import pairwise
from math import exp, expm1, log
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from subquad import SubquadError
from subquad.tasks.events import SIMULATORS, EventSequences, Hawkes, Renewal, SelfCorrecting, truth
from subquad.tasks.events.metrics import join_ends
from tests.tasks.events.truths import forecast, gap_integrals

PROCESSES: list[Any] = [
    Hawkes(),
    Hawkes(rates=(0.5, 0.0, 0.1), branching=((0.1, 0.2, 0.0), (0.9, 0.0, 0.3), (0.0, 0.1, 0.4)), decay=0.7, horizon=30.0),
    SelfCorrecting(horizon=20.0),
    SelfCorrecting(growth=0.5, correction=0.2, shares=(0.7, 0.1, 0.2), horizon=20.0),
    Renewal(horizon=30.0),
    Renewal(gaps="gamma", mean=0.3, variation=0.6, transitions=((0.5, 0.5), (1.0, 0.0)), horizon=10.0),
]


def sequence(times: list[float], types: list[int], end: float, kinds: int = 2, start: float = 0.0) -> EventSequences:
    names = [str(kind) for kind in range(kinds)]
    offsets = np.array([0, len(times)])
    return EventSequences(["s"], offsets, np.array(times), np.array(types, int), names, np.array([start]), np.array([end]))


def test_the_dict_names_them() -> None:
    for name, simulator in SIMULATORS.items():
        assert simulator.name == name
        assert simulator().draw(2, 0).lengths.min() > 10


@pytest.mark.parametrize("process", PROCESSES)
def test_sequences_are_in_order_and_the_seed_decides(process: Any) -> None:
    found, same, other = (process.draw(12, seed) for seed in (1, 1, 2))
    assert (found.gaps > 0).all()
    assert (found.times < process.horizon).all()
    assert (found.starts == 0).all()
    assert (found.ends == process.horizon).all()
    assert np.array_equal(found.times, same.times)
    assert np.array_equal(found.types, same.types)
    assert found.times[:3].tolist() != other.times[:3].tolist()
    assert len(set(found.names)) == 12
    assert found.types.max() < len(found.type_names)


def test_a_hawkes_process_has_the_rate_of_theory() -> None:
    """Counts over a time T have the covariance T (I - A)^-1 diag(rate) (I - A)^-T in the long run; four deviations."""
    process, matrix = Hawkes(horizon=4000.0), np.array([[0.6, 0.1], [0.2, 0.5]])
    found = process.draw(20, 0)
    late = found.types[found.times > 1000.0]
    rates = np.bincount(late) / (20 * 3000.0)
    inverse = np.linalg.inv(np.eye(2) - matrix)
    theory = inverse @ [0.2, 0.3]
    assert theory == pytest.approx([13 / 18, 8 / 9])
    deviations = np.sqrt(np.diag(inverse @ np.diag(theory) @ inverse.T) / (20 * 3000.0))
    assert (np.abs(rates - theory) < 4 * deviations).all()
    assert (deviations < 0.03).all()


@pytest.mark.parametrize("process", PROCESSES)
def test_rescaled_gaps_are_exponential_and_independent(process: Any) -> None:
    found = process.draw(400, 3)
    ends = truth.end_integrals(process, found).sum(1)
    gaps = join_ends(gap_integrals(process, found).sum(1), found.lengths, ends)
    assert stats.kstest(gaps, "expon").pvalue > 0.01
    assert abs(stats.spearmanr(gaps[1:], gaps[:-1]).statistic) < 4 / np.sqrt(len(gaps))
    wrong = stats.kstest(gaps * 1.1, "expon")
    assert wrong.pvalue < 1e-4


@pytest.mark.parametrize("process", PROCESSES)
def test_types_come_with_their_probabilities(process: Any) -> None:
    """Of those that are half likely or less, and of the others, as many as there should be; four deviations."""
    found = process.draw(400, 4)
    states = truth.states_before(process, found)
    chances = process.intensities(states, found.gaps[:, None])[:, 0]
    chances /= chances.sum(1, keepdims=True)
    for kind in range(len(found.type_names)):
        p, seen = chances[:, kind], found.types == kind
        for part in (p <= np.median(p), p > np.median(p)):
            deviation = np.sqrt((p * (1 - p))[part].sum())
            assert abs(seen[part].sum() - p[part].sum()) <= 4 * deviation + 1e-6


def simpson(values: np.ndarray, farthest: float) -> np.ndarray:
    """The integrals of rows of values that were taken at `near(farthest)`."""
    return integrate.simpson(values, x=near(farthest), axis=-1)


def near(farthest: float) -> np.ndarray:
    """Many places, close together where they are small."""
    return farthest * np.linspace(0.0, 1.0, 20_001) ** 3


@pytest.mark.parametrize("process", PROCESSES)
def test_integrals_are_those_of_the_intensities(process: Any) -> None:
    found = process.draw(2, 5)
    found = sequence(found.times[:12].tolist(), found.types[:12].tolist(), process.horizon, len(found.type_names))
    for ahead in (0.3, 1.7):
        places = near(ahead)
        values = process.intensities(process.states(found), np.tile(places, (12, 1)))
        exact = process.integrals(process.states(found), np.full((12, 1), ahead))[:, 0]
        assert exact == pytest.approx(simpson(values.swapaxes(1, 2), ahead), rel=1e-7)
        start = process.initial_state()[None]
        values = process.intensities(start, places[None])
        exact = process.integrals(start, np.array([[ahead]]))[:, 0]
        assert exact == pytest.approx(simpson(values.swapaxes(1, 2), ahead), rel=1e-7)


def test_hawkes_likelihood_as_in_the_books() -> None:
    """Sum of log-intensities minus the integral, with every pair of events written out."""
    process = PROCESSES[1]
    found = process.draw(1, 6)
    times, types, total = found.times, found.types, 0.0
    for i, (t, k) in enumerate(zip(times, types, strict=True)):
        excited = sum(
            process.branching[k][types[j]] * process.decay * exp(-process.decay * (t - times[j])) for j in range(i)
        )
        total += log(process.rates[k] + excited)
    total -= sum(process.rates) * process.horizon
    for t, source in zip(times, types, strict=True):
        total -= sum(row[source] for row in process.branching) * -expm1(-process.decay * (process.horizon - t))
    assert len(times) > 20
    assert truth.log_likelihood(process, found).total == pytest.approx(total, rel=1e-10)


def test_self_correcting_likelihood_as_in_the_books() -> None:
    process = SelfCorrecting(growth=0.5, correction=0.2, shares=(0.7, 0.3))
    found = sequence([1.0, 1.5, 4.0], [0, 1, 0], end=5.0)
    edges, total = [0.0, 1.0, 1.5, 4.0, 5.0], 2 * log(0.7) + log(0.3)
    for count, (left, right) in enumerate(pairwise(edges)):
        total -= (exp(0.5 * right) - exp(0.5 * left)) / 0.5 * exp(-0.2 * count)
        total += 0.5 * right - 0.2 * count if count < 3 else 0.0
    likelihood = truth.log_likelihood(process, found)
    assert likelihood.total == pytest.approx(total)
    assert likelihood.type == pytest.approx(np.log([0.7, 0.3, 0.7]))


@pytest.mark.parametrize("law", ["log-normal", "gamma"])
def test_renewal_likelihood_is_that_of_its_gaps(law: Any) -> None:
    process = Renewal(gaps=law, mean=0.8, variation=0.5, transitions=((0.9, 0.1), (0.4, 0.6)))
    found = sequence([0.5, 1.75, 2.0], [1, 0, 0], end=3.0)
    spread = np.sqrt(np.log(1.25))
    gap = stats.lognorm(spread, scale=0.8 / exp(spread**2 / 2)) if law == "log-normal" else stats.gamma(4.0, scale=0.2)
    assert (gap.mean(), gap.std()) == (pytest.approx(0.8), pytest.approx(0.4))
    likelihood = truth.log_likelihood(process, found)
    assert likelihood.time == pytest.approx(gap.logpdf([0.5, 1.25, 0.25]))
    assert likelihood.type == pytest.approx(np.log([0.2, 0.4, 0.9]))  # 0.2: as often as type 1 comes in the long run
    assert likelihood.end == pytest.approx(gap.logsf([1.0]))


@pytest.mark.parametrize("process", PROCESSES)
def test_what_comes_later_changes_nothing_before(process: Any) -> None:
    found = process.draw(3, 7)
    middle = int(found.offsets[1] + 5)  # of the second sequence
    times, types = found.times.copy(), found.types.copy()
    within = slice(middle, int(found.offsets[2]))
    times[within] = times[middle - 1] + 0.37 * (found.times[within] - times[middle - 1])
    types[within] = (types[within] + 1) % len(found.type_names)
    other = found._replace(times=times, types=types)
    untouched = np.r_[0:middle, found.offsets[2] : len(times)]
    gaps = np.tile([0.01, 2.0], (len(times), 1))
    first, second = (process.intensities(process.states(given), gaps) for given in (found, other))
    assert np.array_equal(first[untouched], second[untouched])
    assert not np.array_equal(first[middle], second[middle])
    first_log, second_log = (truth.log_likelihood(process, given) for given in (found, other))
    assert np.array_equal(first_log.time[untouched], second_log.time[untouched])
    assert np.array_equal(first_log.type[untouched], second_log.type[untouched])


@pytest.mark.parametrize("process", [process for process in PROCESSES if not isinstance(process, SelfCorrecting)])
def test_times_may_be_counted_from_whenever(process: Any) -> None:
    """Around 1e9, seconds since 1970, a time is kept to 1e-7."""
    found = process.draw(2, 8)
    later = found._replace(times=found.times + 1e9, starts=found.starts + 1e9, ends=found.ends + 1e9)
    first, second = (truth.log_likelihood(process, given) for given in (found, later))
    assert second.total == pytest.approx(first.total, abs=1e-3)
    assert second.time == pytest.approx(first.time, abs=1e-3)


@pytest.mark.parametrize("process", PROCESSES)
def test_forecasts(process: Any) -> None:
    found = process.draw(2, 9)
    best = forecast(process, found)
    rows, places = np.array([0, 7, len(found.times) - 1]), np.tile(near(100.0), (3, 1))
    states = process.states(found)[rows]
    alone = np.exp(-process.integrals(states, places).sum(2))
    assert alone[:, -1].max() < 1e-8
    assert best.gaps[rows] == pytest.approx(simpson(alone, 100.0), rel=1e-5)
    chances = simpson((process.intensities(states, places) * alone[..., None]).swapaxes(1, 2), 100.0)
    assert best.types[rows] == pytest.approx(chances, abs=1e-5)
    assert best.types.sum(1) == pytest.approx(1.0)


def test_a_sequence_may_be_empty() -> None:
    process = Hawkes(horizon=0.8)
    found = process.draw(50, 0)
    empty = found.lengths == 0
    assert 10 < empty.sum() < 50
    likelihood = truth.log_likelihood(process, found)
    assert likelihood.end[empty] == pytest.approx(-0.4)
    assert len(forecast(process, found.select(np.flatnonzero(empty))).gaps) == 0
    assert truth.log_likelihood(process, found.select(np.flatnonzero(empty))).total == pytest.approx(-0.4 * empty.sum())


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (Hawkes(branching=((0.5, 0.5), (0.5, 0.5))), "spectral radius 1 explodes.*make branching smaller"),
        (Hawkes(rates=(1.0,)), r"of 1 rates needs as many rows .* has the shape \(2, 2\)"),
        (Hawkes(branching=((0.5, 0.3), (0.2,))), "needs as many rows of as many numbers"),
        (Hawkes(branching=((0.5, -0.3), (0.2, 0.4))), "branching .* must be finite and nowhere below 0"),
        (Hawkes(rates=(0.0, 0.0)), "rates .* must be finite, none below 0 and one above"),
        (Hawkes(decay=0.0), "decay of a simulator must be a finite number above 0, but is 0.0"),
        (Hawkes(horizon=float("inf")), "horizon of a simulator must be a finite number above 0, but is inf"),
        (SelfCorrecting(growth=-1.0), "growth of a simulator must be a finite number above 0"),
        (SelfCorrecting(shares=(0.5, 0.4)), r"shares must be probabilities that sum to 1, but are \(0.5, 0.4\)"),
        (Renewal(variation=0.0), "variation of a simulator must be a finite number above 0"),
        (Renewal(gaps="weekly"), "are log-normal or gamma, but are asked to be 'weekly'"),  # type: ignore[arg-type]
        (Renewal(transitions=((1.0,), (1.0,))), "transitions must be as many rows of as many probabilities"),
        (Renewal(transitions=((0.5, 0.6), (1.0, 0.0))), "each row of transitions must be probabilities that sum to 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(process: Any, said: str) -> None:
    with pytest.raises(SubquadError, match=said):
        process.draw(2, 0)


def test_no_sequence_is_refused() -> None:
    with pytest.raises(SubquadError, match="draws at least 1 sequence, but is asked for 0"):
        Hawkes().draw(0, 0)
