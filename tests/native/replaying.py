"""Compiles `replay.c`, runs it with a library, and compares what it gives with what was recorded."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.native.forms import assert_as_close_as_rounding
from tests.native.recording import Call, numbers, read_results, write_calls

SOURCE = Path(__file__).parent / "replay.c"
TOLERANCES = {"float": 2e-5, "double": 1e-10}


def compile_replay(compiler: Sequence[str], to: Path, flags: Sequence[str] = ()) -> None:
    """Compiles the program that makes recorded calls."""
    subprocess.run(
        [*compiler, "-std=c11", "-Wall", "-Wextra", "-O1", *flags, str(SOURCE), "-o", str(to), "-ldl"], check=True
    )


def replay(
    calls: list[Call],
    program: Sequence[str],
    library: Path,
    folder: Path,
    target: str = "",
    variables: Mapping[str, str] | None = None,
) -> tuple[str, list[list[bytes]]]:
    """Makes calls in another process. Returns the name of the build that ran, and all buffers after each call."""
    given, results = folder / "calls", folder / "results"
    write_calls(calls, given)
    command = [*program, str(library), target, str(given), str(results)]
    run = subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-4000:]
    assert "runtime error" not in run.stderr, run.stderr[:4000]
    return run.stdout.strip(), read_results(calls, results)


def assert_same_numbers(calls: list[Call], results: list[list[bytes]]) -> None:
    """Every buffer holds what it held when the call was recorded, up to rounding."""
    for call, memory in zip(calls, results, strict=True):
        for buffer, content in zip(call.buffers, memory, strict=True):
            if content == buffer.after:
                continue
            ours, wanted = numbers(content, buffer.dtype), numbers(buffer.after, buffer.dtype)
            coarse = buffer.dtype.itemsize == 2
            tolerance = 2**-7 if coarse else TOLERANCES[call.number]
            assert_as_close_as_rounding([ours], [wanted], tolerance)
