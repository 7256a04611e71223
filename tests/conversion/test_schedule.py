"""Steps in time."""

import pytest

from subquad.conversion.schedule import CYCLE, WARM_UP, length_of, planned, share


def test_every_length_comes_in_turn() -> None:
    lengths = [length_of(step, 512) for step in range(len(CYCLE))]
    assert lengths == [512, 64, 16, 256, 32, 128]
    assert [length_of(step, 20) for step in range(len(CYCLE))] == [20, 8, 8, 10, 8, 8]
    assert length_of(5, 4) == 4


def test_the_rate_grows_and_falls_to_nothing() -> None:
    shares = [share(step, 100) for step in range(101)]
    assert shares[0] == pytest.approx(1 / WARM_UP)
    assert shares[WARM_UP - 1] == shares[WARM_UP] == 1
    assert shares[100] == 0
    assert all(0 < one <= 1 for one in shares[:100])
    assert max(share(step, 3) for step in range(3)) == 1  # however few steps there are


def test_the_first_step_does_not_tell_how_long_the_others_take() -> None:
    timed = [10.0, *[1.0] * 12]
    assert planned(timed, 22 + 50, 3.0) == 13 + 50
    assert planned(timed, 1.0, 3.0) == 13
    assert planned([10.0], 45.0, 3.0) == 1 + 3  # but it is better than a guess
    assert planned([], 45.0, 3.0) == 15
    assert planned([], 2.0, 3.0) == 0


def test_the_latest_steps_tell_most() -> None:
    assert planned([*[1.0] * 30, *[3.0] * 12], 66 + 30, 1.0) == 42 + 10
