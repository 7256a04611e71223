"""What experiments are made of: trainings that are run in any order, and verdicts on what came out of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from subquad.files import read_text
from subquad.measure.timing import Interval
from subquad.results import Row, Run


class Trial(NamedTuple):
    """One training: what it is called, what tells it from others, and what `subquad train` or `convert` is given."""

    name: str
    variant: str
    length: int
    seed: int
    arguments: tuple[str, ...]
    start: str = ""  # the name of the trial whose model it starts from, which has to be finished before
    command: str = "train"  # or "convert"


class Verdict(NamedTuple):
    """A claim, whether it held, and the figures that say so."""

    claim: str
    held: bool | None  # None: not enough was measured
    figures: str


def finished(folder: Path) -> bool:
    """Whether a training, or a conversion with its controls, came to its end: to its last checkpoint."""
    if not (folder / "run.json").exists():
        return False
    run = Run.open(folder)
    if run.about.get("kind") == "convert":
        return _is_converted(run)
    steps = Run.open(folder, "train").about["options"]["training"]["steps"]
    return (folder / "checkpoint" / f"step-{steps:09d}").exists()


def _is_converted(run: Run) -> bool:
    """Whether the newest checkpoint is after the last phase. Older versions did not tell how many phases there are."""
    newest = max(run.folder.glob("checkpoint/step-?????????/about.json"), default=None)
    try:
        about = {} if newest is None else json.loads(read_text(newest))
        if isinstance(about, dict) and "phases" not in about:
            return _has_last_control(run)
        return bool(about["stand"]["phase"] == about["phases"])
    except (ValueError, KeyError, TypeError):  # a damaged checkpoint, which is not the last
        return False


def _has_last_control(run: Run) -> bool:
    """Softmax is the last of a language model's controls."""
    from subquad.conversion.recipes import CONVERSION, EXACT

    last = EXACT if run.about["options"]["conversion"]["controls"] else CONVERSION
    ends = {"recipe": last, "stage": "tuned", "split": "test"}
    return any(all(row.get(name) == value for name, value in ends.items()) for row in run.rows())


def load(folder: Path, trials: Sequence[Trial]) -> dict[str, list[Row]]:
    """The rows of the trials that are finished."""
    return {trial.name: Run.open(folder / trial.name).rows() for trial in trials if finished(folder / trial.name)}


def last(rows: Sequence[Row], metric: str) -> float:
    """A metric at the last step that has it."""
    return [row["value"] for row in rows if row["metric"] == metric][-1]


def at_test(rows: Sequence[Row], metric: str) -> float | None:
    """What a metric came to on what was kept for the end."""
    values = [row["value"] for row in rows if row["metric"] == metric and row.get("split") == "test"]
    return values[-1] if values else None


def at_most(found: Interval, limit: float) -> bool | None:
    """Whether a measurement stays within a limit; not decided where its range holds the limit."""
    return None if found.low <= limit < found.high else found.high <= limit


def at_least(found: Interval, limit: float) -> bool | None:
    """Whether a measurement comes up to a limit; not decided where its range holds the limit."""
    return None if found.low < limit <= found.high else found.low >= limit


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean over seeds and Student's 95% interval of it. One seed alone says nothing of the spread."""
    middle = float(np.mean(values))
    if len(values) < 2:
        return Interval(middle, -np.inf, np.inf)
    half = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return Interval(middle, middle - half, middle + half)


def between(found: Interval, sign: str = "") -> str:
    """A mean and its interval."""
    if not np.isfinite(found.high):
        return f"{found.middle:{sign}.3f} (one seed)"
    return f"{found.middle:{sign}.3f} ({found.low:{sign}.3f} to {found.high:{sign}.3f})"
