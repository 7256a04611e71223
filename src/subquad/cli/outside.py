"""Attentions that are named as MODULE:NAME on the command line, and how they are called."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal

from subquad.attention import MECHANISMS, Outside
from subquad.attention.outside.importing import sentence_of
from subquad.attention.outside.mechanism import imported_parts
from subquad.attention.outside.trust import trust_words
from subquad.check.opening import Opened, open_all
from subquad.check.request import Request
from subquad.checking import Checked, Words, excerpt
from subquad.cli.explanations import explanation
from subquad.cli.options import Flags
from subquad.cli.values import choose
from subquad.compare import plan
from subquad.errors import SubquadError
from subquad.types import AttentionOptions
from subquad.words import is_import_name

Layouts = Literal["guess", "bhnd", "bnhd", "bnm", "nbm"]
Masks = Literal["guess", "keep", "pad", "additive", "lengths"]


@dataclass(frozen=True)
class Calling(Checked):
    """How an attention that is named as MODULE:NAME is built and called."""

    layout: Layouts = "guess"
    """Axes of its inputs: batch b, heads h, positions n, numbers of a head d, numbers of all heads m."""
    mask: Masks = "guess"
    """What its padding mask holds: true for real keys (keep), true for padding (pad), numbers added to scores (additive),
    or the number of real keys of each sequence (lengths)."""
    mask_argument: Words = ""
    """Name of the argument that takes its padding mask; found among usual names by default."""
    arguments: tuple[Words, ...] = ()
    """Arguments of its constructor, as NAME=VALUE."""
    call: tuple[Words, ...] = ()
    """Arguments of every call, as NAME=VALUE."""


OUTSIDE = "outside"
"""Name of the group of these options in commands that have others beside them, with which they begin there."""
FLAGS: Flags = {(Calling, field.name): f"{OUTSIDE}.{field.name.replace('_', '-')}" for field in fields(Calling)}
"""Names of these options on the command line of such a command."""


def request_of(name: str, calling: Calling, *, heads: int, head_dim: int, prefix: str = "") -> Request:
    """What the options, which begin with `prefix`, say of an attention: a name to import, or one of this package."""
    if "." in name and ":" not in name:
        raise SubquadError(f"{excerpt(name)} is no attention: write MODULE:NAME, as in mypackage.attention:MyAttention")
    if not is_import_name(name):
        kind = MECHANISMS[choose("attention", name, MECHANISMS)]
        name = f"{kind.__module__}:{kind.__qualname__}"
    return Request(
        name,
        heads,
        head_dim,
        layout=None if calling.layout == "guess" else calling.layout,
        mask=None if calling.mask == "guess" else calling.mask,
        mask_argument=calling.mask_argument,
        arguments=read_arguments(f"--{prefix}arguments", calling.arguments),
        call=read_arguments(f"--{prefix}call", calling.call),
        prefix=prefix,
    )


def open_outside(
    names: Sequence[str], calling: Calling, *, heads: int, head_dim: int, preload: Sequence[str] = plan.PRELOAD
) -> Opened:
    """Finds out how attentions that are named as MODULE:NAME are called, for using them beside others.

    `preload` names modules that the processes of the command need later on, to be imported once for all.
    """
    requests = [request_of(name, calling, heads=heads, head_dim=head_dim, prefix=f"{OUTSIDE}.") for name in names]
    return open_all(requests, preload)


def require_outside(name: str, calling: Calling, *, heads: int, head_dim: int) -> Outside:
    """Finds out how an attention that is named as MODULE:NAME is called. Raises `SubquadError` if it cannot be."""
    opened, left_out = open_outside([name], calling, heads=heads, head_dim=head_dim)
    if name in left_out:
        raise SubquadError(f"{name} cannot be used: {left_out[name]}")
    return opened[name]


def trust_prefix(attentions: Iterable[AttentionOptions]) -> str:
    """What comes before a command that opens files with these attentions, so that they are trusted; mostly nothing."""
    return trust_words(part.target for attention in attentions for part in imported_parts(attention))


def calling_of(parts: Sequence[Outside]) -> Calling:
    """How all of some attentions are called. What differs among them is left to guessing."""
    known = [
        Calling(
            part.layout,
            part.mask or "guess",
            part.mask_argument,
            spell_arguments(part.arguments),
            spell_arguments(part.call),
        )
        for part in parts
    ]
    same = {field.name: {getattr(each, field.name) for each in known} for field in fields(Calling)}
    return Calling(**{name: values.pop() for name, values in same.items() if len(values) == 1})


@contextmanager
def naming_outside(attention: AttentionOptions) -> Iterator[None]:
    """What code of others raises inside the block becomes a sentence with the name of the attention."""
    names = " and ".join(part.name for part in imported_parts(attention))
    try:
        yield
    except SystemExit as ended:
        if not names:
            raise
        raise SubquadError(f"the model with {names} ends the process (SystemExit: {ended.code})") from ended
    except Exception as error:
        if not names or explanation(error) is not None:
            raise
        raise SubquadError(f"the model with {names} raises {sentence_of(error)}") from error


def read_arguments(option: str, words: Sequence[str]) -> dict[str, Any]:
    """Reads NAME=VALUE words. Values are Python's numbers, truth values, lists or None, and any other word is a text.

    A tuple becomes a list, as it does in the files of a run.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise SubquadError(f"{option} takes words such as features=256, but was given {excerpt(word)}")
        values[name] = _value(text)
    return values


def spell_arguments(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The NAME=VALUE words that `read_arguments` reads as these values."""
    texts = {
        name: value if isinstance(value, str) and _value(value) == value else repr(value) for name, value in values.items()
    }
    return tuple(f"{name}={text}" for name, text in texts.items())


def _value(text: str) -> Any:
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return as_lists(value) if isinstance(value, int | float | str | list | tuple | dict | None) else text


def as_lists(value: Any) -> Any:
    """A value whose tuples are lists, inside of lists and dictionaries as well."""
    if isinstance(value, dict):
        return {name: as_lists(each) for name, each in value.items()}
    return [as_lists(each) for each in value] if isinstance(value, list | tuple) else value
