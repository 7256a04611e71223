"""Hostile models."""

from collections.abc import Iterator
from pathlib import Path

from tests.robustness.cases import Case


def hostile_models(templates: Path) -> Iterator[Case]:
    return iter(())
