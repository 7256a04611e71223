"""Times of events: seconds, a day number with a time of day, or a date. Each is converted to seconds."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.data.tables import StoredColumn, listed
from subquad.errors import SubquadError

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


def compact_date(text: str) -> float:
    """Seconds since 1970 of a date `YYYYMMDD` from 1900 to 2099."""
    if len(text) != 8 or not text.isdecimal() or text[:2] not in ("19", "20"):
        raise ValueError(text)
    return iso(f"{text[:4]}-{text[4:6]}-{text[6:]}")


def milliseconds(text: str) -> float:
    """Seconds of a time in milliseconds since 1970, between 1973 and 2286."""
    value = float(text)
    if not 1e11 <= value < 1e13:
        raise ValueError(text)
    return value / 1e3


WRITTEN_DATE = re.compile(
    r"(\d{1,4})[./-](\d{1,2})[./-](\d{1,4})(?:[T ,]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?)?\s*([AaPp][Mm])?"
)
"""A date in three numbers with a time of day or without."""


def _written(text: str, *, day_first: bool) -> float:
    matched = WRITTEN_DATE.fullmatch(text.strip())
    if matched is None:
        raise ValueError(text)
    first, second, third, hour, minute, seconds = (int(part or 0) for part in matched.groups()[:6])
    if (half := (matched[7] or "").lower()) and hour:
        hour = hour % 12 + (12 if half == "pm" else 0)
    if first > 31:
        year, month, day = first, second, third
    else:
        year, (day, month) = third, ((first, second) if day_first else (second, first))
        year += (2000 if year < 70 else 1900) if year < 100 else 0
    return (datetime(year, month, day, hour, minute, seconds, tzinfo=UTC) - EPOCH).total_seconds()


def day_first(text: str) -> float:
    """Seconds since 1970 of a date such as `31.1.2024 18:30` or `31/01/24`, or with the year first."""
    return _written(text, day_first=True)


def month_first(text: str) -> float:
    """Seconds since 1970 of a date such as `1/31/2024 6:30 PM`, or with the year first."""
    return _written(text, day_first=False)


FORMATS: tuple[ReadTime, ...] = (float, day_and_clock, iso)
WRITTEN: dict[str, ReadTime] = {
    "compact": compact_date,
    "milliseconds": milliseconds,
    "seconds": float,
    "days": day_and_clock,
    "iso": iso,
    "day-first": day_first,
    "month-first": month_first,
}
"""Formats of times by name, in the order in which `guess` prefers them."""
DATED = ("compact", "milliseconds", "iso", "day-first", "month-first")
"""Formats whose times are seconds since 1970."""
GUESSED = 2000
"""Number of different texts by which a format is guessed."""


def guess(column: Sequence[str], formats: Iterable[str] = tuple(WRITTEN)) -> str | None:
    """Name of the format that reads most of the texts, the first in `WRITTEN` among equals; None if it reads no half."""
    texts = [text for text in islice(dict.fromkeys(column), GUESSED) if text.strip()]
    shares = {name: sum(math.isfinite(attempt(WRITTEN[name], text)) for text in texts) for name in formats}
    best = max(shares, key=shares.__getitem__, default=None)
    return best if best is not None and texts and shares[best] * 2 > len(texts) else None


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
    if isinstance(column, StoredColumn):
        stored = column.numbers()
        if stored is not None and (read is float or column.is_time):
            return stored
        places, values = column.coded()
        return numbers(values, read)[places]
    try:
        return np.fromiter(map(read, column), np.float64, len(column))
    except UNREADABLE:
        return np.fromiter((attempt(read, text) for text in column), np.float64, len(column))


def as_text(time: float, *, is_date: bool) -> str:
    """A time in seconds since 1970 as an ISO date in UTC, if it is one that the calendar has, or else as a number."""
    if is_date:
        try:
            return (EPOCH + timedelta(seconds=round(time))).strftime("%Y-%m-%dT%H:%M:%S")
        except (OverflowError, ValueError):
            pass
    return f"{time:.15g}"


DATES = ("iso", "day-first", "month-first")
"""Formats that may occur in one column together."""


def lenient(name: str) -> ReadTime:
    """A reader of a format that also takes dates in the other formats, if these can be read in one way only."""
    primary = WRITTEN[name]
    others = [WRITTEN[other] for other in DATES if other != name]
    if name not in DATES:
        return primary

    def read(text: str) -> float:
        try:
            return primary(text)
        except UNREADABLE:
            readings = {seconds for other in others if math.isfinite(seconds := attempt(other, text))}
            if len(readings) != 1:
                raise ValueError(text) from None
            return readings.pop()

    return read


def check_form(form: str) -> None:
    """Raises `SubquadError` for a format of times that does not exist."""
    if form not in ("auto", *WRITTEN):
        raise SubquadError(f"--time-form must be auto or one of {listed(WRITTEN, 9)}, but is {form!r:.60}")


def day_is_first(file: str, *, can_choose: bool = True) -> str:
    """Tells a user how dates were read that could have the day or the month first.

    `can_choose` says that the command has the option that names the form of times.
    """
    advice = "give --time-form month-first" if can_choose else "write them as 2024-01-31"
    read = "its dates could have the day or the month first, and are read with the day first"
    return f"{file}: {read}; if that is wrong, {advice}"


def is_ambiguous(column: Sequence[str]) -> bool:
    """Whether all dates of a column can be read with the day first and with the month first, to different times."""
    texts = list(islice(dict.fromkeys(column), GUESSED))
    both = [(attempt(day_first, text), attempt(month_first, text)) for text in texts if text.strip()]
    readable = [(first, second) for first, second in both if math.isfinite(first) or math.isfinite(second)]
    differs = any(first != second for first, second in readable)
    return bool(readable) and differs and all(math.isfinite(first) and math.isfinite(second) for first, second in readable)
