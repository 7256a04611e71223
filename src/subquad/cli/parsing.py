"""Reads a command line into a dataclass of options, and checks the values."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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
        choices = get_args(info.type) if get_origin(info.type) is Literal else ()
        read = _READERS.get(info.type) or (str if choices else None)
        if read is None:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="{" + ",".join(choices) + "}" if choices else info.type.__name__.upper(),
            instance_from_str=lambda words: read(words[0]),
            is_instance=lambda value: value in choices if choices else isinstance(value, info.type),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


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
