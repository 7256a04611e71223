"""The wheels that `make wheels` puts into dist: what they hold, and that the kernels in them run."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from subquad.native.build import TARGETS
from tests.native.calls import KERNELS, portable_calls
from tests.native.replaying import assert_same_numbers, compile_replay, replay
from tests.native.symbols import Library, read_library

pytestmark = pytest.mark.wheels
ROOT = Path(__file__).parents[2]
PLATFORMS = {
    "manylinux_2_17_x86_64": ("kernels.so", "x86_64"),
    "manylinux_2_17_aarch64": ("kernels.so", "aarch64"),
    "macosx_11_0_arm64": ("kernels.dylib", "aarch64"),
    "win_amd64": ("kernels.dll", "x86_64"),
}
OF_THE_LINKER = {"_init", "_fini", "_mh_dylib_header", "__dso_handle"}  # names that a linker adds to every library
every_platform = pytest.mark.parametrize("platform", PLATFORMS)
ARM_LIBRARIES = Path("/usr/aarch64-linux-gnu")  # of Debian's package libc6-arm64-cross


def wheel_of(platform: str) -> Path:
    wheels = sorted((ROOT / "dist").glob(f"subquad-*-py3-none-{platform}*.whl"))
    assert wheels, f"there is no wheel for {platform} in dist: run `make wheels`"
    return wheels[-1]


def library_of(platform: str) -> bytes:
    with zipfile.ZipFile(wheel_of(platform)) as wheel:
        return wheel.read(f"subquad/native/{PLATFORMS[platform][0]}")


@every_platform
def test_a_wheel_holds_one_library_and_its_sources(platform: str) -> None:
    with zipfile.ZipFile(wheel_of(platform)) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("subquad/native/")]
        libraries = [name for name in names if Path(name).suffix in (".so", ".dylib", ".dll")]
        assert libraries == [f"subquad/native/{PLATFORMS[platform][0]}"]
        sources = {path.name for path in (ROOT / "src/subquad/native").iterdir() if path.suffix in (".c", ".h", ".py")}
        assert sources <= {Path(name).name for name in names}
        description = wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))).decode()
    assert "Root-Is-Purelib: false" in description
    assert f"Tag: py3-none-{platform}\n" in description


@every_platform
def test_a_library_exports_every_kernel_and_nothing_else(platform: str) -> None:
    library = read_library(library_of(platform))
    assert library.machine == PLATFORMS[platform][1]
    builds = [f"{target.name}_{number}" for target in TARGETS[library.machine] for number in ("float", "double")]
    wanted = {f"subquad_{kernel}_{build}" for kernel in (*KERNELS, "exponentials") for build in builds}
    assert library.exports - OF_THE_LINKER == wanted | {"subquad_target", "subquad_sources", "subquad_share_threads"}


def glibc(library: Library) -> list[tuple[int, ...]]:
    assert all(version.startswith("GLIBC_") for version in library.versions)
    return [tuple(map(int, re.findall(r"\d+", version))) for version in library.versions]


@every_platform
def test_a_library_needs_no_more_than_its_tag_says(platform: str) -> None:
    library = read_library(library_of(platform))
    if platform.startswith("manylinux"):
        assert library.needs <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-aarch64.so.1"}
        assert max(glibc(library)) <= (2, 17)
    elif platform.startswith("macosx"):
        assert library.needs - {"@rpath/kernels.dylib"} <= {"/usr/lib/libSystem.B.dylib"}
        assert library.versions == {"macOS 11.0"}
    else:  # the C library of Windows 10
        assert all(re.fullmatch(r"kernel32\.dll|api-ms-win-crt-[a-z0-9-]+\.dll", name.lower()) for name in library.needs)


def run_emulated(platform: str, zig_target: str, emulator: list[str], tmp_path: Path) -> str:
    """Makes all recorded calls with the library of a wheel on an emulated processor; returns the build that it chose."""
    if shutil.which(emulator[0]) is None:
        pytest.skip(f"{emulator[0]} is not installed (Debian's package qemu-user-static)")
    library = tmp_path / PLATFORMS[platform][0]
    library.write_bytes(library_of(platform))
    compile_replay(
        [str(ROOT / ".venv-wheels/bin/python"), "-m", "ziglang", "cc", "-target", zig_target], tmp_path / "replay"
    )
    calls = portable_calls()
    used, results = replay(calls, [*emulator, str(tmp_path / "replay")], library, tmp_path)
    assert_same_numbers(calls, results)
    return used


@pytest.mark.skipif(sys.platform != "linux", reason="qemu-user emulates Linux on Linux")
def test_the_library_for_aarch64_gives_the_same_numbers(tmp_path: Path) -> None:
    if not ARM_LIBRARIES.exists():
        pytest.skip("there is no C library for aarch64 (Debian's package libc6-arm64-cross)")
    emulator = ["qemu-aarch64-static", "-L", str(ARM_LIBRARIES)]
    assert run_emulated("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", emulator, tmp_path) == "neon"


@pytest.mark.skipif(sys.platform != "linux", reason="qemu-user emulates Linux on Linux")
@pytest.mark.parametrize(("processor", "build"), [("Nehalem-v1", "sse2"), ("Haswell-v1", "avx2")])
def test_older_processors_run_their_build(tmp_path: Path, processor: str, build: str) -> None:
    """An instruction that the processor does not have would end the program."""
    emulator = ["qemu-x86_64-static", "-cpu", processor]
    assert run_emulated("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", emulator, tmp_path) == build


def test_the_source_distribution_holds_sources_and_no_library(tmp_path: Path) -> None:
    """The kernels are compiled where it is installed."""
    python = str(ROOT / ".venv-wheels/bin/python")
    subprocess.run([python, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], cwd=ROOT, check=True)
    archive = next(tmp_path.glob("subquad-*.tar.gz"))
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    folder = next((tmp_path / "unpacked").iterdir())
    assert (folder / "hatch_build.py").exists()
    native = {path.name for path in (folder / "src/subquad/native").iterdir()}
    assert native >= {"kernels.c", "dispatch.c", "vector.h", "build.py"}
    assert not [name for name in native if Path(name).suffix in (".so", ".dylib", ".dll")]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({"SUBQUAD_BUILD_NATIVE": "0"}, "SUBQUAD_BUILD_NATIVE is 0"), ({"CC": "no-such-compiler"}, "cannot be run")],
)
def test_without_the_kernels_a_wheel_is_for_all_platforms(tmp_path: Path, variables: dict[str, str], reason: str) -> None:
    """One line says what is missed."""
    command = [str(ROOT / ".venv-wheels/bin/python"), "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    warnings = [line for line in (run.stdout + run.stderr).splitlines() if "Native kernels are left out" in line]
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert [path.name.split("-", 2)[2] for path in tmp_path.glob("*.whl")] == ["py3-none-any.whl"]
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith((".so", ".dylib", ".dll"))]


@pytest.mark.skipif(sys.platform != "linux", reason="the tag of Linux")
def test_the_compiler_that_is_there_makes_a_wheel_for_this_platform(tmp_path: Path) -> None:
    command = [str(ROOT / ".venv-wheels/bin/python"), "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert [path.name.split("-", 2)[2] for path in tmp_path.glob("*.whl")] == [f"py3-none-linux_{os.uname().machine}.whl"]
