"""Recognizes what the columns of a table hold: categories, numbers, truths, texts, several values in a cell, or times.

A column is recognized by the first chunk of rows, because tables are read in chunks. What was decided is a `Column`, which a
run stores, so that new data are read in the same way.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple, get_args

import numpy as np

from subquad.checking import Checked, Words, excerpt
from subquad.data.json_tables import BETWEEN_VALUES
from subquad.data.tables import StoredColumn, listed
from subquad.data.times import DATED, attempt, guess, lenient
from subquad.errors import SubquadError

Kind = Literal["category", "number", "boolean", "text", "several", "time", "unused"]
KINDS: tuple[str, ...] = get_args(Kind)

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "nil", "-", "--", "?", "<na>", "nat"))
"""Texts, in lower case, that stand for a missing value."""
TRUTHS = (("0", "1"), ("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"), ("off", "on"), ("0.0", "1.0"))
"""Pairs of texts, in lower case, that stand for false and true."""
SEPARATORS = "|;,"
"""Characters that separate several values of one cell, in the order in which they are tried."""
CODED_NAMES = re.compile(
    r"(?i)(^|[_\s.-])(id|code|type|category|class|zip|mcc|sku|postcode|kind|group|nr|account|merchant|terminal|card|phone|shop|store)$"
)
"""Names of columns whose whole numbers are names of something."""
IDENTIFIER_NAMES = re.compile(r"(?i)((^|[_\s.-])(id|uuid|guid|key|hash|nr)|(Id|ID))$")
SAMPLED = 20_000
"""Number of values by which a column is recognized."""
MOSTLY = 0.95
"""Share of the values that must be readable as numbers or times for a column of such."""
FEW = 20
"""Largest number of different whole numbers that are taken for categories."""
DIFFERENT = 0.9
"""Share of different values above which a column of names is taken for an identifier of its rows."""
ENOUGH = 50
"""Smallest number of values by which an identifier is recognized."""
ENOUGH_DOTTED = 10
"""Smallest number of values such as `1.250` by which dots between thousands are recognized."""


def plain_number(text: str) -> float:
    """A number with a decimal point, such as `-1.5e3`."""
    return float(text)


def comma_number(text: str) -> float:
    """A number with a decimal comma, such as `1.234,56` or `1 234,56`."""
    if not COMMA.fullmatch(text := text.strip()):
        raise ValueError(text)
    return float(re.sub(r"[.\s' ]", "", text).replace(",", "."))


def grouped_number(text: str) -> float:
    """A number with commas between thousands, such as `1,234.56`."""
    if not GROUPED.fullmatch(text := text.strip()):
        raise ValueError(text)
    return float(text.replace(",", ""))


COMMA = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}([.\s' ]\d{3})+)(,\d+)?")
GROUPED = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?")
NUMBERS: dict[str, Callable[[str], float]] = {"point": plain_number, "grouped": grouped_number, "comma": comma_number}
"""Ways of writing numbers by name, in the order in which they are preferred.

