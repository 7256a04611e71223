"""The contract of a workplace, which does jobs side by side."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from subquad.errors import DivergedError, NotFiniteError, SubquadError
from subquad.measure.workers import ERROR, kind_of
from subquad.results import Row

Work = Callable[[Any, Path], list[Row]]
"""Does a job and returns rows. It gets what its workplace holds for all jobs, and the folder to work in. On a cluster it
must be picklable, and the folder is a temporary one whose files are copied to that of the job as they are written."""

LOST, NOT_FINITE = "lost", "not finite"
"""Reasons of failures, beside those of measurements: a node or process that ended again and again, and a loss that is no
number."""


class Job(NamedTuple):
    """Work that is done in a folder of its own."""

    name: str
    work: Work
    folder: Path
    """Folder on this machine that has the job's files at its end."""
    limit_seconds: float = math.inf
    """Time after which the job is ended, counted from its start."""
    needs: tuple[Path, ...] = ()
    """Folders that the work reads, beside its own folder and with the same names there; its own if the job goes on."""
    node: str = ""
    """Id of the node that the job must run on; empty for any."""


class Ended(NamedTuple):
    """A job that ended, with its rows or with the reason of its failure."""

    job: Job
    rows: list[Row]
    failure: str = ""
    message: str = ""


class Workplace(Protocol):
    """Something that does jobs side by side, such as processes of this machine or nodes of a cluster."""

    def has_room(self) -> bool:
        """Whether another job can begin now."""
        ...

    def begin(self, job: Job) -> None:
        """Begins a job."""
        ...

    def ended(self, seconds: float) -> list[Ended]:
        """Waits for at most so many seconds, and returns the jobs that ended."""
        ...

    def close(self) -> None:
        """Ends all jobs, whatever is being done. Files that they wrote are kept."""
        ...


def do_all(
    workplace: Workplace, jobs: Iterable[Job], poll_seconds: float, may_start: Callable[[Job], bool] = lambda job: True
) -> Iterator[Ended]:
    """Does jobs in their order, side by side, and yields each as it ends. A job that may not start any more is left out."""
    waiting, running = deque(jobs), 0
    while waiting or running:
        while waiting and workplace.has_room():
            job = waiting.popleft()
            if may_start(job):
                workplace.begin(job)
                running += 1
        if running or waiting:
            for ended in workplace.ended(poll_seconds):
                running -= 1
                yield ended


def explained(error: Exception) -> tuple[str, str]:
    """The reason of a failure in a word or two, and what the error says."""
    said = str(error)[:500]
    if isinstance(error, SubquadError):
        return NOT_FINITE if isinstance(error, DivergedError | NotFiniteError) else ERROR, said
    return kind_of(error), f"{type(error).__name__}: {said}"
