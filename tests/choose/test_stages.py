"""Numbers of runs and their seconds follow from the budget and fit into it."""

import pytest

from subquad.choose.stages import SEARCH_SHARE, SEMIFINAL_SHARE, generations, plan_numbers, run_seconds, stop_time


@pytest.mark.parametrize(("budget", "jobs", "attentions"), [(10, 1, 6), (60, 2, 5), (600, 2, 5), (36_000, 8, 3)])
def test_stages_fit_into_the_budget(budget: float, jobs: int, attentions: int) -> None:
    settings, semifinalists, seeds = plan_numbers(budget, jobs, attentions)
    assert 2 <= settings <= 8
    assert 1 <= semifinalists <= settings
    assert 2 <= seeds <= 5
    left, efficiency = stop_time(0.0, budget), 0.8
    for share, runs in ((SEARCH_SHARE, settings), (SEMIFINAL_SHARE, semifinalists), (1.0, seeds)):
        seconds = run_seconds(left, share, runs * attentions, jobs, efficiency)
        rounds = -(-runs * attentions // jobs)
        assert seconds * rounds / efficiency <= share * left * (1 + 1e-9) or seconds == 0.2
        left -= seconds * rounds / efficiency
    assert left >= -6  # only the shortest runs of a tiny budget take longer


def test_more_budget_more_settings_and_seeds() -> None:
    small, usual, large = (plan_numbers(budget, 2, 5) for budget in (30, 600, 36_000))
    assert small < usual < large
    assert usual.settings == 8
    assert usual.seeds == 3


def test_slow_steps_give_fewer_and_longer_runs() -> None:
    quick, slow = plan_numbers(300, 2, 3, usual_seconds=10.0), plan_numbers(300, 2, 3, usual_seconds=100.0)
    assert quick == plan_numbers(300, 2, 3)
    assert slow == (2, 1, 2)
    assert plan_numbers(300, 2, 3, usual_seconds=40.0).settings == 3  # 45 s of search are three times 30% of a training


def test_few_settings_are_tried_together() -> None:
    assert [generations(settings) for settings in (1, 2, 3, 4, 7)] == [(1,), (2,), (3,), (2, 2), (4, 3)]


def test_no_time_left_gives_the_shortest_runs() -> None:
    assert run_seconds(-5.0, 1.0, 10, 2, 0.5) == 0.2
