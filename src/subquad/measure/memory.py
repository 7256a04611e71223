"""Peak memory of work, and a limit on it."""

import ctypes
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from subquad.measure.lifeline import end_with

T = TypeVar("T")

_STATUS = Path("/proc/self/status")
_MMAP_THRESHOLD = -3  # in glibc's malloc.h


def in_fresh_process(work: Callable[..., T], *arguments: Any) -> T:
    """The result of `work(*arguments)` from a new Python process. Both must be picklable.

    A process that is killed, by a lack of memory say, raises `BrokenProcessPool` here.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with, initargs=(os.getpid(),)) as pool:
        return pool.submit(work, *arguments).result()


def peak_extra_bytes(run: Callable[[], object]) -> int:
    """The peak of this process' resident memory during `run()` above what it was before.

    Meant for a process in which the same was done before on something tiny, so that libraries and their buffers are in
    memory, and nothing larger: memory that was used before and given back to the allocator would be used again unseen.
    """
    before = _forget_peak()
    run()
    return max(0, _peak() - before)


def give_back_at_once() -> None:
    """From here on freed tensors go back to the system, as glibc would not always do: peaks are then of what is held, and
    repeat. It costs time.
    """
    with suppress(OSError, TypeError, AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 2**16)


def limit_memory(limit_bytes: int) -> None:
    """From here on this process gets so many bytes more; then its allocations fail. On Linux only."""
    if not _STATUS.exists():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + limit_bytes, hard))


def _forget_peak() -> int:
    """The resident bytes now. On Linux the peak starts again from here."""
    if not _STATUS.exists():
        return _peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    if _STATUS.exists():
        return _status("VmHWM")
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
