"""The kernels compiled with AddressSanitizer and UndefinedBehaviorSanitizer: `make test-sanitized`."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from subquad.native.build import compile_kernels, find_compiler, library_name
from tests.native.calls import portable_calls
from tests.native.replaying import assert_same_numbers, compile_replay, replay
from tests.native.test_numbers import runnable_targets

pytestmark = [
    pytest.mark.sanitized,
    pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers of gcc on Linux"),
]
FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TESTS = ("tests/native/test_values.py", "tests/native/test_threads.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sanitized") / library_name()
    compiler = find_compiler()
    assert compiler is not None
    compile_kernels(compiler, path, extra_flags=FLAGS)
    return path


@pytest.mark.parametrize("target", runnable_targets())
def test_every_kernel_in_a_program_of_its_own(library: Path, tmp_path: Path, target: str) -> None:
    """All buffers are allocated with exactly their size, and nothing that a kernel allocates is left behind."""
    compiler = find_compiler()
    assert compiler is not None
    compile_replay(compiler, tmp_path / "replay", FLAGS)
    calls = portable_calls()
    variables = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    used, results = replay(calls, [str(tmp_path / "replay")], library, tmp_path, target, variables)
    assert used == target
    assert_same_numbers(calls, results)


def test_the_sanitizers_are_felt(library: Path, tmp_path: Path) -> None:
    """A buffer that is one number too short ends the program."""
    compiler = find_compiler()
    assert compiler is not None
    compile_replay(compiler, tmp_path / "replay", FLAGS)
    call = next(call for call in portable_calls() if call.name == "causal")  # which uses all of its buffers
    for index, buffer in enumerate(call.buffers):
        short = replace(buffer, before=buffer.before[:-4], after=buffer.after[:-4])
        shortened = replace(call, buffers=(*call.buffers[:index], short, *call.buffers[index + 1 :]))
        with pytest.raises(AssertionError, match="AddressSanitizer: heap-buffer-overflow"):
            replay([shortened], [str(tmp_path / "replay")], library, tmp_path)


def test_under_python(library: Path) -> None:
    """The tests of values and threads, with the sanitizers loaded before Python, whose own leaks are not looked for."""
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    variables = {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0",
        "SUBQUAD_TEST_LIBRARY": str(library),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not forked", *TESTS]
    run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "runtime error" not in run.stderr
