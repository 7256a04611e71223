"""Mechanisms of installed packages, which join those of this package under their names."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from subquad.checking import excerpt

GROUP = "subquad.mechanisms"
"""Entry point group under which a package offers mechanisms: subclasses of `subquad.types.AttentionOptions`."""


def join_installed(say: Callable[[str], None]) -> None:
    """Adds the mechanisms of installed packages to `MECHANISMS`. Says in a sentence which cannot be used, and why."""
    if entries := entry_points(group=GROUP):  # without any, PyTorch need not be imported
        from subquad.attention import MECHANISMS

        for entry in entries:
            package = entry.dist.name if entry.dist else "an installed package"
            problem = _join(MECHANISMS, entry)
            if problem:
                say(f"the mechanism {excerpt(entry.name)} of {package} is left out: {problem}")


def _join(mechanisms: dict[str, Any], entry: Any) -> str:
    """Adds one mechanism, or returns what is wrong with it."""
    from subquad.types import AttentionOptions

    try:
        options = entry.load()
    except Exception as error:  # a package may raise anything while it is imported
        return f"it cannot be imported ({type(error).__name__}: {error})"
    if mechanisms.get(entry.name, options) is not options:
        return "there is another one of that name"
    if not (isinstance(options, type) and issubclass(options, AttentionOptions)):
        return f"{excerpt(entry.value)} does not inherit from subquad.types.AttentionOptions"
    try:
        kind = options().kind
    except Exception as error:  # a constructor may raise anything
        return f"its options have no defaults that work ({type(error).__name__}: {error})"
    if kind != entry.name:
        return f"its kind is {excerpt(kind)}, which must be its name"
    mechanisms[entry.name] = options
    return ""
