"""Finding the compiled library, and doing without it."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from subquad import native
from subquad.native import build
from subquad.ops import linear
from tests.native.forms import inputs, maps_of


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path for another library, which is looked for in place of the compiled one."""
    path = tmp_path / build.library_name()
    monkeypatch.setattr(native, "LIBRARY", path)
    forget()
    yield path
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Makes the loader look for the library again."""
    for cached in (native.missing, native._library, native.target, native.kernel):
        cached.cache_clear()


def attend() -> torch.Tensor:
    q, k, v = inputs(70, 70, 7, 5)
    return linear.attend(q, k, v, maps_of("elu", 7))


def test_without_a_library_pytorch_computes(library: Path) -> None:
    assert native.missing() == native.MISSING
    assert not native.is_there()
    assert not native.is_chosen()
    assert native.describe() == "torch"
    assert attend().isfinite().all()


def test_a_file_that_is_no_library_is_named(library: Path) -> None:
    library.write_bytes(b"not a library")
    assert "cannot be loaded" in (native.missing() or "")
    assert attend().isfinite().all()


@pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler")
def test_a_library_of_other_sources_is_not_used(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structures may be others: calling it could write anywhere."""
    compiler = build.find_compiler()
    assert compiler is not None
    source = library.with_suffix(".c")
    for text, is_used in (
        ('const char *subquad_sources(void) { return "other"; }', False),
        ("int unrelated(void) { return 0; }", False),
        (f'const char *subquad_sources(void) {{ return "{build.sources_hash()}"; }}', True),
    ):
        source.write_text(text)
        renamed = library.with_name(f"{len(text)}-{library.name}")  # a name is loaded once
        subprocess.run([*compiler, "-shared", "-fPIC", str(source), "-o", str(renamed)], check=True)
        monkeypatch.setattr(native, "LIBRARY", renamed)
        forget()
        assert (native.missing() is None) == is_used


def test_a_changed_source_changes_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line endings do not: a checkout on Windows has others."""
    before = build.sources_hash()
    shutil.copytree(build.SOURCES, tmp_path / "native", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(build, "SOURCES", tmp_path / "native")
    header = tmp_path / "native/vector.h"
    try:
        for content, is_same in (
            (header.read_bytes(), True),
            (header.read_bytes().replace(b"\n", b"\r\n"), True),
            (header.read_bytes() + b"/* */", False),
        ):
            header.write_bytes(content)
            build.sources_hash.cache_clear()
            assert (build.sources_hash() == before) == is_same
    finally:
        build.sources_hash.cache_clear()


@pytest.mark.parametrize(("variables", "described"), [({}, "native"), ({native.VARIABLE: "torch"}, "torch")])
def test_the_variable_chooses(variables: dict[str, str], described: str) -> None:
    command = [sys.executable, "-c", "from subquad import native; print(native.chosen())"]
    environment = {name: value for name, value in os.environ.items() if name != native.VARIABLE} | variables
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip() == described


def test_the_compiler_is_that_of_the_variable_or_the_one_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "some-cc -m64")
    assert build.find_compiler() == ["some-cc", "-m64"]
    monkeypatch.setenv("CC", "clang-cl")
    assert build.find_compiler() == ["clang-cl", "--driver-mode=gcc"]
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert build.find_compiler() is None


def test_what_cannot_be_compiled_is_said_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.so"
    for compiler, machine, words in (
        (["no-such-compiler"], "x86_64", "cannot be run"),
        ([sys.executable, "-c", "raise SystemExit(1)"], "x86_64", "failed with exit code 1"),
        (["cc"], "s390x", "no native kernels for the processor s390x"),
    ):
        with pytest.raises(build.BuildError, match=words) as raised:
            build.compile_kernels(compiler, path, machine=machine)
        assert "\n" not in str(raised.value)
        assert not path.exists()
    capfd.readouterr()


def test_no_memory_is_an_error_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that finds no memory returns 1."""
    monkeypatch.setattr(native, "kernel", lambda name, number: lambda address: ctypes.c_int(1).value)
    with pytest.raises(MemoryError, match="use shorter or fewer sequences"):
        native.call("causal", "float", [0])
