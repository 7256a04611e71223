"""Peak memory of a function call, and a limit on memory."""

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
    """Returns the result of `work(*arguments)` from a new Python process. Both must be picklable.

    Raises `BrokenProcessPool` if the process is killed, for example for lack of memory.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with, initargs=(os.getpid(),)) as pool:
        return pool.submit(work, *arguments).result()


def peak_extra_bytes(run: Callable[[], object]) -> int:
    """Returns the peak resident memory of this process during `run()` minus the memory before.

    The process should have run the same work on tiny inputs before, so that libraries and buffers are loaded, and nothing
    larger: memory that was freed to the allocator before would be reused without being counted.
    """
    before = _forget_peak()
    run()
    return max(0, _peak() - before)


def give_back_at_once() -> None:
    """Makes the allocator return freed tensors to the system, so that peaks are reproducible. This costs time."""
    with suppress(OSError, TypeError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 2**16)


def limit_memory(limit_bytes: int) -> None:
    """Limits further allocations of this process to `limit_bytes`. Has an effect on Linux only."""
    if not _STATUS.exists():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + limit_bytes, hard))


def _forget_peak() -> int:
    """Returns the resident bytes; on Linux the peak is reset to them."""
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
