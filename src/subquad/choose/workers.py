"""Processes that hold a task with its data and do jobs, one after the other, side by side with each other.

A job that fails, runs out of memory or takes too long ends with a reason. Its process is replaced if it died, and the other
jobs go on.
"""

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from subquad.errors import DivergedError, SubquadError
from subquad.measure.memory import limit_memory
from subquad.measure.workers import (
    ERROR,
    OUT_OF_MEMORY,
    TIMEOUT,
    context,
    interrupts_wait,
    join_parent,
    kind_of,
    silence_output,
    start_child,
)
from subquad.results import Row
from subquad.tasks.base import Task

KILLED, NOT_FINITE = "killed", "not finite"
"""Reasons of failures, beside those of measurements."""
POLL_SECONDS = 0.2
"""Longest time between two looks at the clock while jobs run."""
PRELOAD = ("torch", "accelerate", "subquad.runs", "subquad.compare.cells", "subquad.choose.workers")
"""Modules that are imported once for all processes."""

Say = Callable[[Row], None]
"""Called by a job with a row that says how far it is."""
Source = Callable[[], Task[Any]]
"""Returns the task with its data, in a process of its own. It must be picklable."""


class Job(NamedTuple):
    """Work on a task that gives rows. `work` must be picklable."""

    name: str
    work: Callable[[Task[Any], Say], list[Row]]
    limit_seconds: float


class Ended(NamedTuple):
    """A job that ended, with its rows or with the reason of its failure."""

    job: Job
    rows: list[Row]
    failure: str = ""
    message: str = ""


class Pool:
    """Processes that do jobs. Each is started when it is first needed."""

    def __init__(self, source: Source, jobs: int, memory_bytes: int) -> None:
        """`memory_bytes` is what one process may allocate."""
        self.source, self.jobs, self.memory_bytes = source, jobs, memory_bytes
        self.workers: list[_Worker] = []
        context(PRELOAD)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        may_start: Callable[[Job], bool] = lambda job: True,
        watch: Callable[[Job, Row], None] = lambda job, row: None,
    ) -> Iterator[Ended]:
        """Does jobs in their order and yields each as it ends. A job that may not start any more is left out."""
        waiting = deque(jobs)
        while True:
            while waiting and (worker := self._idle()) is not None:
                job = waiting.popleft()
                if may_start(job):
                    worker.begin(job)
            busy = {worker.connection: worker for worker in self.workers if worker.job is not None}
            if not busy:
                if waiting:
                    continue
                return
            for connection in wait(list(busy), POLL_SECONDS):
                if (ended := busy[connection].receive(watch)) is not None:  # type: ignore[index]
                    yield ended
            for worker in list(self.workers):
                if (late := worker.check_time()) is not None:
                    yield late
            self.workers = [worker for worker in self.workers if worker.is_alive]

    def close(self) -> None:
        """Ends all processes, whatever they are doing."""
        for worker in self.workers:
            worker.close()
        self.workers = []

    def _idle(self) -> "_Worker | None":
        idle = next((worker for worker in self.workers if worker.job is None), None)
        if idle is None and len(self.workers) < self.jobs:
            with interrupts_wait():
                idle = _Worker(self.source, self.memory_bytes)
            self.workers.append(idle)
        return idle


class _Worker:
    """A process and the job that it does."""

    def __init__(self, source: Source, memory_bytes: int) -> None:
        self.process, self.connection = start_child(serve, source, memory_bytes)
        self.job: Job | None = None
        self.started = 0.0
        self.is_alive = True

    def begin(self, job: Job) -> None:
        self.job, self.started = job, time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a missing answer is detected later
            self.connection.send(job.work)

    def receive(self, watch: Callable[[Job, Row], None]) -> Ended | None:
        """Takes a message from the process, and returns the job if it ended."""
        job = self.job
        assert job is not None
        try:
            kind, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._died(job)
        if kind == "say":
            watch(job, content)
            return None
        self.job = None
        return Ended(job, content) if kind == "done" else Ended(job, [], *content)

    def check_time(self) -> Ended | None:
        """Ends a job that takes too long, together with its process."""
        job = self.job
        if job is None or time.monotonic() - self.started < job.limit_seconds:
            return None
        self.close()
        return Ended(job, [], TIMEOUT, f"it took longer than {job.limit_seconds:.0f} s")

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.job, self.is_alive = None, False

    def _died(self, job: Job) -> Ended:
        self.process.join()
        code = self.process.exitcode or 0
        self.close()
        why = "most likely for lack of memory" if code == -signal.SIGKILL else f"with code {code}"
        return Ended(job, [], KILLED, f"the process ended, {why}")


def serve(parent: int, connection: Connection, source: Source, memory_bytes: int) -> None:
    """Runs in a process: reads the data with the first job, and does jobs until the process is ended."""
    import torch

    join_parent(parent)
    silence_output()
    torch.set_num_threads(1)
    limit_memory(memory_bytes)
    task: Task[Any] | None = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            work = connection.recv()
            try:
                task = source() if task is None else task
                connection.send(("done", work(task, lambda row: connection.send(("say", row)))))
            except (EOFError, BrokenPipeError):
                raise
            except Exception as error:
                connection.send(("failed", (failure_of(error), f"{type(error).__name__}: {str(error)[:500]}")))


def failure_of(error: Exception) -> str:
    """The reason of a failure in a word or two."""
    if isinstance(error, DivergedError):
        return NOT_FINITE
    if isinstance(error, SubquadError):
        return ERROR
    return OUT_OF_MEMORY if kind_of(error) == OUT_OF_MEMORY else ERROR
