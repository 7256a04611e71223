"""Peak memory in a process of its own."""

import os
import platform
import signal
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest

from subquad.measure.memory import give_back_at_once, in_fresh_process, limit_memory, peak_extra_bytes

MEGABYTE = 2**20


def peak_of(megabytes: int) -> tuple[int, int]:
    """The process and what filling so much memory adds to its peak."""
    return os.getpid(), peak_extra_bytes(lambda: bytearray(b"x") * (megabytes * MEGABYTE))


@pytest.mark.parametrize("megabytes", [40, 200])
def test_the_peak_is_what_was_used(megabytes: int) -> None:
    process, peak = in_fresh_process(peak_of, megabytes)
    assert process != os.getpid()
    assert abs(peak / MEGABYTE - megabytes) < 8


def peak_after_others(gives_back: bool) -> int:
    """Of 40 pieces of a megabyte each, after twice as many were freed in front of one that is held."""
    if gives_back:
        give_back_at_once()
    freed = [bytearray(b"x") * MEGABYTE for _ in range(2)]
    del freed[0]  # from here on glibc itself would not ask the system for pieces of this size
    freed += [bytearray(b"x") * MEGABYTE for _ in range(80)]
    held = bytearray(b"x") * MEGABYTE
    freed.clear()
    peak = peak_extra_bytes(lambda: [bytearray(b"x") * MEGABYTE for _ in range(40)])
    assert len(held) == MEGABYTE
    return peak


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_memory_that_was_freed_before_is_seen_again() -> None:
    assert in_fresh_process(peak_after_others, False) < 20 * MEGABYTE
    assert abs(in_fresh_process(peak_after_others, True) / MEGABYTE - 40) < 4


def fails() -> None:
    raise ValueError("no")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_noticed() -> None:
    with pytest.raises(BrokenProcessPool):
        in_fresh_process(dies)


def test_an_error_comes_back() -> None:
    with pytest.raises(ValueError, match="no"):
        in_fresh_process(fails)


def fill_below_a_limit(megabytes: int) -> int:
    limit_memory(64 * MEGABYTE)
    return len(bytearray(megabytes * MEGABYTE))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps the limit")
def test_memory_beyond_the_limit_is_refused() -> None:
    assert in_fresh_process(fill_below_a_limit, 32) == 32 * MEGABYTE
    with pytest.raises(MemoryError):
        in_fresh_process(fill_below_a_limit, 128)
