"""What people type, read."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated

import tyro

from subquad.checking import LARGEST, excerpt
from subquad.errors import SubquadError

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""An option that is either given or not, without a form that begins with --no."""
MOST_BYTES = 2**62
"""Largest amount of memory: more than any system counts."""


def choose(what: str, given: str, names: Iterable[str]) -> str:
    """A name out of several; where there is none such, the nearest is suggested."""
    known = list(names)
    if given in known:
        return given
    near = get_close_matches(given.lower(), known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
    raise SubquadError(f"there is no {what} {excerpt(given)}: {hint}")


def parse_lengths(given: Sequence[str]) -> list[int]:
    """Lengths, ascending: numbers, and ranges such as 128..16384, which double from their start and include their end."""
    lengths: set[int] = set()
    for part in given:
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


def parse_bytes(option: str, given: str) -> int:
    """An amount of memory such as 2GiB or 500MB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", given.strip().lower())
    amount = float(match[1]) * UNITS.get(match[2], 0) if match else 0.0
    if not 1 <= amount <= MOST_BYTES:
        raise SubquadError(f"{option} takes an amount such as 2GiB or 500MB, but was given {excerpt(given)}")
    return int(amount)


def _whole(digits: str) -> int:
    """A number of any length: one that Python would not read is larger than any that is allowed."""
    return int(digits) if len(digits) < 30 else (LARGEST + 1) * (-1 if digits.startswith("-") else 1)
