"""Measures work in child processes, one for each candidate, so that a failure does not affect the others.

The children of one group take turns, round after round, so that drift of the machine affects all alike. Children are forked
from a server that has imported PyTorch once, so that a new process takes 30 milliseconds instead of two seconds.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psutil

from subquad.measure.devices import peak_bytes, unsupported, wait_for
from subquad.measure.lifeline import PARENT, end_with
from subquad.measure.memory import limit_memory

OUT_OF_MEMORY, TIMEOUT, ERROR = "out of memory", "timeout", "error"
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

START_SECONDS = 60.0  # time after which a process that is not ready has failed
BURST_SECONDS = 0.005  # minimum duration of one measurement
SETTLE_SECONDS = 0.003  # minimum warm-up before a measurement, for the caches
STALL_SECONDS = 0.1  # maximum warm-up, while threads still share a core
BRIEF_SECONDS = 0.02  # duration of a run from which on no warm-up is needed


class Work(NamedTuple):
    """Work to run repeatedly, and the bytes that it holds between runs, such as a decoder's state."""

    run: Callable[[], object]
    held_bytes: int = 0


@dataclass(frozen=True)
class Candidate:
    """Functions with which a child process builds its work. Both must be picklable."""

    prepare: Callable[[], Work]
    warm_up: Callable[[], Work]
    """Builds the same work on tiny inputs, for warming up."""


@dataclass(frozen=True)
class Limits:
    """Limits on the time and memory of one child process."""

    memory_bytes: int = 2**30
    run_seconds: float = 30.0
    """Longest duration of one run."""
    turn_seconds: float = 0.04
    """Time for further turns of one visit, after the fewest turns."""
    threads: int = 1
    device: str = "cpu"
    least_turns: int = 1
    """Smallest number of turns, however long they take."""


