"""How much memory a piece of work needs, read in a process of its own."""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_STATUS = Path("/proc/self/status")


def in_fresh_process(work: Callable[..., T], *arguments: Any) -> T:
    """The result of `work(*arguments)` from a new Python process. Both must be picklable.

    A process that is killed, by a lack of memory say, raises `BrokenProcessPool` here.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def peak_extra_bytes(prepare: Callable[[], Callable[[], object]], warm_up: Callable[[], object]) -> int:
    """The peak of this process' resident memory during `prepare()()` above what it was once prepared.

    `warm_up` does the same on something tiny, so that libraries and their buffers are in memory before. Meant for a fresh
    process: memory that was used before and given back to the allocator would be used again unseen.
    """
    warm_up()
    run = prepare()
    before = _forget_peak()
    run()
    return max(0, _peak() - before)


def _forget_peak() -> int:
    """The resident bytes now. On Linux the peak starts again from here."""
    if not _STATUS.exists():
        return _peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    if _STATUS.exists():
        return _status("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
