"""Where the time of a race went, by its rows.

A row with the metric "phase" has the seconds of a phase of the race. Rows of runs have the seconds that each worker trained,
and those that it spent on finding the duration of a step, on evaluations and on the test.
"""

import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

from subquad.results import Row
from subquad.words import duration

Phase = Literal["start", "plan", "search", "semifinal", "cost", "final", "conclude", "page"]
IN_STAGES: tuple[Phase, ...] = ("search", "semifinal", "final")
"""Phases in which workers train."""
WORDS: dict[str, str] = {
    "training": "training",
    "start": "reading the data and starting",
    "plan": "finding the duration of a step, to plan",
    "probing": "finding the duration of a step in each run",
    "evaluating": "evaluations during training",
    "judging": "scores on the test",
    "rivals": "models without attention",
    "cost": "measuring costs",
    "idle": "building models, writing files and waiting for other runs",
    "conclude": "intervals and ending",
    "page": "copying the model and writing the page",
}
"""What time is spent on, in words."""
EARLY = 0.9
"""Share of the budget below which a race says why it did not take all of it."""


class Spent(NamedTuple):
    """Seconds of all workers together that were spent on something, and their share."""

    what: str
    seconds: float
    share: float


def time_spent(rows: Sequence[Row], jobs: int) -> list[Spent]:
    """Returns what the time of all workers was spent on, most first; empty for a race without these rows."""
    phases: dict[str, float] = {}
    for row in rows:
        if row["metric"] == "phase":
            phases[row["what"]] = phases.get(row["what"], 0.0) + row["value"]
    runs = [row for row in rows if row["metric"] == "score" and row["value"] is not None]
    spent = {what: jobs * phases.get(what, 0.0) for what in ("start", "plan", "cost", "conclude", "page")}
    spent["training"] = sum(row["seconds"] for row in runs)
    for what in ("probing", "evaluating", "judging"):
        spent[what] = sum(row.get(what, 0.0) for row in runs)
    spent["rivals"] = sum(row.get("seconds", 0.0) for row in rows if row["metric"] == "rival")
    in_stages = jobs * sum(phases.get(what, 0.0) for what in IN_STAGES)
    used = sum(spent[what] for what in ("training", "probing", "evaluating", "judging", "rivals"))
    spent["idle"] = max(0.0, in_stages - used)
    total = sum(spent.values())
    if not phases or not total:
        return []
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return [Spent(WORDS[what], seconds, seconds / total) for what, seconds in ordered if seconds]


def time_sentence(rows: Sequence[Row], jobs: int) -> str:
    """Says which share of the time was training, and what took most of the rest; empty if that is not known."""
    spent = time_spent(rows, jobs)
    training = next((each.share for each in spent if each.what == WORDS["training"]), None)
    if training is None:
        return ""
    others = [f"{each.what} {each.share:.0%}" for each in spent if each.what != WORDS["training"]][:3]
    return f"Of the workers' time, {training:.0%} was training" + (f"; {', '.join(others)}." if others else ".")


def early_sentence(rows: Sequence[Row], budget: float, usual_steps: int) -> str:
    """Says why a race ended well before its budget: its final runs had all of the usual steps. Empty if that is not so."""
    elapsed = sum(row["value"] for row in rows if row["metric"] == "phase")
    finals = [row for row in rows if row["metric"] == "score" and row["stage"] == "final" and row["value"] is not None]
    if not finals or not usual_steps or elapsed > EARLY * budget or any(row["steps"] < usual_steps for row in finals):
        return ""
    return (
        f"It took {duration(elapsed)} of {duration(budget)}: the final runs have all of the {usual_steps:,} steps of "
        "`subquad train`, and --steps allows more."
    )


def time_left(end: float) -> str:
    """Says how much time is left until a moment of the monotonic clock, such as "4:05 left"."""
    seconds = max(0, round(end - time.monotonic()))
    return f"{seconds // 60}:{seconds % 60:02d} left"
