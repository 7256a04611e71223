"""Numbers of runs and their seconds follow from the budget and fit into it."""

import math

import pytest

from subquad.choose.stages import (
    SEMIFINAL_SHARE,
    end_of,
    finals_share,
    generations,
    most_steps,
    needed_budget,
    occupied,
    plan_numbers,
    run_seconds,
    search_share,
    stop_time,
)


@pytest.mark.parametrize(("budget", "jobs", "attentions"), [(10, 1, 6), (60, 2, 5), (600, 2, 5), (36_000, 8, 3)])
def test_stages_fit_into_the_budget(budget: float, jobs: int, attentions: int) -> None:
    settings, semifinalists, seeds = plan_numbers(budget, jobs, attentions)
    assert 2 <= settings <= 8
    assert 1 <= semifinalists <= settings
    assert 2 <= seeds <= 5
    left, efficiency = stop_time(0.0, budget), 0.8
    for share, runs in ((search_share(semifinalists), settings), (SEMIFINAL_SHARE, semifinalists), (1.0, seeds)):
        seconds = run_seconds(share * left * efficiency, [math.inf] * runs * attentions, jobs)
        rounds = -(-runs * attentions // jobs)
        assert seconds * rounds / efficiency <= share * left * (1 + 1e-9) or seconds == 0.2
        left -= seconds * rounds / efficiency
    assert left >= -6  # only the shortest runs of a tiny budget take longer


def test_more_budget_more_settings_and_seeds() -> None:
    small, usual, large = (plan_numbers(budget, 2, 5) for budget in (30, 600, 36_000))
    assert small < usual < large
    assert usual.settings == 8
    assert usual.seeds == 4


def test_slow_steps_give_fewer_and_longer_runs() -> None:
    quick, slow = plan_numbers(300, 2, 3, usual_seconds=5.0), plan_numbers(300, 2, 3, usual_seconds=100.0)
    assert quick.settings == plan_numbers(300, 2, 3).settings
    assert slow == (2, 1, 2)
    assert plan_numbers(300, 2, 3, usual_seconds=40.0).settings == 3  # 68 s of search are three times half of a training


def test_more_seeds_come_as_soon_as_all_have_a_usual_training() -> None:
    """Final runs are no longer than a usual training, so that what is left of the time is better spent on seeds."""
    assert [plan_numbers(budget, 2, 3, usual_seconds=10.0).seeds for budget in (60, 150, 300)] == [2, 4, 5]
    assert plan_numbers(300, 2, 3).seeds == 4  # no usual training is known: runs may take up to 90 s each


def test_workers_do_not_wait_for_the_last_run() -> None:
    """Nine runs on two workers leave one of them idle for a tenth of the time, eight and twelve do not."""
    assert occupied(9, 2) == pytest.approx(0.9)
    assert occupied(8, 2) == occupied(12, 2) == 1.0
    assert plan_numbers(300, 2, 3, usual_seconds=30.0).seeds == 4
    assert plan_numbers(300, 2, 3, usual_seconds=45.0).seeds == 2  # three seeds would have 30.6 s, less than 3/4 of 45 s


@pytest.mark.parametrize(("jobs", "attentions", "usual"), [(2, 3, 60.0), (2, 5, 20.0), (1, 6, 300.0), (8, 4, 1000.0)])
def test_the_needed_budget_gives_final_runs_of_the_usual_length(jobs: int, attentions: int, usual: float) -> None:
    budget = needed_budget(jobs, attentions, usual)

    def final_seconds(budget: float) -> float:
        numbers = plan_numbers(budget, jobs, attentions, usual)
        rounds = -(-numbers.seeds * attentions // jobs)
        return 0.85 * budget * finals_share(numbers.semifinalists) / rounds

    assert final_seconds(budget) >= usual
    assert budget == 60.0 or final_seconds(budget / 1.1) < usual


def test_few_settings_are_tried_together() -> None:
    assert [generations(settings) for settings in (1, 2, 3, 4, 7)] == [(1,), (2,), (3,), (2, 2), (4, 3)]


def test_no_time_left_gives_the_shortest_runs() -> None:
    assert run_seconds(-5.0, [math.inf] * 10, 2) == 0.2


def test_short_runs_leave_their_time_to_the_others() -> None:
    inf = math.inf
    assert run_seconds(30.0, [inf] * 6, 2) == pytest.approx(10.0)
    assert run_seconds(30.0, [inf, inf, 4.0, inf, inf, 4.0], 2) == pytest.approx(13.0)
    assert run_seconds(30.0, [9.0, 4.0] * 3, 2) == pytest.approx(30.0)  # all of them have their steps
    assert run_seconds(30.0, [inf, 9.0], 2) == pytest.approx(30.0)
    assert end_of([3.0, 1.0, 1.0, 1.0], 2) == 3.0


def test_no_run_is_longer_than_a_usual_training() -> None:
    assert [most_steps(stage, 300, 2) for stage in ("search", "semifinal", "final")] == [150, 300, 300]
    assert [most_steps(stage, 300, 1) for stage in ("search", "final")] == [300, 300]
    assert most_steps("final", 0, 2) is None
