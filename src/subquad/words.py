"""How numbers are said: digits, ranges, durations, amounts of memory, and comparisons such as "times as fast"; names."""

import math
import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from subquad.checking import excerpt
from subquad.errors import OptionError

if TYPE_CHECKING:
    from subquad.statistics import Interval  # which imports numpy, not needed to say a number

TYPED_NAME = re.compile(r"[\w.]+:\w|\w+\*\d|\w+,\w")
"""Beginning of a name such as ``mypackage.attention:MyAttention`` or ``linear*3,softmax``."""
IMPORT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""A module, a colon, and a name in the module, which may lead through classes."""
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
FRACTIONS = {
    2: "half",
    3: "a third",
    4: "a quarter",
    5: "a fifth",
    6: "a sixth",
    7: "a seventh",
    8: "an eighth",
    9: "a ninth",
}
MOST_LAYERS = 1000
"""Largest number of layers for which mechanisms can be named."""


def digits(value: float) -> str:
    """A measured number with two to three digits, which is what measurements here are good for."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def short(value: float) -> str:
    """A score: three decimals up to 1, two to three digits above."""
    return f"{value:.3f}" if abs(value) <= 1 else digits(value)


def compact(value: float) -> str:
    """A loss or a metric of any size: three significant digits below 1, two to three digits above."""
    return f"{value:.3g}" if abs(value) < 1 else digits(value)


def to_precision(value: float, spread: float, *, signed: bool = False) -> str:
    """A number with as many decimals as give half of the width of its interval two digits; `compact` where it has none.

    An interval that is narrower than the fifth digit of the number counts as none.
    """
    if not math.isfinite(spread) or spread <= 1e-5 * abs(value):
        return f"{value:+.3g}" if signed else compact(value)
    decimals = max(0, 1 - int(f"{spread:.1e}".partition("e")[2]))
    rounded = round(value, decimals) + 0.0  # no negative zero
    return f"{rounded:{'+' if signed else ''}.{decimals}f}"


def between(found: "Interval", form: str = "") -> str:
    """A value and its interval, by a format such as ``.3f``, or with two to three digits where none is named."""

    def say(number: float) -> str:
        return format(number, form) if form else digits(number)

    if not math.isfinite(found.high):
        return f"{say(found.value)} (one seed)"
    return f"{say(found.value)} ({say(found.low)} to {say(found.high)})"


def amount(count: float, *, brief: bool = False) -> str:
    """Bytes in the unit that fits. `brief` leaves out zeros at the end, for numbers that are not measured."""
    power = max((at for at in range(len(BYTE_UNITS)) if count >= 1000**at), default=0)
    scaled, unit = count / 1000**power, BYTE_UNITS[power]
    if brief:
        return f"{scaled:.3g} {unit}" if scaled < 1000 else f"{scaled:.1e} {unit}"
    return f"{scaled:.0f} B" if power == 0 else f"{digits(scaled)} {unit}"


def duration(seconds: float) -> str:
    """Seconds, milliseconds or microseconds, whichever fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(seconds / 1e-6)} µs"


def span(seconds: float) -> str:
    """A time between events in the unit that fits, from seconds to years."""
    units = {"years": 365.25 * 86400.0, "days": 86400.0, "hours": 3600.0, "minutes": 60.0}
    for name, size in units.items():
        if seconds >= size:
            return f"{digits(seconds / size)} {name}"
    return f"{seconds:.3g} seconds"


def times_as_fast(ratio: float) -> str:
    """A speed beside another, such as "2.10 times as fast"."""
    return f"{digits(ratio)} times as fast"


def share_of_memory(ours: float, theirs: float) -> str:
    """Memory beside another's, such as "a third of the memory" or "2.10 times the memory"."""
    ratio = max(ours, 1.0) / max(theirs, 1.0)
    if 0.8 <= ratio <= 1.25:
        return "about the same memory"
    return f"{digits(ratio)} times the memory" if ratio > 1 else f"{_fraction(ratio)} of the memory"


def memory_ratio(ours: float, theirs: float) -> str:
    """Memory beside another's for tables, such as "2.10x", "0.45x" or "1/12"."""
    ratio = max(ours, 1.0) / max(theirs, 1.0)
    return f"{digits(ratio)}x" if ratio > 0.1 else f"1/{round(1 / ratio)}"


def _fraction(ratio: float) -> str:
    parts = round(1 / ratio)
    return f"{ratio:.0%}" if parts < 2 else FRACTIONS.get(parts, f"1/{parts}")


def capitalized(text: str) -> str:
    """The text with its first letter in upper case; names to import and names by layer are kept as they are typed."""
    return text if TYPED_NAME.match(text) else text[:1].upper() + text[1:]


def run_lengths(names: Sequence[str]) -> str:
    """Returns a list of names in which equal neighbours are counted, such as "linear*3,softmax"."""
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    return ",".join(name if count == 1 else f"{name}*{count}" for name, count in runs)


def is_by_layer(name: str) -> bool:
    """Whether a name has the form of names by layer, such as linear*3,softmax."""
    return "," in name or "*" in name


def names_by_layer(text: str) -> list[str]:
    """Splits a name, or names by layer such as linear*3,softmax, into a list with a name for each layer.

    Raises `OptionError` for the option "attention" if the text has another form.
    """
    names: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^*,]*?)\s*(?:\*\s*(\d{1,9})\s*)?", part)
        if match is None or not match[1]:
            raise OptionError(
                "attention", f"takes a name, or names by layer such as linear*3,softmax, but was given {excerpt(text)}"
            )
        count = 1 if match[2] is None else int(match[2])
        if not 1 <= count <= MOST_LAYERS - len(names):
            raise OptionError("attention", f"{excerpt(text)} must name 1 to {MOST_LAYERS} layers, and each at least once")
        names += [match[1]] * count
    return names


def is_import_name(name: str) -> bool:
    """Whether a name has the form ``package.module:Name``."""
    return IMPORT_NAME.fullmatch(name) is not None
