"""The memory that this process may use, and a check that refuses work that needs more than that."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from subquad.errors import SubquadError
from subquad.words import amount

_CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """Memory that this process can use: memory and swap of the machine, or a lower limit set for the process."""
    installed = psutil.virtual_memory().total + psutil.swap_memory().total
    return min(installed, *_resource_limits(), *_cgroup_limits())


def require_memory(what: str, needed_bytes: int, advice: str) -> None:
    """Raises `SubquadError` if `needed_bytes` exceed the memory that this process can use.

    The estimate should be a lower bound, so that work that would fit is never refused.
    """
    available = memory_bytes()
    if needed_bytes > available:
        raise SubquadError(
            f"{what} would need at least {amount(needed_bytes, brief=True)} of memory, but there are "
            f"{amount(available, brief=True)}: {advice}"
        )


def _resource_limits() -> Iterator[int]:
    """Memory limits of this process in bytes, such as those that `ulimit -v` sets."""
    if os.name != "posix":
        return
    import resource

    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield soft


def _cgroup_limits() -> Iterator[int]:
    """Memory limits in bytes of the control groups that this process belongs to, parent groups included."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            is_first_version = "memory" in controllers.split(",")
            if not is_first_version and controllers:
                continue
            root = _CGROUPS / "memory" if is_first_version else _CGROUPS
            name = "memory.limit_in_bytes" if is_first_version else "memory.max"
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # no such file, or "max"
                    yield int((folder / name).read_text())
                if folder == root:
                    break
