"""Which modules may be imported because a file names them.

A run folder may come from anybody, and one whose attention is ``os:system`` would run code as soon as it is opened. So an
attention that a file names is imported only from modules that the user trusts: those named on the command line, in the
environment variable `VARIABLE`, or in a call from Python.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from subquad.attention.outside.importing import import_named
from subquad.errors import SubquadError

VARIABLE = "SUBQUAD_TRUST"
"""Environment variable with the names of trusted modules, separated by commas. A package stands for its modules too."""
_named: ContextVar[frozenset[str]] = ContextVar("named", default=frozenset())


@contextmanager
def trusting(names: Iterable[str]) -> Iterator[None]:
    """Inside the block, files may name attentions of these modules and of the modules in them, or these names themselves."""
    token = _named.set(_named.get() | frozenset(names))
    try:
        yield
    finally:
        _named.reset(token)


def module_of(target: str) -> str:
    """The module of a name such as ``package.module:Name``."""
    return target.partition(":")[0]


def require_trust(target: str, where: str) -> None:
    """Raises `SubquadError` if a file, at the place `where`, names an attention that is not of a trusted module.

    A trusted module is imported, and what it took from other modules is not trusted with it: a package that imports
    ``subprocess`` does not make ``subprocess.Popen`` an attention.
    """
    if target in _trusted():
        return
    _require(module_of(target), target, where)
    held: Any = None
    names = target.partition(":")[2].split(".")
    for depth in range(1, len(names) + 1):
        held = import_named(f"{module_of(target)}:{'.'.join(names[:depth])}")
        if isinstance(held, ModuleType):
            _require(held.__name__, target, where)
    if callable(held):
        home = getattr(held, "__module__", None)
        _require(home if isinstance(home, str) else "builtins", target, where)


def is_trusted(module: str) -> bool:
    """Whether a module, or a package that it is in, is trusted."""
    parts = module.split(".")
    return any(".".join(parts[:size]) in _trusted() for size in range(1, len(parts) + 1))


def _trusted() -> frozenset[str]:
    return _named.get() | {name.strip() for name in os.environ.get(VARIABLE, "").split(",")}


def trust_words(targets: Iterable[str]) -> str:
    """What comes before a command that reads a file with these attentions: the variable with their packages, or nothing."""
    packages = sorted({_package(module_of(target)) for target in targets})
    return f"{VARIABLE}={','.join(packages)} " if packages else ""


def _require(module: str, target: str, where: str) -> None:
    if is_trusted(module):
        return
    of_which = "" if module == module_of(target) else f" of {module}"
    raise SubquadError(
        f"{where} uses {target}, which is code{of_which} outside of subquad: set {VARIABLE}={_package(module)} to allow it, "
        "if you trust it"
    )


def _package(module: str) -> str:
    return module.partition(".")[0]
