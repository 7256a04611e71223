"""Reads a command line into a dataclass of options, and checks the values."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from subquad.checking import Checked, check, deferred, excerpt
from subquad.errors import OptionError, SubquadError

T = TypeVar("T")

_CONFIG = (tyro.conf.HelptextFromCommentsOff,)
"""Settings of tyro: help comes from docstrings and from our own rules, so that it does not search sources for comments."""


def parse(
    kind: type[T],
    arguments: Sequence[str],
    *,
    prog: str,
    description: str | None = None,
    registry: ConstructorRegistry | None = None,
    flags: Mapping[tuple[type[Any], str], str] | None = None,
    checked: bool = True,
) -> T:
    """Parses a command line into an instance of `kind`. Values are checked after parsing, to report errors in our own words.

    `flags` holds the names on the command line of options that could not keep their own, by class and name. With `checked`
    false, values are not checked.
    """
    rules = _add_lenient_rules(registry or ConstructorRegistry())
    complaint = io.StringIO()
    try:
        with deferred(), contextlib.redirect_stderr(complaint):
            parsed = tyro.cli(kind, args=list(arguments), prog=prog, description=description, registry=rules, config=_CONFIG)
    except SystemExit as ended:
        if ended.code:
            raise SubquadError(_sentence(complaint.getvalue(), prog)) from None
        raise  # help was printed
    if checked:
        check_parts(parsed, flags or {})
    return parsed


def check_parts(options: Any, flags: Mapping[tuple[type[Any], str], str]) -> None:
    """Checks options and the options inside them, in the order of their fields."""
    for part in dataclasses.fields(options):
        if dataclasses.is_dataclass(value := getattr(options, part.name)):
            check_parts(value, flags)
    if isinstance(options, Checked):
        try:
            check(options)
        except OptionError as error:
            if _is_positional(type(options), error.name):
                raise SubquadError(f"{error.name.upper()} {error.problem}") from None
            if flag := flags.get((type(options), error.name)):
                raise OptionError(flag, error.problem) from None
            raise


def _is_positional(kind: type[Any], name: str) -> bool:
    hint = get_type_hints(kind, include_extras=True).get(name)
    return tyro.conf.Positional in getattr(hint, "__metadata__", ())


def _add_lenient_rules(registry: ConstructorRegistry) -> ConstructorRegistry:
    """Makes tyro accept words that are no numbers, choices or file names. `check` refuses them later, as in files."""

    @registry.primitive_rule
    def lenient(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kind, is_optional = _without_none(info.type)
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        read = _READERS.get(kind) or (str if choices else None)
        if read is None:
            return None

        def is_instance(value: Any) -> bool:
            return (is_optional and value is None) or (value in choices if choices else isinstance(value, kind))

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="{" + ",".join(choices) + "}" if choices else kind.__name__.upper(),
            instance_from_str=lambda words: None if is_optional and words[0] == str(None) else read(words[0]),
            is_instance=is_instance,
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type of an option without constraints and without None, and whether it may be None."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        if len(kinds) == 1 and len(get_args(hint)) > 1:
            return _without_none(kinds[0])[0], True
    if get_origin(hint) is Annotated:
        return _without_none(get_args(hint)[0])
    return hint, False


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a reader of numbers that returns a word that is not a number unchanged."""

    def read(word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            return word

    return read


_READERS: dict[Any, Callable[[str], Any]] = {
    int: _number(int),
    float: _number(float),
    Path: lambda word: Path(word) if word else word,  # Path("") would be the current folder
}


def _sentence(box: str, prog: str) -> str:
    """Extracts the error from the box that tyro draws around it, as one sentence.

    On terminals that are limited to ASCII, the box has a heading and lines of hyphens instead of a border.
    """
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    if len(lines) > 1 and set(lines[1]) == {"-"}:
        lines = lines[2:]
    first, _, rest = re.sub(r"\n-{3,}(?=\n)", "\n─", "\n".join(lines)).partition("\n─")
    words, help_lists = " ".join(first.split()), f"`{prog} --help` lists the options"
    if unknown := re.search(r"Unrecognized options: (.*?)(?:, |$)", words):
        near = re.search(r"Perhaps you meant:\s*(--[\w.-]+)", rest)
        if not unknown[1].startswith("-"):
            return f"{excerpt(unknown[1])} is one word too many: {help_lists}"
        return f"there is no option {unknown[1]}: " + (f"did you mean {near[1]}?" if near else help_lists)
    if missing := re.search(r"Missing value for argument '(?:\w+\.)*(.+?)'", words):
        name = missing[1]
        return f"{name} needs a value: {help_lists}" if name.startswith("-") else f"{name.upper()} is missing: {help_lists}"
    if missing := re.search(r"Missing from [^:]+: (\S+)", words):
        return f"{missing[1]} is missing: {help_lists}"
    return f"{words.rstrip('.')}: {help_lists}"
