"""Parses values of command-line options."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated

import tyro

from subquad.checking import LARGEST, excerpt
from subquad.errors import OptionError, SubquadError
from subquad.words import is_import_name, names_by_layer

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
MOST_SECONDS = 1e8
"""Longest duration that is accepted, in seconds."""

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A boolean option without a form that begins with --no."""
MOST_BYTES = 2**62
"""Largest amount of memory that is accepted, in bytes."""


def choose(what: str, name: str, names: Iterable[str]) -> str:
    """Returns `name` if it is one of `names`; else raises `SubquadError` with the nearest name."""
    known = list(names)
    if name in known:
        return name
    near = get_close_matches(name.lower(), known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
    raise SubquadError(f"there is no {what} {excerpt(name)}: {hint}")


def parse_lengths(words: Sequence[str]) -> list[int]:
    """Parses numbers and ranges such as 128..16384, which double from start to end, into ascending lengths."""
    lengths: set[int] = set()
    for part in words:
        match = re.fullmatch(r"(-?\d+)(?:\.\.(-?\d+))?", part.strip())
        if match is None:
            raise SubquadError(f"--lengths takes numbers and ranges such as 128..16384, but was given {excerpt(part)}")
        first, last = (_whole(number) for number in (match[1], match[2] or match[1]))
        if min(first, last) < 1:
            raise SubquadError(f"--lengths must be positive, but {excerpt(part)} is not")
        if last > LARGEST:
            raise SubquadError(f"--lengths must be at most {LARGEST}, but {excerpt(part)} is not")
        if last < first:
            raise SubquadError(f"--lengths {part} ends before it starts: write {last}..{first}")
        while first < last:
            lengths.add(first)
            first *= 2
        lengths.add(last)
    if not lengths:
        raise SubquadError("--lengths needs at least one length, such as 1024 or 128..16384")
    return sorted(lengths)


def parse_bytes(option: str, text: str) -> int:
    """Parses an amount of memory such as 2GiB or 500MB into bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    amount = float(match[1]) * UNITS.get(match[2], 0) if match else 0.0
    if not 1 <= amount <= MOST_BYTES:
        raise SubquadError(f"{option} takes an amount such as 2GiB or 500MB, but was given {excerpt(text)}")
    return int(amount)


def parse_seconds(option: str, text: str) -> float:
    """Parses a duration such as 90s, 10m, 2h or a number of seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip().lower())
    seconds = float(match[1]) * SECONDS.get(match[2], 0) if match else 0.0
    if not 1 <= seconds <= MOST_SECONDS:
        raise SubquadError(
            f"{option} takes a time of at least a second, such as 90s, 10m or 2h, but was given {excerpt(text)}"
        )
    return seconds


def _whole(digits: str) -> int:
    """Parses an integer; one with too many digits for Python becomes a value beyond the allowed range."""
    return int(digits) if len(digits) < 30 else (LARGEST + 1) * (-1 if digits.startswith("-") else 1)


def parse_attention(
    text: str, names: Iterable[str], option: str = "--attention", *, takes_imported: bool = False
) -> list[str]:
    """Parses the name of an attention, or names by layer such as linear*3,softmax, into a list of names.

    Args:
        text: what the user wrote.
        names: the known names.
        option: the option that took the text, for error messages.
        takes_imported: whether names to import, MODULE:NAME, are taken as well.
    """
    known: list[str] = list(names)
    if ":" in text and not takes_imported:
        raise SubquadError(
            f"{option} takes mechanisms of this package, but was given {excerpt(text)}: `subquad train`, `choose TASK`, "
            "`compare` and `check` take an attention of another package, as MODULE:NAME"
        )
    try:
        listed = names_by_layer(text)
    except OptionError as error:
        raise SubquadError(f"{option} {error.problem}") from None
    return [name if takes_imported and _is_imported(name) else choose("attention", name, known) for name in listed]


def _is_imported(name: str) -> bool:
    """Whether a name is one to import. Raises `SubquadError` if it only looks like one."""
    if is_import_name(name):
        return True
    if ":" in name or "." in name:
        raise SubquadError(f"{excerpt(name)} is no attention: write MODULE:NAME, as in mypackage.attention:MyAttention")
    return False
