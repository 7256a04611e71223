"""No kernel reads or writes beyond the memory that it is given."""

import os
import subprocess
import sys

import pytest

from tests.native.calls import KERNELS, every_kernel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by POSIX calls")


def test_the_collection_of_calls_reaches_every_kernel() -> None:
    assert {call.name for call in every_kernel()} == KERNELS


def test_nothing_beside_a_buffer_is_touched() -> None:
    """In a process of its own, which ends by a signal if a kernel touches a page beside a buffer."""
    command = [sys.executable, "-m", "tests.native.guarded"]
    result = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.endswith(" calls\n")


def test_guards_are_felt() -> None:
    """Reading one byte behind a guarded buffer ends a process."""
    for read in ("memory.address + memory.size", "memory.address - 1"):
        before = read.endswith("- 1")
        program = f"""
import ctypes
from tests.native.guards import Guarded
memory = Guarded(bytes(100), before={before})
ctypes.string_at(memory.address, memory.size)
print("inside", flush=True)
ctypes.string_at({read}, 1)
"""
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert result.stdout == "inside\n"
        assert result.returncode < 0
