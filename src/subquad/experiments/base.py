"""What experiments are made of: trainings that are run in any order, and verdicts on what came out of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from subquad.files import read_text
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
