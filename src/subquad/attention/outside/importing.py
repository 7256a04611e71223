"""Imports what a name such as ``package.module:Name`` stands for, from the current folder too, as ``python -m`` does."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from subquad.checking import excerpt
from subquad.errors import SubquadError
from subquad.words import is_import_name


def import_named(name: str) -> Any:
    """Returns the object that ``package.module:Name`` stands for. Raises `SubquadError` if it cannot be imported."""
    if not is_import_name(name):
        raise SubquadError(f"{excerpt(name)} is no name to import: write a module, a colon and a name, as in pkg.mod:Name")
    module_name, _, path = name.partition(":")
    _look_here()
    try:
        held: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise SubquadError(
                f"there is no module {error.name}: check the name, or start the command in the folder that holds it"
            ) from None
        raise SubquadError(f"{module_name} cannot be imported, it needs {error.name}: install that first") from None
    except Exception as error:  # a module may raise anything while it is imported
        raise SubquadError(f"{module_name} cannot be imported: {sentence_of(error)}") from None
    for part in path.split("."):
        if not hasattr(held, part):
            raise SubquadError(f"{module_name} has no {excerpt(part)}: its public names are {_names(held)}")
        held = getattr(held, part)
    return held


def sentence_of(error: BaseException) -> str:
    """The kind of an error and the first line of its message, without a full stop."""
    line = next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:300] if line else type(error).__name__


def gpu_advice(said: str) -> str:
    """What to do about an error that speaks of CUDA; empty for any other."""
    needs_one = "cuda" in said.lower()
    return "it seems to need a GPU, but is tried on a CPU: make it compute where its inputs are" if needs_one else ""


def _look_here() -> None:
    """Puts the current folder first among the folders from which Python imports."""
    here = str(Path.cwd())
    if here not in sys.path[:1]:
        sys.path.insert(0, here)


def _names(held: Any) -> str:
    names = [name for name in dir(held) if not name.startswith("_") and callable(getattr(held, name, None))]
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "none"
