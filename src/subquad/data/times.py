"""Times of events: seconds, a day number with a time of day, or an ISO date. Each is converted to seconds."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray

DAY = 86400.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ReadTime = Callable[[str], float]


@cache
def _clocks() -> dict[str, float]:
    """Seconds since midnight by time of day as text. Second 60 is allowed, as it occurs in Sberbank's data."""
    return {
        f"{hour:02}:{minute:02}:{second:02}": float(hour * 3600 + minute * 60 + second)
        for hour in range(24)
        for minute in range(60)
        for second in range(61)
    }


def day_and_clock(text: str) -> float:
    """Seconds of a time written as `D HH:MM:SS`, where D is the number of a day."""
    day, _, clock = text.partition(" ")
    return DAY * int(day) + _clocks()[clock]


def iso(text: str) -> float:
    """Seconds since 1970 of an ISO date with or without a time of day, in UTC if it names no time zone."""
    when = datetime.fromisoformat(text)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH).total_seconds()


def short_date(text: str) -> float:
    """Seconds since 1970 of a date `YYMMDD` in the twentieth century, as in Berka's data."""
    if len(text) != 6 or not text.isdecimal():
        raise ValueError(text)
    return iso(f"19{text[:2]}-{text[2:4]}-{text[4:]}")


FORMATS: tuple[ReadTime, ...] = (float, day_and_clock, iso)


def detect(column: Sequence[str]) -> ReadTime | None:
    """The format of the first readable time in a column, which is then required of all others; None if none is readable."""
    for text in column:
        for read in FORMATS:
            if math.isfinite(attempt(read, text)):
                return read
    return None


UNREADABLE = (ValueError, KeyError, OverflowError, TypeError)
"""Exceptions that reading a time raises: `TypeError` for a value that is no text, the others for an unreadable text."""


def attempt(read: ReadTime, text: str) -> float:
    """The time in a text, or NaN if it cannot be read."""
    try:
        return read(text)
    except UNREADABLE:
        return math.nan


def numbers(column: Sequence[str], read: ReadTime = float) -> Float[ndarray, "rows"]:
    """The times in a column as numbers. Unreadable times become NaN."""
    try:
        return np.fromiter(map(read, column), np.float64, len(column))
    except UNREADABLE:
        return np.fromiter((attempt(read, text) for text in column), np.float64, len(column))
