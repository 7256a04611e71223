"""What a process has open. This module imports little, for processes that are started to call it."""

from pathlib import Path

from subquad.measure.workers import Work
from subquad.results import LOCK


def open_files() -> list[str]:
    """The paths of the files that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:  # the folder itself, while it was listed
            continue
    return found


def has_lock(folder: Path) -> Work:
    """Something to measure that fails in a process with the lock."""

    def run() -> None:
        assert str(folder / LOCK) not in open_files()

    return Work(run)
