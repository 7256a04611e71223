"""Damaged run folders."""

from collections.abc import Iterator
from pathlib import Path

from tests.robustness.cases import Case


def damages(templates: Path) -> Iterator[Case]:
    return iter(())
