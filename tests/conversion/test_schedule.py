"""Steps in time."""

import pytest

from subquad.conversion.schedule import CYCLE, TIMED, length_of, planned, share


def test_every_length_comes_in_turn() -> None:
    lengths = [length_of(step, 512) for step in range(len(CYCLE))]
    assert lengths == [512, 64, 16, 256, 32, 128]
    assert [length_of(step, 20) for step in range(len(CYCLE))] == [20, 8, 8, 10, 8, 8]
    assert length_of(5, 4) == 4


def test_the_rate_grows_and_falls_to_nothing() -> None:
    shares = [share(step, 100) for step in range(101)]
    assert shares[0] == pytest.approx(1 / TIMED)
    assert shares[TIMED - 1] == shares[TIMED] == 1
    assert shares[100] == 0
    assert all(0 < one <= 1 for one in shares[:100])
    assert [share(step, None) for step in range(TIMED)] == shares[:TIMED]
    assert max(share(step, 3) for step in range(3)) == 1  # however few steps there are


def test_the_first_step_does_not_tell_how_long_the_others_take() -> None:
    timed = [10.0, *[1.0] * (TIMED - 1)]
    assert planned(timed, 10 + TIMED - 1 + 50) == TIMED + 50
    assert planned(timed, 1.0) == TIMED
