"""Where a run goes on: at its newest checkpoint that can be read, that fits and whose rows are all there.

Rows are written before the checkpoint that counts them, so a process that is killed leaves too many rows, never too few.
"""

import shlex
import shutil
from collections.abc import Callable
from typing import Literal, NamedTuple

from subquad.errors import SubquadError
from subquad.results import Row, Run
from subquad.training import checkpoints
from subquad.training.checkpoints import Checkpoint

FOLDER = "checkpoint"
"""Name of the folder in a run that holds its checkpoints."""
BEST = "best"
"""The folder in a run, beside its checkpoints, with the weights that were best when they were evaluated."""


class Start(NamedTuple):
    """Where a run goes on."""

    checkpoint: Checkpoint | None
    """The checkpoint to continue from; None to start from the beginning."""
    rows: list[Row]
    """Rows that were written before the checkpoint."""
    complaints: list[str]
    """Sentences about newer checkpoints that are not used."""
    lacks_rows: bool
    """Whether newer checkpoints are not used because rows of theirs are gone."""

    @property
    def step(self) -> int:
        """Number of steps that are done."""
        return 0 if self.checkpoint is None else self.checkpoint.step


def find_start(run: Run, check: Callable[[Checkpoint], None], *, counter: Literal["step", "at"], first: int) -> Start:
    """Finds where a run goes on, and changes nothing.

    Args:
        run: the run.
        check: raises `SubquadError` for a checkpoint that does not fit.
        counter: the field of rows that counts what checkpoints are numbered by.
        first: the number of the first checkpoint. Rows beyond it tell that there was one.
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
        )  # older versions did not count
        return Start(checkpoint, rows[:count], complaints, bool(short))
    if len(complaints) > len(short):
        raise refusal(run, "none of its checkpoints can be used: " + "; ".join(complaints))
    if not complaints and any(row[counter] > first for row in rows):
        raise refusal(run, f"it has rows up to step {max(row['step'] for row in rows)}, but no checkpoint")
    return Start(None, [], [f"{complaint}; it starts over" for complaint in complaints[:1]], bool(short))


def go_back(run: Run, start: Start) -> None:
    """Takes out the rows and the best weights from after the start, which will come again."""
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
    """The error for a run that cannot go on as it is, with the way out."""
    again = f"subquad {run.about.get('kind')} --resume {shlex.quote(str(run.folder))} --restart"
    return SubquadError(f"{run.folder} cannot go on: {problem}; start over, keeping nothing of it, with: {again}")
