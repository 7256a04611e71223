"""The stages of a race and the training seconds of each run, planned so that the budget is kept.

Every attention has the same number of runs in every stage, and every run of a stage the same training seconds. A run of a
later stage starts anew, with its own schedule: a schedule that is cut short says little about the whole one.
"""

import math
from typing import Literal, NamedTuple

MOST_SECONDS = 1e8
"""Longest budget of a race."""
StageName = Literal["search", "semifinal", "final"]

SEARCH_SHARE, SEMIFINAL_SHARE = 0.3, 0.3
"""Shares of the time left that the search takes, and after it the semifinal."""
RESERVED_SHARE, RESERVED_SECONDS = 0.02, 4.0
"""Part of the budget that is kept for the decision, the page and what takes longer than planned."""
COST_SHARE, MOST_COST_SECONDS = 0.04, 60.0
"""Part of the budget in which costs are measured, and its largest number of seconds."""
LEAST_SECONDS = 0.2
"""Smallest number of training seconds of a run."""
USUAL_EFFICIENCY = 0.75
"""Share of a worker's time that is expected to be training, until it is known."""
SEARCH_SECONDS, FINAL_SECONDS, LONG_FINAL_SECONDS = 4.0, 6.0, 90.0
"""Seconds of a run below which there are fewer settings; below which there are fewer seeds; above which there are more."""
SEARCH_PART, FINAL_PART = 0.3, 0.5
"""Parts of a usual training below which there are fewer settings, as hardly anything is learned yet, and fewer seeds."""
PACE_SHARE = 0.01
"""Part of the budget in which the duration of a training step is measured at the beginning."""


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
    settings = min(8, max(2, int(each * SEARCH_SHARE / max(SEARCH_SECONDS, SEARCH_PART * usual_seconds))))
    semifinalists = max(1, settings // 3)
    finals = each * (1 - SEARCH_SHARE) * (1 - SEMIFINAL_SHARE if semifinalists > 1 else 1.0)
    least, long = max(FINAL_SECONDS, FINAL_PART * usual_seconds), max(LONG_FINAL_SECONDS, usual_seconds)
    seeds = 5 if finals / 5 >= long else 3 if finals / 3 >= least else 2
    return Numbers(settings, semifinalists, seeds)


def run_seconds(left: float, share: float, runs: int, jobs: int, efficiency: float) -> float:
    """Training seconds of each of so many runs that take a share of the time left, side by side on so many workers."""
    rounds = math.ceil(max(1, runs) / jobs)
    return max(LEAST_SECONDS, share * max(0.0, left) * efficiency / rounds)


def stop_time(start: float, budget: float) -> float:
    """The moment at which the race ends, so that the decision and the page fit into the budget."""
    return start + budget - max(RESERVED_SECONDS, RESERVED_SHARE * budget)
