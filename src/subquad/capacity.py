"""How much memory there is, and the refusal of what would need more: before anything is built."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from subquad.errors import SubquadError
from subquad.words import amount

_CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """Memory that this process can have: that of the machine with its swap, or less where a limit is set."""
    installed = psutil.virtual_memory().total + psutil.swap_memory().total
    return min(installed, *_resource_limits(), *_cgroup_limits())


def require_memory(what: str, needed_bytes: int, advice: str) -> None:
    """Refuses work that needs more memory than there is. The estimate should be a lower bound, so that nothing is refused
    that would work.
    """
    available = memory_bytes()
    if needed_bytes > available:
        raise SubquadError(
            f"{what} would need at least {amount(needed_bytes, brief=True)} of memory, but there are "
            f"{amount(available, brief=True)}: {advice}"
        )


def _resource_limits() -> Iterator[int]:
    """Limits of this process, such as `ulimit -v` sets."""
    if os.name != "posix":
        return
    import resource

    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield soft


def _cgroup_limits() -> Iterator[int]:
    """Limits of the container or the service that this process runs in. Each group is also held to its parents' limits."""
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