Where all commas are followed by three digits, as in `1,250` and `13,500`, they are taken for those between thousands.
"""
DOTTED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
"""A number that may be one with dots between thousands, such as `1.250`."""


@dataclass(frozen=True)
class Column(Checked):
    """What a column of a table holds, and how its cells are read."""

    name: Words
    kind: Kind = "category"
    form: Words = ""  # how numbers or times are written, by a name in NUMBERS or in times.WRITTEN
    separator: Words = ""  # character between several values of one cell
    why: Words = ""  # the reason of the decision, for people

    def said(self) -> str:
        """The decision in words, such as `city: category (41 different values)`."""
        return f"{self.name}: {self.kind}{f' ({self.why})' if self.why else ''}"


class Sample(NamedTuple):
    """The values of a column that are not missing, and how many rows were looked at."""

    texts: list[str]
    counts: Counter[str]
    rows: int


def sample(cells: Sequence[str]) -> Sample:
    """Returns the values among the first cells of a column, without spaces around them."""
    texts = [text for cell in islice(cells, SAMPLED) if not is_missing(text := cell.strip())]
    return Sample(texts, Counter(texts), min(len(cells), SAMPLED))


def truth(text: str) -> bool | str:
    """Whether a text such as `yes` or `0` stands for true or false; itself in lower case if it stands for neither."""
    lowered = text.lower()
    return next((lowered == true for false, true in TRUTHS if lowered in (false, true)), lowered)


def is_missing(text: str) -> bool:
    """Whether a text without spaces around it stands for a missing value."""
    return text.lower() in MISSING


def recognise(name: str, cells: Sequence[str]) -> Column:
    """Returns what a column holds, by the first of its cells."""
    if isinstance(cells, StoredColumn) and cells.is_time:
        return Column(name, "time", "iso", why="times")  # as they would be written in other files
    found = sample(cells)
    distinct = len(found.counts)
    if not found.texts:
        return Column(name, "category", why="no values")
    lowered = {text.lower() for text in found.counts}
    if len(lowered) == 2 and any(lowered == set(pair) for pair in TRUTHS):
        return Column(name, "boolean", why=f"{listed(sorted(found.counts), 2)}")
    return _number(name, found) or _time(name, found) or _several(name, found) or _words(name, found, distinct)


def number_form(texts: Mapping[str, int]) -> tuple[str, float]:
    """The way in which most numbers are written, by its name in `NUMBERS`, and their share. `texts` are counted.

    Dots between thousands look like decimal points in `1.250`, but a column of numbers with exactly three decimals has no
    whole numbers, as `850`, beside them.
    """
    total = max(1, sum(texts.values()))
    shares = {form: sum(texts[text] for text in texts if _is_number(read, text)) / total for form, read in NUMBERS.items()}
    form = max(shares, key=shares.__getitem__)
    if form == "point" and shares["comma"] == shares["point"]:
        dotted = [text for text in texts if DOTTED.fullmatch(text)]
        is_short = all(len(text.lstrip("+-")) <= 3 for text in texts if "." not in text)
        form = "comma" if is_short and ENOUGH_DOTTED <= len(dotted) < len(texts) else form
    return form, shares[form]


def _is_number(read: Callable[[str], float], text: str) -> bool:
    return bool(np.isfinite(attempt(read, text)))


def _number(name: str, found: Sample) -> Column | None:
    form, share = number_form(found.counts)
    if share < MOSTLY or guess(list(found.counts), ("compact",)):
        return None
    distinct = len(found.counts)
    is_whole = all(text.lstrip("+-").isdecimal() for text in found.counts)
    is_coded = any(text.startswith("0") and len(text) > 1 for text in found.counts) if is_whole else False
    if is_whole and IDENTIFIER_NAMES.search(name) and distinct > DIFFERENT * len(found.texts) and distinct >= ENOUGH:
        return Column(name, "unused", why=f"an identifier: {distinct:,} different values in {len(found.texts):,} rows")
    if is_whole and (distinct <= FEW or is_coded or CODED_NAMES.search(name)):
        return Column(name, "category", why=f"{distinct:,} different whole numbers")
    written = {"point": "", "comma": ", with decimal commas", "grouped": ", with commas between thousands"}
    return Column(name, "number", form, why=f"{distinct:,} different values{written[form]}")


def _time(name: str, found: Sample) -> Column | None:
    form = guess(list(found.counts), ("compact", "days", "iso", "day-first", "month-first"))
    return None if form is None else Column(name, "time", form, why=f"times written {form}")


def _several(name: str, found: Sample) -> Column | None:
    """A column whose cells hold several values: lists, or many cells have a separator and the parts come again in others."""
    if any(BETWEEN_VALUES in text for text in found.counts):
        return Column(name, "several", separator=SEPARATORS[0], why="lists")
    for separator in SEPARATORS:
        joined = {text: count for text, count in found.counts.items() if separator in text}
        if sum(joined.values()) < (0.02 if separator == "|" else 0.3) * len(found.texts):
            continue
        parts: Counter[str] = Counter()
        for text, count in found.counts.items():
            parts.update(dict.fromkeys(split_cell(text, separator), count))
        is_short = sum(part.count(" ") for part in parts) <= len(parts)
        fewest = len(found.counts) if separator == "|" else len(found.counts) - 1
        if is_short and len(parts) <= fewest and len(parts) * 2 <= parts.total():
            why = f"{len(parts):,} different values between {separator!r}"
            return Column(name, "several", separator=separator, why=why)
    return None


def split_cell(text: str, separator: str) -> list[str]:
    """The different values in a cell, without empty ones. The values of a list are not split any further."""
    parts = text.split(BETWEEN_VALUES if BETWEEN_VALUES in text else separator)
    return list(dict.fromkeys(part for part in map(str.strip, parts) if part))


def _words(name: str, found: Sample, distinct: int) -> Column:
    words = sum(len(text.split()) * count for text, count in found.counts.items()) / len(found.texts)
    share = distinct / len(found.texts)
    if words >= 3 and share > 0.2 and distinct > FEW:
        return Column(name, "text", why=f"{words:.0f} words in a cell")
    if share > DIFFERENT and distinct >= ENOUGH:
        return Column(name, "unused", why=f"an identifier: {distinct:,} different values in {len(found.texts):,} rows")
    return Column(name, "category", why=f"{distinct:,} different values")


def overridden(decided: Column, kind: str, cells: Sequence[str]) -> Column:
    """Returns a column of the kind that a user named, read in the way that fits its cells best."""
    if kind == decided.kind:
        return decided
    found = sample(cells)
    form, separator = "", ""
    if kind == "number":
        form = number_form(found.counts)[0]
    elif kind == "time":
        form = guess(list(found.counts)) or "iso"
    elif kind == "several":
        separator = max(SEPARATORS, key=lambda character: sum(character in text for text in found.texts))
    known: dict[str, Kind] = {name: name for name in get_args(Kind)}
    return Column(decided.name, known[kind], form, separator, "as named")


def adapted(decided: Column, cells: Sequence[str]) -> Column:
    """A column as it was decided for other data, except for how numbers or times are written if these are written otherwise.

    Forms are changed only if fewer than `MOSTLY` of the cells can be read as decided, and more of them in another way.
    """
    is_stored = isinstance(cells, StoredColumn) and cells.numbers() is not None
    found = sample([] if is_stored else cells)
    if decided.kind not in ("number", "time") or not found.texts:
        return decided

    def share(column: Column) -> float:
        read = lenient(column.form) if column.kind == "time" else NUMBERS[column.form]
        return sum(_is_number(read, text) for text in found.counts) / len(found.counts)

    other = replace(decided, form=overridden(Column(decided.name, "unused"), decided.kind, cells).form)
    if decided.kind == "time" and not {decided.form, other.form} <= set(DATED):
        return decided  # numbers may count from another time than dates do
    return decided if share(decided) >= min(MOSTLY, share(other)) else other


def read_kinds(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Kinds by column from texts such as `city=category`. Raises `SubquadError` for one that is not understood."""
    kinds = {}
    for pair in pairs:
        name, equals, kind = pair.rpartition("=")
        if not equals or not name or kind not in KINDS:
            raise SubquadError(f"{option} takes NAME=KIND with a kind out of {', '.join(KINDS)}, but got {excerpt(pair)}")
        kinds[name] = kind
    return kinds


def decide(cells: Mapping[str, Sequence[str]], kinds: Mapping[str, str]) -> dict[str, Column]:
    """Returns what each column holds, by its name; `kinds` are those that a user named."""
    decided = {name: recognise(name, column) for name, column in cells.items()}
    return {
        name: overridden(column, kinds[name], cells[name]) if name in kinds else column for name, column in decided.items()
    }
