"""Compiles the native kernels: `python -m subquad.native`, and `hatch_build.py` when the package is installed.

It imports nothing but the standard library, since it runs before the package is installed.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-Werror=vla")
FLAGS = ("-std=c11", "-O2", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=hidden", *WARNINGS)
TYPES = {"float": ("float", 0), "double": ("double", 1)}


class BuildError(Exception):
    """The kernels could not be compiled. The message is one line that says why."""


@dataclass(frozen=True)
class Target:
    """A build of the kernels for processors with certain instructions."""

    name: str
    """Name of the target, which the names of its functions end with."""
    flags: tuple[str, ...]
    """Flags that allow the compiler to use these instructions."""
    vector_bytes: int
    """Size of a vector in bytes."""


TARGETS: dict[str, tuple[Target, ...]] = {
    "x86_64": (
        Target("avx512", ("-march=x86-64-v4", "-mprefer-vector-width=512"), 64),
        Target("avx2", ("-march=x86-64-v3",), 32),
        Target("sse2", ("-march=x86-64",), 16),
    ),
    "aarch64": (Target("neon", (), 16),),
}
MACHINES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
"""Other names of the processors in `TARGETS`."""


def library_name(system: str = sys.platform) -> str:
    """Returns the file name of the compiled library on an operating system."""
    return {"win32": "kernels.dll", "darwin": "kernels.dylib"}.get(system, "kernels.so")


@cache
def sources_hash() -> str:
    """Returns a hash of the C sources, by which a library that was compiled from others is recognised."""
    total = hashlib.sha256()
    for path in sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h")):
        total.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return total.hexdigest()[:16]


def find_compiler() -> list[str] | None:
    """Returns the command of a C compiler, from the variable CC or the usual names; None if there is none."""
    if named := os.environ.get("CC"):
        command = named.split()
    else:
        names = ("clang", "clang-cl", "gcc") if sys.platform == "win32" else ("cc", "clang", "gcc")
        command = [next((name for name in names if shutil.which(name)), "")]
    if "clang-cl" in Path(command[0]).stem:
        command.append("--driver-mode=gcc")  # it then takes the flags that clang takes
    return command if command[0] else None


def targets_of(machine: str = platform.machine()) -> tuple[Target, ...]:
    """Returns the targets of a processor, the fastest first. Raises `BuildError` if it has none."""
    machine = MACHINES.get(machine.lower(), machine.lower())
    if machine not in TARGETS:
        raise BuildError(f"there are no native kernels for the processor {machine}, only for {' and '.join(TARGETS)}")
    return TARGETS[machine]


def compile_kernels(
    compiler: Sequence[str],
    to: Path,
    machine: str = platform.machine(),
    system: str = sys.platform,
    extra_flags: Sequence[str] = (),
) -> None:
    """Compiles and links all targets of a processor into one library.

    Raises `BuildError` if the compiler fails, or if there are no targets for the processor.
    """
    targets = targets_of(machine)
    of_system = ("-DWIN32_LEAN_AND_MEAN",) if system == "win32" else ("-fPIC",)
    libraries = () if system == "win32" else ("-lm", "-lpthread")
    common = [*compiler, *FLAGS, *of_system, *extra_flags, "-c"]
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"dispatch": [*common, f'-DSOURCES="{sources_hash()}"', str(SOURCES / "dispatch.c")]}
        for target in targets:
            for name, (real, is_double) in TYPES.items():
                defines = (f"-DREAL={real}", f"-DDOUBLE={is_double}", f"-DBYTES={target.vector_bytes}")
                suffix = f"-DSUFFIX=_{target.name}_{name}"
                flags = _zig_flags(target.flags) if "ziglang" in compiler else target.flags
                jobs[f"{target.name}_{name}"] = [*common, *flags, *defines, suffix, str(SOURCES / "kernels.c")]
        objects = [f"{folder}/{name}.o" for name in jobs]
        commands = [[*job, "-o", to_object] for job, to_object in zip(jobs.values(), objects, strict=True)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        linked = Path(folder) / to.name
        _run([*compiler, *extra_flags, "-shared", *objects, "-o", str(linked), *libraries])
        _put(linked, to)


def _put(library: Path, to: Path) -> None:
    """Moves a compiled library to its place, which another process may do at the same time.

    A library in use is replaced, not overwritten.
    """
    new = to.with_suffix(f".{os.getpid()}")
    try:
        shutil.copyfile(library, new)
        new.replace(to)
    except OSError as error:
        reason = f"{to} cannot be written ({error.strerror})"
        raise BuildError(f"{reason}: install subquad where you may write, such as in a virtual environment") from None
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def _zig_flags(flags: Sequence[str]) -> list[str]:
    """Returns flags as zig takes them, which names processors with underscores."""
    return [flag.replace("x86-64-", "x86_64_").replace("x86-64", "x86_64") for flag in flags]


def _run(command: Sequence[str]) -> None:
    """Runs a command; what it printed is shown where it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"the C compiler {command[0]} cannot be run: {error.strerror}") from None
    if result.returncode:
        print(result.stderr, file=sys.stderr)
        raise BuildError(f"the C compiler {command[0]} failed with exit code {result.returncode}")


def main() -> None:
    """Compiles the kernels into this folder."""
    compiler = find_compiler()
    if compiler is None:
        raise SystemExit("no C compiler was found: install one (cc, clang or gcc), or name it in the variable CC")
    try:
        compile_kernels(compiler, SOURCES / library_name())
    except BuildError as error:
        raise SystemExit(f"native kernels were not compiled: {error}") from None


if __name__ == "__main__":
    main()
