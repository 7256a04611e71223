"""Where a run continues: at its newest checkpoint that can be read, that fits, and whose rows are all there.

Rows are written before the checkpoint that counts them, so a killed process leaves too many rows, never too few.
"""

import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import nn

from subquad.errors import SubquadError
from subquad.results import Row, Run
from subquad.tasks.base import Best
from subquad.training import checkpoints
from subquad.training.checkpoints import Checkpoint
from subquad.training.scaling import Scaling

FOLDER = "checkpoint"
"""Name of the folder in a run that holds its checkpoints."""
BEST = "best"
"""Name of the folder in a run that holds the best weights of its evaluations."""


class Trained(NamedTuple):
    """What training changes and a checkpoint brings back."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaling: Scaling

    def check(self, checkpoint: Checkpoint) -> None:
        """Raises `SubquadError` for a checkpoint that does not fit."""
        checkpoints.check_fit(checkpoint, self.model, self.optimizer)
        self.scaling.check_state(checkpoint.about)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes weights, moments and the scale of the loss from a checkpoint that fits."""
        checkpoints.restore(checkpoint, self.model, self.optimizer)
        self.scaling.restore(checkpoint.about)


class Start(NamedTuple):
    """Where a run continues."""

    checkpoint: Checkpoint | None
    """The checkpoint to continue from; None to start from the beginning."""
    rows: list[Row]
    """Rows that were written before the checkpoint."""
    complaints: list[str]
    """Sentences about newer checkpoints that are not used."""
    lacks_rows: bool
    """Whether newer checkpoints are not used because rows that they count are missing."""

    @property
    def step(self) -> int:
        """Number of steps that are done."""
        return 0 if self.checkpoint is None else self.checkpoint.step


def find_start(run: Run, check: Callable[[Checkpoint], None], *, counter: Literal["step", "at"], first: int) -> Start:
    """Returns where a run continues, without changing the run.

    Args:
        run: the run.
        check: raises `SubquadError` for a checkpoint that does not fit.
        counter: the field of rows that counts what checkpoints are numbered by.
        first: the number of the first checkpoint. Rows beyond it show that there was one.
    """
    rows = run.rows()
    short: list[int] = []

    def check_all(checkpoint: Checkpoint) -> None:
        check(checkpoint)
        if checkpoint.about.get("rows", 0) > len(rows):
            short.append(checkpoint.step)
            raise SubquadError(
                f"{run.rows_path} lacks rows from before its checkpoint of step {checkpoint.step}, which is put aside"
            )

    checkpoint, complaints = checkpoints.load(run.folder / FOLDER, check_all)
    if checkpoint is not None:
        count = checkpoint.about.get(
            "rows", sum(row[counter] <= checkpoint.step for row in rows)
        )  # checkpoints of older versions do not count rows
        return Start(checkpoint, rows[:count], complaints, bool(short))
    if len(complaints) > len(short):
        raise refusal(run, "none of its checkpoints can be used: " + "; ".join(complaints))
    if not complaints and any(row[counter] > first for row in rows):
        raise refusal(run, f"it has rows up to step {max(row['step'] for row in rows)}, but no checkpoint")
    return Start(None, [], [f"{complaint}; it starts over" for complaint in complaints[:1]], bool(short))


def best_step(rows: Iterable[Row], best: Best) -> int | None:
    """The step of the best evaluation of a run, the first one among equals; None if it was not evaluated."""
    sign = 1.0 if best.good == "low" else -1.0
    evaluated = [row for row in rows if row["metric"] == best.metric and row.get("split") == "held out"]
    evaluated = [row for row in evaluated if row["value"] is not None]  # None if it was not finite
    return min(evaluated, key=lambda row: sign * row["value"])["step"] if evaluated else None


def check_best(run: Run, start: Start, model: nn.Module, best: Best | None) -> None:
    """Refuses to continue a run without the weights that were best according to its rows."""
    step = None if best is None else best_step(start.rows, best)
    if step is None or start.checkpoint is None or "rows" not in start.checkpoint.about:  # older versions kept too few
        return
    path = run.folder / BEST / f"step-{step:09d}"
    try:
        checkpoints.check_fit(checkpoints.read(path), model)
    except SubquadError as error:
        raise refusal(run, f"its best weights are lost: {error}") from None


def go_back(run: Run, start: Start) -> None:
    """Deletes the rows and best weights from after the start, which the run will produce again."""
    run.keep_first_rows(len(start.rows))
    if start.lacks_rows:
        checkpoints.forget(run.folder / FOLDER, after=start.step, aside=True)
    checkpoints.forget(run.folder / BEST, after=start.step, aside=start.lacks_rows)


def start_over(run: Run) -> None:
    """Deletes the rows and checkpoints of a run."""
    run.keep_first_rows(0)
    for name in (FOLDER, BEST):
        shutil.rmtree(run.folder / name, ignore_errors=True)


def refusal(run: Run, problem: str) -> SubquadError:
    """Returns the error for a run that cannot continue, with the command that starts it over."""
    again = f"subquad {run.about.get('kind')} --resume {shlex.quote(str(run.folder))} --restart"
    return SubquadError(f"{run.folder} cannot go on: {problem}; start over, keeping nothing of it, with: {again}")


def load_model(folder: Path, model: nn.Module, say: Callable[[str], None]) -> int:
    """Loads the best weights of a run into a model, or the newest if no best ones were kept, and returns their step."""

    def check(candidate: checkpoints.Checkpoint) -> None:
        checkpoints.check_fit(candidate, model)

    checkpoint, complaints = checkpoints.load(folder / BEST, check)
    if checkpoint is None:
        checkpoint, more = checkpoints.load(folder / FOLDER, check)
        complaints = [*(f"{complaint}, so the newest checkpoint is used" for complaint in complaints), *more]
    if checkpoint is None:
        why = f" ({complaints[0]})" if complaints else ""
        raise SubquadError(
            f"{folder} has no checkpoint that can be read{why}: train it first, with subquad train --resume {folder}"
        )
    for complaint in complaints:
        say(complaint)
    checkpoints.restore(checkpoint, model)
    return checkpoint.step
