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

from subquad import cli, native
from subquad.errors import SubquadError
from subquad.native import build
from subquad.ops import linear
from tests.native.forms import inputs, maps_of

FASTEST = native.target() if native.is_there() else ""


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
    for cached in (native.missing, native._library, native.target, native.kernel, native._by_variable):
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


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Variables that the loader reads again."""
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def test_a_wrong_word_in_the_variable_is_named(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    environment.setenv(native.VARIABLE, "fast")
    with pytest.raises(SubquadError, match="SUBQUAD_KERNELS is fast, but must be native or torch or fla"):
        attend()
    for command in (["compare"], ["train", "copy"]):
        assert cli.main([*command, "--out", str(tmp_path / command[0])]) == cli.USER_MISTAKE
        said = capsys.readouterr().err
        assert "SUBQUAD_KERNELS is fast" in said
        assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not native.is_there(), reason="no native kernels")
def test_a_build_that_this_processor_does_not_run_is_named(environment: pytest.MonkeyPatch) -> None:
    """A build that the library has, too: without its instructions, the process would end."""
    environment.setenv(native.TARGET_VARIABLE, "avx1024")
    with pytest.raises(SubquadError, match=f"SUBQUAD_TARGET is avx1024, but this processor runs .*{FASTEST}"):
        attend()
    faster = (build.Target("avx1024", (), 128), *build.targets_of())
    environment.setattr(native, "targets_of", lambda: faster)
    forget()
    with pytest.raises(SubquadError, match="SUBQUAD_TARGET is avx1024"):
        attend()


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


FAKE_COMPILER = """
import pathlib, sys, time
time.sleep(0.05)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"compiled" * 1000)
"""


@pytest.fixture
def fake_compiler(tmp_path: Path) -> list[str]:
    """A compiler that writes the same into every file."""
    script = tmp_path / "compiler.py"
    script.write_text(FAKE_COMPILER)
    return [sys.executable, "-I", "-S", str(script)]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, fake_compiler: list[str]) -> None:
    """Nothing half-written is left beside it."""
    taken = tmp_path / "taken"
    (taken / "kernels.so/folder").mkdir(parents=True)
    for path in (taken / "kernels.so", tmp_path / "compiler.py/kernels.so"):
        with pytest.raises(build.BuildError, match=r"kernels\.so cannot be written .*install subquad where you may write"):
            build.compile_kernels(fake_compiler, path, machine="x86_64")
    assert [path.name for path in taken.iterdir()] == ["kernels.so"]


def test_two_processes_compile_at_once(tmp_path: Path, fake_compiler: list[str]) -> None:
    folder = tmp_path / "native"
    shutil.copytree(build.SOURCES, folder, ignore=shutil.ignore_patterns("__pycache__", build.library_name()))
    before = {path.name for path in folder.iterdir()}
    environment = {**os.environ, "CC": " ".join(fake_compiler)}
    runs = [subprocess.Popen([sys.executable, "-I", str(folder / "build.py")], env=environment) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    assert (folder / build.library_name()).read_bytes() == b"compiled" * 1000
    assert {path.name for path in folder.iterdir()} - before == {build.library_name()}


def test_without_a_compiler_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | {"PATH": str(tmp_path)}
    run = subprocess.run([sys.executable, build.__file__], env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr == "no C compiler was found: install one (cc, clang or gcc), or name it in the variable CC\n"


def test_no_memory_is_an_error_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that finds no memory returns 1."""
    monkeypatch.setattr(native, "kernel", lambda name, number: lambda address: ctypes.c_int(1).value)
    with pytest.raises(MemoryError, match="use shorter or fewer sequences"):
        native.call("causal", "float", [0])
