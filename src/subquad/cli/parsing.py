"""Reads a command line into a dataclass of options, and checks the values."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry

from subquad.checking import Checked, check, deferred

T = TypeVar("T")


def parse(
    kind: type[T],
    arguments: Sequence[str],
    *,
    prog: str,
    description: str | None = None,
    registry: ConstructorRegistry | None = None,
) -> T:
    """The options in a command line. Values are checked after parsing, as tyro would print their errors in its own words."""
    with deferred():
        parsed = tyro.cli(kind, args=list(arguments), prog=prog, description=description, registry=registry)
    _check_parts(parsed)
    return parsed


def _check_parts(options: Any) -> None:
    """Checks options and those inside them, in the order of their fields."""
    for part in dataclasses.fields(options):
        if dataclasses.is_dataclass(value := getattr(options, part.name)):
            _check_parts(value)
    if isinstance(options, Checked):
        check(options)
