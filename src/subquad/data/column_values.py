"""Turns the cells of recognized columns into arrays, chunk by chunk: numbers of names, real numbers, or several numbers."""

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from subquad.data.columns import MISSING, NUMBERS, Column, is_missing, split_cell
from subquad.data.tables import LARGEST_NUMBER, Names, StoredColumn
from subquad.data.times import attempt, lenient, numbers

MISSING_NAME = ""
"""Name of a missing value among the names of a column."""
NOTHING = -1
"""Number in place of a further value where a cell has fewer values than others."""
MOST_VALUES = 16
"""Largest number of values of one cell that are used."""
WORDS = re.compile(r"\w+")


class ColumnValues(NamedTuple):
    """The values of a column in all rows.

    Attributes:
        column: what the column holds.
        values: for numbers and times, real numbers, NaN where there is none. For categories and truths, indices into
            `names`. For texts and cells of several values, a row of indices into `names`, filled up with -1.
        names: the different values, words or parts; empty for numbers and times.
    """

    column: Column
    values: Shaped[ndarray, "rows ..."]
    names: list[str]

    @property
    def is_numeric(self) -> bool:
        """Whether the values are real numbers."""
        return self.column.kind in ("number", "time")

    def take(self, rows: Shaped[ndarray, "some"]) -> "ColumnValues":
        """The values of some rows."""
        return self._replace(values=self.values[rows])

    def missing(self) -> Shaped[ndarray, "rows"]:
        """Marks rows without a value."""
        if self.is_numeric:
            return np.isnan(self.values)
        first = self.values if self.values.ndim == 1 else self.values[:, 0]
        nameless = self.names.index(MISSING_NAME) if MISSING_NAME in self.names else -2
        return first == nameless


class ColumnReader:
    """Reads the cells of one column, chunk by chunk."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.names = Names()
        self.numbered: dict[str, list[int]] = {}
        self.parts: list[ndarray] = []
        self.unreadable = 0
        """Number of cells that are neither missing nor of the kind of the column; they count as missing."""
        self.cut = 0
        """Number of cells with more values than are used."""

    def read(self, cells: Sequence[str]) -> ndarray:
        """Returns the values of some cells."""
        if self.column.kind in ("number", "time"):
            return self._real(cells)
        if self.column.kind in ("text", "several"):
            return self._parts(cells)
        places, values = _coded(cells)
        known = self.names.number([MISSING_NAME if is_missing(text.strip()) else text for text in values])
        return known[places]

    def keep(self, values: ndarray) -> None:
        """Adds values that `read` returned."""
        self.parts.append(values)

    def finished(self) -> ColumnValues:
        """Returns all values that were kept."""
        wide = max((part.shape[1] for part in self.parts if part.ndim > 1), default=0)
        parts = [_widened(part, wide) if part.ndim > 1 else part for part in self.parts]
        values = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        return ColumnValues(self.column, values, self.names.ordered())

    def sentences(self, file: str, *, can_choose: bool = True) -> list[str]:
        """Sentences about cells that were not of the kind of the column, or were cut.

        `can_choose` says that the command has the option that names the kind of a column.
        """
        said = []
        if self.unreadable:
            cells = "1 cell is" if self.unreadable == 1 else f"{self.unreadable:,} cells are"
            advice = "; if it holds something else, name its kind by --column-kinds" if can_choose else ""
            where = f"not a {self.column.kind} in the column {self.column.name!r:.60}"
            said.append(f"{file}: {cells} {where} and count as missing{advice}")
        if self.cut:
            said.append(
                f"{file}: {self.cut:,} cells of the column {self.column.name!r:.60} have more than {MOST_VALUES} values, of "
                "which the first are used"
            )
        return said

    def _real(self, cells: Sequence[str]) -> ndarray:
        is_time = self.column.kind == "time"
        read = lenient(self.column.form) if is_time else NUMBERS[self.column.form]
        stored = None
        if isinstance(cells, StoredColumn) and (cells.is_time or not is_time or read is float):
            stored = cells.numbers()
        if stored is not None:
            real, present = stored, ~np.isnan(stored)
        else:
            places, texts = _coded(cells)
            by_text = numbers(texts, lambda text: attempt(read, text.strip()))
            real, present = by_text[places], np.array([text.strip().lower() not in MISSING for text in texts], bool)[places]
        real = np.where(np.isfinite(real) & (np.abs(real) <= LARGEST_NUMBER), real, np.nan)
        self.unreadable += int((present & np.isnan(real)).sum())
        return real if is_time else real.astype(np.float32)

    def _parts(self, cells: Sequence[str]) -> ndarray:
        places, texts = _coded(cells)
        rows = [self._numbered(text) for text in texts]
        wide = max(map(len, rows), default=1)
        self.cut += int(np.array([len(row) > MOST_VALUES for row in rows], bool)[places].sum()) if rows else 0
        padded = np.full((len(rows), min(wide, MOST_VALUES)), NOTHING, np.int32)
        for at, row in enumerate(rows):
            padded[at, : len(row[:MOST_VALUES])] = row[:MOST_VALUES]
        return padded[places]

    def _numbered(self, text: str) -> list[int]:
        text = text.strip()
        if is_missing(text):
            parts = [MISSING_NAME]
        elif self.column.kind == "text":
            parts = list(dict.fromkeys(WORDS.findall(text.lower()))) or [MISSING_NAME]
        else:
            parts = split_cell(text, self.column.separator) or [MISSING_NAME]
        return self.names.number(parts).tolist()


def _coded(cells: Sequence[str]) -> tuple[ndarray, list[str]]:
    """The different texts of some cells, and for each cell the index of its text."""
    if isinstance(cells, StoredColumn):
        places, values = cells.coded()
        used, places = np.unique(places, return_inverse=True)
        return places, [values[at] for at in used]
    different = {text: at for at, text in enumerate(dict.fromkeys(cells))}
    return np.fromiter(map(different.__getitem__, cells), np.int64, len(cells)), list(different)


def _widened(part: ndarray, wide: int) -> ndarray:
    return np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=NOTHING)


def hashed(name: str, buckets: int) -> int:
    """The bucket of a name, the same in every process."""
    return zlib.crc32(name.encode(errors="replace")) % buckets
