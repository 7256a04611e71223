"""The machine and the versions of packages that figures were measured with."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from subquad import native

PACKAGES = ("subquad", "torch", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that figures depend on."""
    known = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return known


def cores() -> int:
    """Number of cores that this process may use, as far as the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """The processor, its cores, the memory and the system."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
    }


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two descriptions are of one machine. Memory does not count: virtual machines change it between boots."""
    return all(one.get(name) == other.get(name) for name in ("processor", "cores", "system"))


def processor() -> str:
    """The name of the processor as the system gives it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def circumstances(command: str) -> dict[str, Any]:
    """What run.json says about any run: versions, the machine, the kernels, the command, and when it was started."""
    started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    about = {"versions": versions(), "machine": describe(), "kernels": native.describe()}
    return about | {"command": command, "started": started}
