"""How much fits into a time, by clocks of our own."""

from dataclasses import replace

import pytest

from subquad import Learned, Linear
from subquad.conversion.plan import (
    LEAST,
    LEAST_STEPS,
    STEP,
    Pace,
    Plan,
    all_seconds,
    find_pace,
    fit_batch,
    fit_calibration,
    fit_heads,
    fit_plan,
    halves,
    left_out,
    look_seconds,
)
from subquad.conversion.recipes import phases, recipes

WHOLE = Plan([512, 256, 128, 64, 32, 16], 80, 1000, 256, 4, 2048)
PHASES = phases(recipes(Linear(Learned()), "task", controls=True), calibrates=False, matches=True, chooses=False)
TESTS, STAGES = 8, 4  # looks at test texts, and stages that are trained
REACH = 32


class Clock:
    """Stands still but for what is added to it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_lengths_are_halves() -> None:
    assert list(halves(512)) == [512, 256, 128, 64, 32, 16]
    assert list(halves(512, 4)) == [512, 128, 32, 8]
    assert list(halves(20)) == [20, 10]
    assert list(halves(4)) == [4]


@pytest.mark.parametrize("longest", [512, 100, 12])
def test_the_pace_is_found_from_a_few_texts(longest: int) -> None:
    clock = Clock()

    def read(length: int) -> None:
        clock.seconds += 0.2 + 0.001 * length

    pace = find_pace(read, longest, clock, 5.0)
    assert pace.read(1, longest) == pytest.approx(0.2 + 0.001 * longest)
    if longest > 16:
        assert pace == pytest.approx((0.2, 0.001))


def test_a_reading_that_is_disturbed_does_not_count() -> None:
    clock, disturbances = Clock(), iter([9.0, 0.0, 5.0, 0.0, 0.0, 7.0])

    def read(length: int) -> None:
        clock.seconds += 0.2 + 0.001 * length + next(disturbances, 0.0)

    assert find_pace(read, 64, clock, 5.0) == pytest.approx((0.2, 0.001))


def test_the_pace_is_not_found_from_texts_that_take_too_long() -> None:
    clock, lengths = Clock(), []

    def read(length: int) -> None:
        lengths.append(length)
        clock.seconds += 0.1 * length

    assert find_pace(read, 2048, clock, 5.0).token == pytest.approx(0.1)
    assert lengths == [16, 16, 16, 64]  # which takes 6.4 s


@pytest.mark.parametrize("encodes", [False, True])
@pytest.mark.parametrize("token", [1e-6, 1e-4, 3e-4, 1e-3, 2e-3])
def test_a_plan_fits_into_its_time(token: float, encodes: bool) -> None:
    pace = Pace(0.005, token)
    plan = fit_plan(WHOLE, pace, PHASES, 24.0, REACH, encodes=encodes)
    test, development = look_seconds(plan, pace, encodes=encodes)
    assert TESTS * test + (TESTS - STAGES + plan.watched * STAGES) * development <= 24.0
    assert plan.is_limited
    assert LEAST <= plan.tests <= WHOLE.tests
    assert plan.developments in ((plan.tests + 1) // 2, LEAST)
    if token == 1e-6:
        assert (plan.lengths, plan.tests) == (WHOLE.lengths, WHOLE.tests)


def test_texts_are_given_up_before_lengths_then_looks_and_long_texts_last() -> None:
    def plan(token: float) -> Plan:
        return fit_plan(WHOLE, Pace(0.0, token), PHASES, 24.0, REACH, encodes=False)

    sparse = [512, 128, 32, 8]
    plans = [plan(token) for token in (2e-4, 6.2e-4, 7e-4, 9e-4, 2e-3)]
    assert [made.lengths for made in plans] == [WHOLE.lengths, WHOLE.lengths, sparse, sparse, [256, 64, 16]]
    assert [made.watched for made in plans] == [4, 4, 4, 1, 1]
    assert WHOLE.tests > plans[0].tests > plans[1].tests == LEAST


def test_a_look_is_short_however_much_time_there_is() -> None:
    """So that first figures are there within a minute."""
    plan = fit_plan(WHOLE, Pace(0.0, 1e-3), PHASES, 1e6, REACH, encodes=True)
    test, development = look_seconds(plan, Pace(0.0, 1e-3), encodes=True)
    assert 10 < test <= 20
    assert development <= 8


def test_what_never_fits_is_as_little_as_can_be() -> None:
    plan = fit_plan(WHOLE, Pace(0.0, 10.0), PHASES, 24.0, REACH, encodes=True)
    assert (plan.lengths, plan.tests, plan.developments, plan.watched) == ([16], LEAST, LEAST, 1)


@pytest.mark.parametrize(("token", "pairs"), [(1e-6, 630), (5e-4, 10), (2e-3, 0)])
def test_pairs_are_as_many_as_say_something_or_none(token: float, pairs: int) -> None:
    assert fit_plan(WHOLE, Pace(0.0, token), PHASES, 24.0, REACH, encodes=True).pairs == pairs


@pytest.mark.parametrize(("reach", "longest"), [(8, 16), (32, 64), (63, 128), (100, 256)])
def test_texts_stay_longer_than_what_is_weighed_exactly(reach: int, longest: int) -> None:
    """In a little more than half of the time that they take, but not in less."""
    pace, whole = Pace(0.0, 1e-3), replace(WHOLE, pairs=0)
    seconds = all_seconds(replace(whole, lengths=[longest], tests=LEAST, watched=1), pace, PHASES, encodes=True)
    assert fit_plan(whole, pace, PHASES, seconds / 1.9, reach, encodes=True).lengths == [longest]
    assert fit_plan(whole, pace, PHASES, seconds / 2.1, reach, encodes=True).lengths == [16]


def test_heads_are_looked_at_on_as_long_texts_as_fit() -> None:
    clock = Clock()

    def look(length: int) -> None:
        clock.seconds += (length / 100) ** 2

    lengths = [fit_heads(WHOLE, look, 5, clock, seconds)[0].heads_length for seconds in (1e3, 9.0, 1.0, 1e-3)]
    assert lengths == [256, 128, 32, 0]
    plan, taken = fit_heads(WHOLE, look, 5, clock, 9.0)
    assert taken == pytest.approx(1.6384)
    assert fit_heads(WHOLE, look, 5, clock, 1e-3)[0].heads_texts == 0
    assert plan.heads_texts == WHOLE.heads_texts


def test_batches_become_smaller_where_steps_are_few() -> None:
    def tokens(seconds: float) -> int:
        return fit_batch(WHOLE, Pace(0.1, 1e-3), seconds).batch_tokens

    assert tokens(1e4) == 2048
    assert tokens(LEAST_STEPS * STEP * 1.3) == 1024
    assert tokens(1.0) == 512
    assert fit_batch(replace(WHOLE, batch_tokens=64), Pace(0.1, 1e-3), 1.0).batch_tokens == 64
    assert fit_batch(replace(WHOLE, lengths=[128, 32, 8]), Pace(0.1, 1e-3), 1.0).batch_tokens == 128


@pytest.mark.parametrize(("seconds", "batches"), [(1e3, 12), (30.0, 7), (1.0, 1)])
def test_calibration_looks_at_as_many_batches_as_fit(seconds: float, batches: int) -> None:
    assert fit_calibration(WHOLE, Pace(0.0, 1e-3), seconds).calibrated == batches  # each takes 2 * 2.048 s


def test_what_is_left_out_is_said() -> None:
    assert left_out(WHOLE, WHOLE) == ""
    little = replace(WHOLE, lengths=[256, 64, 16], tests=4, pairs=20, heads_length=64, batch_tokens=512)
    assert left_out(little, WHOLE) == (
        "12 test texts in place of 480, texts of up to 256 tokens in place of 512, 20 pairs in place of 1000, spectra of "
        "heads on 64 tokens in place of 256, batches of 512 tokens in place of 2048"
    )
    assert left_out(replace(WHOLE, calibrated=3), WHOLE) == "calibration on 3 batches in place of 12"
    assert left_out(replace(WHOLE, watched=1), WHOLE) == "quality at the end of each stage only"
    assert left_out(replace(WHOLE, heads_length=0, heads_texts=0), WHOLE) == "no spectra of heads"
