"""Compiles the native kernels while the package is built, for wheels and for editable installs.

SUBQUAD_BUILD_NATIVE=0 leaves them out. SUBQUAD_WHEEL_FOR names one of `PLATFORMS`, for which the compiler of the package
`ziglang` then compiles on any machine (`make wheels`).
"""

import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

NATIVE = Path(__file__).parent / "src/subquad/native"
SWITCH = "SUBQUAD_BUILD_NATIVE"
WHEEL_FOR = "SUBQUAD_WHEEL_FOR"


@dataclass(frozen=True)
class Platform:
    """A platform that wheels are made for."""

    compiler_target: str
    """The platform in the words of zig, with the oldest version of its C library or system that is supported."""
    machine: str
    """Processor, one of `TARGETS` in build.py."""
    system: str
    """Operating system, as in `sys.platform`."""
    tag: str
    """The platform in the name of a wheel."""


PLATFORMS = {
    "linux-x86_64": Platform("x86_64-linux-gnu.2.17", "x86_64", "linux", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    "linux-aarch64": Platform("aarch64-linux-gnu.2.17", "aarch64", "linux", "manylinux_2_17_aarch64.manylinux2014_aarch64"),
    "macos-arm64": Platform("aarch64-macos.11.0", "aarch64", "darwin", "macosx_11_0_arm64"),
    "windows-x86_64": Platform("x86_64-windows-gnu", "x86_64", "win32", "win_amd64"),
}


class NativeKernels(BuildHookInterface[Any]):
    """Adds the compiled kernels to a wheel, or puts them beside their sources for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles before the files of the package are collected."""
        if self.target_name != "wheel":
            return
        if os.environ.get(SWITCH) == "0":
            self._say(f"{SWITCH} is 0")
            return
        build = _load_build()
        if wanted := os.environ.get(WHEEL_FOR):
            self._cross_compile(build, PLATFORMS[wanted], build_data)
            return
        compiler = build.find_compiler()
        if compiler is None:
            self._say("no C compiler was found (cc, clang or gcc, or the variable CC)")
            return
        is_editable = version == "editable"
        folder = NATIVE if is_editable else Path(tempfile.mkdtemp())
        try:
            build.compile_kernels(compiler, folder / build.library_name())
        except build.BuildError as error:
            self._say(str(error))
            return
        if not is_editable:
            tag = next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
            _include(folder / build.library_name(), tag, build_data)

    def _say(self, reason: str) -> None:
        """Says in one line that the kernels are left out, and what that costs."""
        self.app.display_warning(f"Native kernels are left out: {reason}. Attention runs on PyTorch alone, more slowly.")

    def _cross_compile(self, build: ModuleType, platform: Platform, build_data: dict[str, Any]) -> None:
        compiler = [sys.executable, "-m", "ziglang", "cc", "-target", platform.compiler_target]
        library = Path(tempfile.mkdtemp()) / build.library_name(platform.system)
        build.compile_kernels(compiler, library, platform.machine, platform.system, ("-s",))
        _include(library, platform.tag, build_data)


def _include(library: Path, tag: str, build_data: dict[str, Any]) -> None:
    """Adds a library to a wheel, which then is for one platform and any version of Python."""
    build_data["force_include"][str(library)] = f"subquad/native/{library.name}"
    build_data["pure_python"] = False
    build_data["tag"] = f"py3-none-{tag}"


def _load_build() -> ModuleType:
    """Loads build.py by its path: the package cannot be imported yet."""
    specification = importlib.util.spec_from_file_location("subquad_native_build", NATIVE / "build.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module
