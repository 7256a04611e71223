"""The stages of a race and the training seconds of each run, planned so that the budget is kept.

Every attention has the same number of runs in every stage, and every run of a stage the same training seconds. A run of a
later stage starts anew, with its own schedule: a schedule that is cut short says little about the whole one.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

MOST_SECONDS = 1e8
"""Longest budget of a race."""
StageName = Literal["search", "semifinal", "final"]

SEARCH_SHARE, SEMIFINAL_SHARE = 0.4, 0.3
"""Shares of the time left that the search takes, and after it the semifinal."""
EARLY_SHARE = 0.3
"""Share of the time left that the search takes if a semifinal comes after it."""
LATEST_SEARCH = 0.6
"""Part of the budget after which no further setting of an attention is searched, if runs take longer than planned."""
RESERVED_SHARE, RESERVED_SECONDS = 0.01, 4.0
"""Part of the budget that is kept for the decision, the page and what takes longer than planned."""
COST_SHARE, MOST_COST_SECONDS = 0.03, 60.0
"""Part of the budget in which costs are measured, and its largest number of seconds."""
LEAST_SECONDS = 0.2
"""Smallest number of training seconds of a run."""
HALVINGS = 40
"""Number of steps in which the training seconds of a run are found."""
USUAL_EFFICIENCY = 0.85
"""Share of a worker's time that is expected to be training, until it is known."""
SEARCH_SECONDS, FINAL_SECONDS, LONG_FINAL_SECONDS = 4.0, 6.0, 90.0
"""Seconds of a run below which there are fewer settings; below which there are fewer seeds; above which there are more if
no usual training is known. Where one is known, no run is longer, and more seeds come as soon as all are that long."""
SEARCH_PART, FINAL_PART = 0.5, 0.75
"""Parts of a usual training below which there are fewer settings, as hardly anything is learned yet, and fewer seeds."""
MOST_SETTINGS, FEWEST_FOR_SEMIFINAL = 8, 6
"""Largest number of settings of an attention, and the smallest number of which the best are tried again for longer."""
PACE_SHARE = 0.01
"""Part of the budget in which the duration of a training step is measured at the beginning."""
BUDGET_STEP = 1.1
"""Ratio of two budgets of which the second is looked at if the first one is too short."""


class Numbers(NamedTuple):
    """Numbers of runs of each attention, by stage."""

    settings: int
    """Settings that the search tries."""
    semifinalists: int
    """Best settings of the search that are tried again for longer."""
    seeds: int
    """Runs of the best setting with different seeds, which are scored on the test."""


FEWEST_FOR_TWO = 4
"""Smallest number of settings that come in two generations. Between them, workers wait for each other."""


def generations(settings: int) -> tuple[int, ...]:
    """Numbers of settings that are suggested together; the second generation knows the scores of the first."""
    return (settings,) if settings < FEWEST_FOR_TWO else (-(-settings // 2), settings // 2)


def plan_numbers(budget: float, jobs: int, attentions: int, usual_seconds: float = 0.0) -> Numbers:
    """How many settings and seeds of each attention a budget in seconds allows.

    Few long runs tell more than many short ones in which nothing is learned yet. The slower the steps, the fewer runs.

    Args:
        budget: seconds for everything.
        jobs: number of runs side by side.
        attentions: number of attentions.
        usual_seconds: duration of a usual training of the task; 0 if it is not known.
    """
    each = budget * jobs * USUAL_EFFICIENCY / max(1, attentions)
    least = max(SEARCH_SECONDS, SEARCH_PART * usual_seconds)
    settings = min(MOST_SETTINGS, max(2, int(each * SEARCH_SHARE / least)))
    semifinalists = settings // 3 if settings >= FEWEST_FOR_SEMIFINAL else 1
    finals = each * finals_share(semifinalists)
    few, many = max(FINAL_SECONDS, FINAL_PART * usual_seconds), max(FINAL_SECONDS, usual_seconds or LONG_FINAL_SECONDS)
    enough = {5: many, 4: few, 3: few}
    seeds = (count for count, least in enough.items() if finals / count * occupied(count * attentions, jobs) >= least)
    return Numbers(settings, semifinalists, next(seeds, 2))


def search_share(semifinalists: int) -> float:
    """Share of the time left that the search takes."""
    return EARLY_SHARE if semifinalists > 1 else SEARCH_SHARE


def finals_share(semifinalists: int) -> float:
    """Share of the time that final runs take: what the search and the semifinal leave."""
    return (1 - search_share(semifinalists)) * (1 - SEMIFINAL_SHARE if semifinalists > 1 else 1.0)


def occupied(runs: int, jobs: int) -> float:
    """Share of the workers' time that so many runs of the same duration take: in the last round some workers may wait."""
    return runs / (jobs * math.ceil(runs / jobs)) if runs else 1.0


def needed_budget(jobs: int, attentions: int, usual_seconds: float) -> float:
    """Seconds of a race whose final runs have about so many training seconds each."""
    budget = 60.0
    while budget < MOST_SECONDS:
        numbers = plan_numbers(budget, jobs, attentions, usual_seconds)
        each = budget * jobs * USUAL_EFFICIENCY / attentions * finals_share(numbers.semifinalists)
        if each / numbers.seeds * occupied(numbers.seeds * attentions, jobs) >= usual_seconds:
            return budget
        budget *= BUDGET_STEP
    return MOST_SECONDS


def run_seconds(time: float, longest: Sequence[float], jobs: int) -> float:
    """Largest number of training seconds that each run of a stage may have, so that all of them end in a time.

    Runs that are done sooner leave their time to the others.

    Args:
        time: seconds for all runs.
        longest: for each run the seconds after which it has all of its steps, in the order in which runs start.
        jobs: number of runs side by side.
    """
    fits, fits_not = 0.0, max(0.0, time)
    if end_of([min(fits_not, each) for each in longest], jobs) <= fits_not:
        return max(LEAST_SECONDS, fits_not)
    for _ in range(HALVINGS):
        middle = (fits + fits_not) / 2
        if end_of([min(middle, each) for each in longest], jobs) <= time:
            fits = middle
        else:
            fits_not = middle
    return max(LEAST_SECONDS, fits)


def end_of(durations: Sequence[float], jobs: int) -> float:
    """The time after which the last of some runs ends, each of which starts in its turn as soon as a worker is free."""
    free = [0.0] * jobs
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def most_steps(stage: StageName, usual_steps: int, semifinalists: int) -> int | None:
    """Largest number of training steps of a run of a stage; None if there is no usual number of steps.

    No run is longer than a usual training. A search is half as long if the best of its settings are tried again.
    """
    if not usual_steps:
        return None
    is_short = stage == "search" and semifinalists > 1
    return max(1, int(SEARCH_PART * usual_steps)) if is_short else usual_steps


def stop_time(start: float, budget: float) -> float:
    """The moment at which the race ends, so that the decision and the page fit into the budget."""
    return start + budget - max(RESERVED_SECONDS, RESERVED_SHARE * budget)
