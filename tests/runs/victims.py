"""A command in a forked process that is killed at a chosen moment, and what it and its children did until then.

The parent has imported everything and computed nothing, so that a command starts at once: random moments fall into its work,
not into its imports. What the command starts itself is started as always.
"""

import ctypes
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from subquad.measure.lifeline import end_with

LINGER_SECONDS = 5.0
"""How long processes of a killed command may live on."""
PATIENCE_SECONDS = 300.0
"""A command that is not done after this time is stuck."""
CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.truncate"}
"""Python's audit events of calls that change a folder. Their first argument is the path."""
WRITING = os.O_WRONLY | os.O_RDWR
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER in Linux's prctl.h


class Moment(NamedTuple):
    """When a command is killed: after some seconds, or just before the n-th change to its run's files, or never."""

    seconds: float = PATIENCE_SECONDS
    change: int = 0


class End(NamedTuple):
    """How a command ended."""

    code: int
    """Its exit code. Minus the number of a signal where it was killed."""
    said: str
    """What it wrote to standard error."""
    seconds: float
    changes: list[str]
    """The changes to its run's files, each as an event and a path in the run's folder."""
    first_seconds: float
    """When the first of the changes was."""
    left: list[str]
    """Processes of it that were still there some seconds later, which are killed then."""

    @property
    def was_killed(self) -> bool:
        """Whether it was killed, and did not end by itself."""
        return self.code == -signal.SIGKILL


def adopt_orphans() -> None:
    """Makes this process the parent of every process that its descendants leave behind, so that none is overlooked."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def execute(command: Callable[[], int], run: Path, scratch: Path, moment: Moment) -> End:
    """Runs a command in a forked process until its end, or until it is killed. Needs `adopt_orphans` first."""
    said, log = scratch / "stderr", scratch / "changes"
    said.write_text("")
    log.write_text("")
    sys.stdout.flush()
    sys.stderr.flush()
    begun, parent = time.monotonic(), os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, where the parent has threads
        pid = os.fork()
    if pid == 0:
        _be(command, said, _Killer(run, log, moment.change), parent)
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], moment.seconds)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(handle)
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - begun
    left = _linger()
    times, changes = _read_log(log)
    first = times[0] - begun if times else seconds
    return End(os.waitstatus_to_exitcode(status), said.read_text(), seconds, changes, first, left)


def _read_log(log: Path) -> tuple[list[float], list[str]]:
    """When changes were, by a clock that all processes share, and what they were."""
    lines = [line.partition(" ") for line in log.read_text().splitlines()]
    return [float(when) for when, _, _ in lines], [change for _, _, change in lines]


def _be(command: Callable[[], int], said: Path, killer: "_Killer", parent: int) -> None:
    """The forked process: never returns. It ends when what would kill it is ended, by Ctrl-C say."""
    code = 70
    try:
        os.setsid()
        end_with(parent)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 2)
        killer.listen()
        code = command()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


class _Killer:
    """Keeps a list of the changes to the files of a run, and kills the process before one of them."""

    def __init__(self, run: Path, log: Path, at: int) -> None:
        self.run, self.at, self.count = f"{run}{os.sep}", at, 0
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND)

    def listen(self) -> None:
        """From here on every change of this process is heard of."""
        sys.addaudithook(self._hear)
        synchronise = os.fsync

        def fsync(fd: Any) -> None:
            """Python has no audit event for this call, at which the content of a file is there but not its name."""
            self._count("os.fsync", _opened(fd))
            synchronise(fd)

        os.fsync = fsync

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if event in CHANGES:
            self._count(event, _path(given[0], given[-1]))
        elif event == "open" and isinstance(given[2], int) and given[2] & WRITING and not isinstance(given[0], int):
            self._count(event, _path(given[0]))

    def _count(self, event: str, path: str) -> None:
        if not path.startswith(self.run):
            return
        self.count += 1
        os.write(self.log, f"{time.monotonic()} {event} {path.removeprefix(self.run)}\n".encode())
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def _path(path: Any, folder: Any = -1) -> str:
    """A path that may be relative to an open folder, as it is when a tree of files is deleted."""
    name = os.fsdecode(path)
    is_open = isinstance(folder, int) and folder > 0 and not name.startswith(os.sep)
    return f"{_opened(folder)}{os.sep}{name}" if is_open else name


def _opened(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _linger() -> list[str]:
    """Waits for all other processes of a command that has ended. Gives those that are left, and kills them."""
    deadline = time.monotonic() + LINGER_SECONDS
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return []
    left = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            left.append(" ".join(process.cmdline()))
            process.kill()
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return left
