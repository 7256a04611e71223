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
from typing import Any, NamedTuple, Protocol

from subquad.errors import DivergedError, NotFiniteError, SubquadError
from subquad.measure.memory import limit_memory
from subquad.measure.workers import (
    ERROR,
    TIMEOUT,
    context,
    fork_child,
    interrupts_wait,
    join_parent,
    kind_of,
    silence_output,
    start_child,
)
from subquad.results import Row
from subquad.tasks.base import Task, TaskOptions

KILLED, NOT_FINITE = "killed", "not finite"
"""Reasons of failures, beside those of measurements."""
POLL_SECONDS = 0.2
"""Longest time between two looks at the clock while jobs run."""
PRELOAD = ("torch", "accelerate", "subquad.runs", "subquad.compare.cells", "subquad.choose.workers")
"""Modules that are imported once for all processes."""

Source = Callable[[TaskOptions | None], Task[Any]]
"""Returns the task with its data, or that of other options, in a process of its own. It must be picklable."""


Work = Callable[[Task[Any]], list[Row]]
"""Computes rows with a task."""


class Job(NamedTuple):
    """Work on a task that gives rows. `work` must be picklable."""

    name: str
    work: Work
    limit_seconds: float
    variant: TaskOptions | None = None
    """Options of the task that the work needs, if they are not those of the race."""


MayStart = Callable[[Job], bool]
"""Asked before each job whether there is still time for it."""


class Ended(NamedTuple):
    """A job that ended, with its rows or with the reason of its failure."""

    job: Job
    rows: list[Row]
    failure: str = ""
    message: str = ""


class Workers(Protocol):
    """Something that does jobs in some order, such as processes of this machine."""

    def run(self, jobs: Sequence[Job], may_start: MayStart) -> Iterator[Ended]:
        """Does jobs and yields each as it ends. A job that may not start any more is left out."""
        ...

    def close(self) -> None:
        """Ends all work, whatever is being done."""
        ...


class Held:
    """Tasks with their data, each of which is read when it is first needed."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.known: dict[TaskOptions | None, Task[Any]] = {}

    def of(self, variant: TaskOptions | None) -> Task[Any]:
        """The task of a job."""
        if variant not in self.known:
            self.known[variant] = self.source(variant)
        return self.known[variant]


class Inline:
    """Does jobs in this process, one after the other."""

    def __init__(self, source: Source) -> None:
        self.tasks = Held(source)

    def run(self, jobs: Sequence[Job], may_start: MayStart) -> Iterator[Ended]:
        """Does jobs in their order; see `Workers`."""
        for job in jobs:
            if not may_start(job):
                continue
            try:
                yield Ended(job, job.work(self.tasks.of(job.variant)))
            except Exception as error:
                yield Ended(job, [], *explained(error))

    def close(self) -> None:
        """Does nothing: no process was started."""


class Pool:
    """Processes that do jobs. Each is started when it is first needed."""

    def __init__(self, source: Source, jobs: int, memory_bytes: int, *, is_forked: bool = False) -> None:
        """Starts no process yet.

        Args:
            source: returns the task in each process.
            jobs: number of processes.
            memory_bytes: what one process may allocate.
            is_forked: whether processes are forks of this one, so that `source` need not be picklable.
        """
        self.source, self.jobs, self.memory_bytes, self.is_forked = source, jobs, memory_bytes, is_forked
        self.workers: list[_Worker] = []
        if not is_forked:
            context(PRELOAD)

    def run(self, jobs: Sequence[Job], may_start: MayStart) -> Iterator[Ended]:
        """Does jobs in their order, side by side; see `Workers`."""
        waiting = deque(jobs)
        while True:
            while waiting and self._has_room():
                job = waiting.popleft()
                if may_start(job):
                    self._idle().begin(job)
            busy: dict[Any, _Worker] = {worker.connection: worker for worker in self.workers if worker.job is not None}
            if not busy:
                if waiting:
                    continue
                return
            for connection in wait(list(busy), POLL_SECONDS):
                yield busy[connection].receive()
            for worker in list(self.workers):
                if (late := worker.check_time()) is not None:
                    yield late

    def close(self) -> None:
        """Ends all processes, whatever they are doing."""
        for worker in self.workers:
            worker.close()
        self.workers = []

    def _has_room(self) -> bool:
        self.workers = [worker for worker in self.workers if worker.is_alive]
        return len(self.workers) < self.jobs or any(worker.job is None for worker in self.workers)

    def _idle(self) -> "_Worker":
        """A process without a job, which is started if all others have one."""
        idle = next((worker for worker in self.workers if worker.job is None), None)
        if idle is None:
            with interrupts_wait():
                idle = _Worker(self.source, self.memory_bytes, is_forked=self.is_forked)
            self.workers.append(idle)
        return idle


class _Worker:
    """A process and the job that it does."""

    def __init__(self, source: Source, memory_bytes: int, *, is_forked: bool) -> None:
        start = fork_child if is_forked else start_child
        self.process, self.connection = start(serve, source, memory_bytes)
        self.job: Job | None = None
        self.started = 0.0
        self.is_alive = True

    def begin(self, job: Job) -> None:
        self.job, self.started = job, time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a missing answer is detected later
            self.connection.send((job.work, job.variant))

    def receive(self) -> Ended:
        """Takes the message of the process that its job ended."""
        job = self.job
        assert job is not None
        try:
            rows, problem = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._died(job)
        self.job = None
        return Ended(job, rows, *problem)

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
    tasks = Held(source)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            work, variant = connection.recv()
            try:
                connection.send((work(tasks.of(variant)), ()))
            except (EOFError, BrokenPipeError):
                raise
            except Exception as error:
                connection.send(([], explained(error)))


def explained(error: Exception) -> tuple[str, str]:
    """The reason of a failure in a word or two, and what the error says."""
    said = str(error)[:500]
    if isinstance(error, SubquadError):
        return NOT_FINITE if isinstance(error, DivergedError | NotFiniteError) else ERROR, said
    return kind_of(error), f"{type(error).__name__}: {said}"
