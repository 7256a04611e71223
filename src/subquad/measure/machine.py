"""The machine and the versions that figures depend on."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

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


def describe() -> dict[str, Any]:
    """The processor, its cores, the memory and the system."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
    }


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether figures of a machine hold for another. Memory is not compared: virtual machines change it at boot."""
    return all(one.get(name) == other.get(name) for name in ("processor", "cores", "system"))


def processor() -> str:
    """Name of the processor."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def circumstances(command: str) -> dict[str, Any]:
    """What run.json says about any run: versions, the machine, the command, and when it was started."""
    started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return {"versions": versions(), "machine": describe(), "command": command, "started": started}