@dataclass
class Outcome:
    """Measurements of a child process, or the reason of its failure."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    failure: str = ""
    message: str = ""


class CellFailedError(Exception):
    """A child process did not answer, or reported a failure."""

    def __init__(self, failure: str, message: str) -> None:
        super().__init__(message)
        self.failure, self.message = failure, message


def context(preload: Sequence[str] = ()) -> Any:
    """Returns the multiprocessing context: a fork server that has imported `preload`, or spawn on systems without fork."""
    methods = multiprocessing.get_all_start_methods()
    chosen = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if preload and chosen.get_start_method() == "forkserver":
        chosen.set_forkserver_preload(["subquad.measure.tied", *preload, __name__])
    return chosen


def visit(
    candidates: Mapping[str, Candidate], limits: Limits, running: Callable[[str], None] = lambda name: None
) -> dict[str, Outcome]:
    """Starts a child for each candidate, lets them take turns, and calls `running` with the name whose turn it is."""
    outcomes = {name: Outcome() for name in candidates}
    workers: dict[str, Worker] = {}
    try:
        for name, candidate in candidates.items():
            with interrupts_wait():
                workers[name] = Worker(candidate, limits)
        for question in (None, "first"):  # None waits until the child is ready
            for name in list(workers):
                running(name)
                _ask(question, name, workers, outcomes, limits)
        while turn := [name for name in workers if _wants_a_turn(outcomes[name], limits)]:
            for name in turn:
                _ask("turn", name, workers, outcomes, limits)
    finally:
        for worker in workers.values():
            worker.close()
    return outcomes


def _ask(
    question: str | None, name: str, workers: dict[str, "Worker"], outcomes: dict[str, Outcome], limits: Limits
) -> None:
    outcome = outcomes[name]
    try:
        answer = workers[name].ask(question, limits.run_seconds if question else limits.run_seconds + START_SECONDS)
    except CellFailedError as error:
        outcome.failure, outcome.message = error.failure, error.message
        workers.pop(name).close()
        return
    if question == "first":
        seconds, outcome.peak_bytes = answer
        if seconds >= BRIEF_SECONDS:
            outcome.seconds.append(seconds)
    elif question == "turn":
        outcome.seconds.append(answer)


def _wants_a_turn(outcome: Outcome, limits: Limits) -> bool:
    """Whether a candidate gets another turn: while it has too few, or while there is time left."""
    run_seconds = outcome.seconds
    if not run_seconds:
        return True
    turns = sum(max(seconds, BURST_SECONDS + SETTLE_SECONDS) for seconds in run_seconds)
    return len(run_seconds) < max(limits.least_turns, fewest_turns(run_seconds[-1])) or turns < limits.turn_seconds


def fewest_turns(run_seconds: float) -> int:
    """Smallest number of turns for a run of this duration."""
    return 3 if run_seconds < 0.1 else 2 if run_seconds < 0.5 else 1


class Worker:
    """A child process that answers questions."""

    def __init__(self, candidate: Candidate, limits: Limits) -> None:
        self.process, self.connection = start_child(_serve, candidate, limits)
        self.control = psutil.Process(self.process.pid)

    def ask(self, question: str | None, seconds: float) -> Any:
        """Sends a question and returns the answer, or raises `CellFailedError` after `seconds`."""
        if question:
            with contextlib.suppress(BrokenPipeError, psutil.NoSuchProcess):  # a missing answer is detected below
                self.control.resume()
                self.connection.send(question)
        if not self.connection.poll(seconds):
            raise CellFailedError(TIMEOUT, f"one run took longer than {seconds:.0f} s")
        try:
            failure, answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if failure:
            raise CellFailedError(failure, answer)
        with contextlib.suppress(psutil.NoSuchProcess):
            self.control.suspend()  # idle threads would spin for milliseconds, into the next child's turn
        return answer

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _died(self) -> CellFailedError:
        self.process.join()
        code = self.process.exitcode or 0
        if code == -signal.SIGKILL:
            return CellFailedError(OUT_OF_MEMORY, "the process was killed, most likely for lack of memory")
        how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended by itself, with code {code}"
        return CellFailedError(ERROR, f"the process {how}")


def start_child(serve: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Starts a process that runs ``serve(parent, connection, *arguments)``, and returns it with our end of the connection.

    `serve` begins with `join_parent(parent)`.
    """
    chosen = context()
    _start_server(chosen)
    ours, theirs = chosen.Pipe()
    server: Any = forkserver._forkserver
    parent = server._forkserver_pid if chosen.get_start_method() == "forkserver" else os.getpid()
    process = chosen.Process(target=serve, args=(parent, theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def fork_child(serve: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Starts a process like `start_child`, but as a fork of this one, to which arguments need not be sent."""
    chosen = multiprocessing.get_context("fork")
    ours, theirs = chosen.Pipe()
    process = chosen.Process(target=serve, args=(os.getpid(), theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def join_parent(parent: int) -> None:
    """Runs at the start of a child: leaves Ctrl-C to the parent, and makes the child end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # with spawn there is no server to inherit this from
    _leave_server()
    end_with(parent)


def silence_output() -> None:
    """Discards everything that this process prints from now on, from C code too."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delays interrupts until the end of the block: a child whose parent ends during its start prints a traceback."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    received: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _start_server(chosen: Any) -> None:
    """Starts the fork server unless it is running.

    The server and its children ignore Ctrl-C from their start, since the parent handles it and ends its children. The server
    ends with this process even while it imports, which takes seconds. It is not tied to a thread that may end earlier.
    """
    server: Any = forkserver._forkserver
    if chosen.get_start_method() != "forkserver":
        return
    if server._forkserver_pid is not None or threading.current_thread() is not threading.main_thread():
        forkserver.ensure_running()
        return
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[PARENT] = str(os.getpid())
    try:
        forkserver.ensure_running()
    finally:
        del os.environ[PARENT]
        signal.signal(signal.SIGINT, ours)


def _serve(parent: int, connection: Connection, candidate: Candidate, limits: Limits) -> None:
    """Runs in the child: prepares the work, then answers questions until the process is ended."""
    import torch

    join_parent(parent)
    silence_output()
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            torch.set_num_threads(1)  # children prepare at the same time and would compete for cores
            limit_memory(limits.memory_bytes)
            tiny, work = candidate.warm_up(), candidate.prepare()
            connection.send(("", None))
            shortest = 0.0  # seconds of the shortest run so far
            while question := connection.recv():
                if question == "first":
                    torch.set_num_threads(limits.threads)
                    tiny.run()
                    shortest, peak = _first(work, limits.device)
                    connection.send(("", (shortest, peak)))
                else:
                    seconds, shortest = _turn(work, limits.device, shortest)
                    connection.send(("", seconds))
        except EOFError:
            raise
        except Exception as error:
            first_line = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            connection.send((kind_of(error), unsupported(error, limits.device) or first_line))


def _leave_server() -> None:
    """Closes this process's end of the fork server's pipe.

    The fork server ends when no process holds the other end of its pipe: neither the process that started it nor any of
    its children.
    """
    server: Any = forkserver._forkserver
    if (pipe := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(pipe)
        server._forkserver_alive_fd = None


def _first(work: Work, device: str) -> tuple[float, int | None]:
    """Returns seconds and peak bytes of the first run, which is also a warm-up."""
    before = time.perf_counter()
    peak = peak_bytes(device, work.run)
    wait_for(device)
    return time.perf_counter() - before, None if peak is None else peak + work.held_bytes


def _turn(work: Work, device: str, shortest: float) -> tuple[float, float]:
    """Warms up, times as many runs as fill a burst, and returns the seconds of a run and of the shortest one so far."""
    if shortest >= BRIEF_SECONDS:
        return _run_for(work, device, 0.0), shortest
    shortest = _settle(work, device, shortest)
    return _run_for(work, device, 0.0, max(1, round(BURST_SECONDS / shortest))), shortest


def _settle(work: Work, device: str, shortest: float) -> float:
    """Runs until caches are warm and a run takes about as long as the shortest one.

    After a pause, the threads of a process may share one core and wait for each other until the system moves them apart.
    """
    start = time.perf_counter()
    while True:
        last_run = _run_for(work, device, 0.0)
        shortest, passed = min(shortest, last_run), time.perf_counter() - start
        if passed >= STALL_SECONDS or (passed >= SETTLE_SECONDS and last_run < 2 * shortest):
            return shortest


def _run_for(work: Work, device: str, seconds: float, count: int = 1) -> float:
    """Returns the mean seconds of a run, over at least `count` runs and `seconds` seconds."""
    start, runs = time.perf_counter(), 0
    while runs < count or time.perf_counter() - start < seconds:
        work.run()
        runs += 1
    wait_for(device)
    return (time.perf_counter() - start) / runs


def kind_of(error: Exception) -> str:
    """Whether an error is for lack of memory or another one."""
    words = str(error).lower()
    short = isinstance(error, MemoryError) or "out of memory" in words or "allocate memory" in words or "bad_alloc" in words
    return OUT_OF_MEMORY if short or "not enough memory" in words else ERROR
