"""Metrics of next events, their intervals over sequences, and residuals."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from subquad import statistics
from subquad.statistics import grouped_mean
from subquad.tasks.events import EventSequences, Hawkes, truth
from subquad.tasks.events.metrics import (
    Baselines,
    accuracy,
    accuracy_interval,
    crps,
    join_ends,
    macro_f1,
    macro_f1_interval,
    mae,
    mae_interval,
    residuals,
    rmse,
    rmse_interval,
)
from tests.tasks.events.truths import gap_integrals, join_types
from tests.test_statistics import resampled_counts

LENGTHS = np.array([4, 0, 7, 1, 12])


def drawn(seed: int, events: int = int(LENGTHS.sum())) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    types = rng.choice([0, 1, 2, 5], events)
    return types, np.where(rng.random(events) < 0.5, types, rng.choice([0, 1, 3, 5], events))


def brute_f1(types: np.ndarray, predicted: np.ndarray) -> float:
    """By precision and recall."""
    found = []
    for kind in np.unique(types):
        right = ((types == kind) & (predicted == kind)).sum()
        precision = right / max(1, (predicted == kind).sum())
        recall = right / (types == kind).sum()
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return float(np.mean(found))


def test_errors_by_hand() -> None:
    gaps, predicted = np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 3.0])
    assert rmse(gaps, predicted) == pytest.approx(np.sqrt(10 / 3))
    assert mae(gaps, predicted) == pytest.approx(4 / 3)
    assert accuracy(np.array([0, 1, 1]), np.array([0, 0, 1])) == pytest.approx(2 / 3)
    assert macro_f1(np.array([0, 1, 1]), np.array([0, 0, 1])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_the_mean_over_types_that_occur(seed: int) -> None:
    """Type 3 is predicted and never there, type 4 neither: they do not count."""
    types, predicted = drawn(seed, 60)
    assert macro_f1(types, predicted) == pytest.approx(brute_f1(types, predicted))


def test_nothing_predicted_is_nothing_known() -> None:
    none, never = np.zeros(0, int), np.zeros(0)
    for value in (accuracy(none, none), macro_f1(none, none), rmse(never, never), mae(never, never)):
        assert np.isnan(value)
    assert np.isnan(grouped_mean(never, np.array([0, 0])).low)
    assert np.isnan(residuals(never).statistic)


@pytest.mark.parametrize("room", [4_000_000, 20])
def test_intervals_draw_whole_sequences(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drawing is the metric of the sequences drawn, as often as they were."""
    monkeypatch.setattr(statistics, "BATCH_NUMBERS", room)
    types, predicted = drawn(0)
    gaps, guessed = np.random.default_rng(1).exponential(size=(2, len(types)))
    counts = resampled_counts(5, 3)
    assert counts.shape == (1000, 5)
    assert (counts.sum(1) == 5).all()
    events = np.split(np.arange(len(types)), np.cumsum(LENGTHS)[:-1])
    again = [np.concatenate([events[at] for at in np.repeat(np.arange(5), row.astype(int))]) for row in counts]
    again = [which for which in again if len(which)]
    pairs = [
        (accuracy_interval, accuracy, types, predicted),
        (macro_f1_interval, brute_f1, types, predicted),
        (rmse_interval, rmse, gaps, guessed),
        (mae_interval, mae, gaps, guessed),
    ]
    for interval, metric, given, said in pairs:
        values = [metric(given[which], said[which]) for which in again]
        found = interval(given, said, LENGTHS, 3)
        assert found.value == pytest.approx(metric(given, said))
        assert (found.low, found.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_intervals_hold_the_truth_where_sequences_differ() -> None:
    """Every sequence has its own level: about 95 of 100 intervals hold the mean 0; drawing events, half would."""
    held = by_event = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = (rng.normal(size=40)[:, None] + rng.normal(size=(40, 25))).ravel()
        found = grouped_mean(values, np.full(40, 25))
        held += found.low <= 0 <= found.high
        by_event += abs(values.mean()) < 1.96 * values.std() / np.sqrt(len(values))
    assert 88 <= held <= 99
    assert by_event < 60


def test_baselines_are_learned_from_later_events() -> None:
    times = np.array([5.0, 6.0, 8.0, 1.0, 1.5, 11.0])
    train = EventSequences(
        ["a", "b"],
        np.array([0, 3, 6]),
        times,
        np.array([0, 1, 1, 0, 2, 0]),
        ["x", "y", "z"],
        np.array([0.0, 0.0]),
        np.array([8.0, 11.0]),
    )
    assert Baselines.learn(train) == (1, 3.25, 1.5)  # gaps of 1, 2, 0.5 and 9.5
    alone = train.select(np.array([0]))._replace(offsets=np.array([0, 1]), times=times[:1], types=np.array([2]))
    assert Baselines.learn(alone) == (2, 5.0, 5.0)


def test_ends_are_joined_to_what_follows() -> None:
    gaps = np.array([1.0, 2.0, 3.0, 4.0])
    ends = np.array([0.5, 0.25, 7.0, 9.0])
    assert join_ends(gaps, np.array([2, 0, 1, 1]), ends).tolist() == [1.0, 2.0, 3.75, 11.0]
    assert join_ends(gaps, np.array([0, 4]), np.array([0.5, 0.0])).tolist() == [1.5, 2.0, 3.0, 4.0]
    assert join_ends(gaps, np.array([4]), np.zeros(1)).tolist() == gaps.tolist()


def test_gaps_of_each_type() -> None:
    """Two sequences by hand: integrals of each type add up until an event of that type comes."""
    integrals = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    ends = np.array([[0.5, 5.0], [100.0, 100.0]])
    found = join_types(integrals, np.array([0, 1, 0]), np.array([2, 1]), ends)
    assert found.tolist() == [1.0, 2.0 + 0.5 + 4.0, 30.0]


def residuals_under(process: Hawkes, found: EventSequences) -> tuple[float, float]:
    """The p values of all gaps, and of those of each type."""
    each, ends = gap_integrals(process, found), truth.end_integrals(process, found)
    gaps = join_ends(each.sum(1), found.lengths, ends.sum(1))
    return residuals(gaps).p_value, residuals(join_types(each, found.types, found.lengths, ends)).p_value


def test_residuals_tell_the_true_process_from_wrong_ones() -> None:
    process = Hawkes(horizon=20.0)
    found = process.draw(1000, 0)
    assert min(residuals_under(process, found)) > 0.05
    each, ends = gap_integrals(process, found), truth.end_integrals(process, found)
    assert residuals(each.sum(1)).p_value < 1e-4  # what breaks off at the end is missing
    right = residuals(join_ends(each.sum(1), found.lengths, ends.sum(1)))
    assert right.observed == pytest.approx(right.expected, rel=0.08, abs=0.01)
    assert max(residuals_under(replace(process, decay=4.0), found)) < 1e-4
    of_any, of_each = residuals_under(replace(process, branching=((0.2, 0.5), (0.6, 0.1))), found)
    assert of_any > 0.05  # types are mistaken, and nothing else
    assert of_each < 1e-4


def test_the_ranked_score_is_the_integral_of_squared_differences() -> None:
    """Draws of a normal distribution against its closed form, and a few draws against the integral over their steps."""
    rng = np.random.default_rng(0)
    observed = np.array([-1.0, 0.0, 2.5])
    draws = rng.normal(size=(3, 20_000))
    z = np.linspace(-12.0, 12.0, 240_001)
    for at, value in enumerate(observed):
        squares = np.square(scipy.stats.norm.cdf(z) - (z >= value))
        assert crps(draws[at : at + 1], observed[at : at + 1])[0] == pytest.approx(np.trapezoid(squares, z), abs=0.01)
    few = np.array([[0.3, 1.0, 1.7, 4.0]])
    grid = np.linspace(-1.0, 6.0, 700_001)
    steps = np.square((few[0][:, None] <= grid).mean(0) - (grid >= 2.0))
    pairs = np.abs(few[0][:, None] - few[0]).sum()
    unbiased = np.trapezoid(steps, grid) + pairs / (2 * 16) - pairs / (2 * 12)  # without the pairs of a draw with itself
    assert crps(few, np.array([2.0]))[0] == pytest.approx(unbiased, abs=1e-4)
