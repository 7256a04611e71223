"""Measuring, without asking how fast this machine is."""

from functools import partial

import pytest

from subquad.measure.timing import interleave, median, pays_from, ratio


def test_candidates_take_turns() -> None:
    order: list[str] = []
    taken = interleave({name: partial(order.append, name) for name in "abc"}, seconds=0, at_least=4)
    assert order == list("abc" * 5)  # one round to warm up
    assert {len(seconds) for seconds in taken.values()} == {4}


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine got ten times slower half-way: the ratio does not notice."""
    baseline, other = [2.0] * 5 + [20.0] * 5, [1.0] * 5 + [10.0] * 5
    result = ratio(baseline, other)
    assert (result.low, result.middle, result.high) == (2.0, 2.0, 2.0)


def test_a_median_lies_in_its_interval() -> None:
    result = median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert result.low <= result.middle == 3.0 <= result.high
    assert result.high > result.low


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [([0.5, 2.0, 8.0], 200.0), ([2.0, 4.0, 8.0], 100.0), ([0.5, 0.6, 0.7], None), ([2.0, 0.5, 2.0], 800.0)],
)
def test_pays_from_the_last_crossing_on(ratios: list[float], wanted: float | None) -> None:
    found = pays_from([100, 400, 1600], ratios)
    assert found is None if wanted is None else found == pytest.approx(wanted)
