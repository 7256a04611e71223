"""Reading files of rows, many rows at a time, with the number of each row's line."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.errors import SubquadError

CHUNK = 50_000
"""Rows at a time: texts take much more room than the numbers that they become."""

Choose = Callable[[list[str]], Mapping[str, str]]
"""From the names of a file's columns to those that are wanted, each by what it is for."""


class Chunk(NamedTuple):
    """Some rows, column by column; each column by what it is for."""

    columns: dict[str, Sequence[str]]
    lines: Int[ndarray, "rows"]


class Tally:
    """Rows of a file that are left out: why, how many, and the first one's line."""

    def __init__(self, path: Path, place: str = "line") -> None:
        self.path, self.place = path, place
        self.counts: dict[str, tuple[int, int]] = {}

    def add(self, why: str, lines: Int[ndarray, "rows"]) -> None:
        """Counts the rows on these lines."""
        if len(lines):
            count, first = self.counts.get(why, (0, int(lines[0])))
            self.counts[why] = (count + len(lines), first)

    def sentences(self) -> list[str]:
        """One for each reason."""
        said = []
        for why, (count, first) in self.counts.items():
            rows, at = ("1 row is", "at") if count == 1 else (f"{count:,} rows are", "the first at")
            said.append(f"{self.path.name}: {rows} left out, {why}: {at} {self.place} {first}")
        return said


def read_table(path: Path, choose: Choose, tally: Tally, *, encoding: str = "utf-8-sig") -> Iterator[Chunk]:
    """The wanted columns of a text with separators, or of a Parquet file by its suffix."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path, choose)
    return _read_text(path, choose, tally, encoding)


def _read_text(path: Path, choose: Choose, tally: Tally, encoding: str) -> Iterator[Chunk]:
    try:
        with path.open(newline="", encoding=encoding) as file:
            heading = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=heading.count))
            names = [name.strip() for name in next(reader, [])]
            if not names:
                raise SubquadError(f"{path} is empty: it should begin with a line of column names")
            at = {role: names.index(name) for role, name in choose(names).items()}
            before, ended = reader.line_num, _ends_with_newline(path)
            following = list(islice(reader, CHUNK))
            while rows := following:
                lines = _lines(rows, before, reader.line_num)
                before, following = reader.line_num, list(islice(reader, CHUNK))
                rows, lines = _whole(rows, lines, len(names), tally, cut=not following and not ended)
                columns = list(zip(*rows, strict=True)) or [()] * len(names)
                yield Chunk({role: columns[place] for role, place in at.items()}, lines)
    except OSError as error:
        raise cannot_read(path, error) from None
    except UnicodeDecodeError:
        raise SubquadError(f"{path} is not text in UTF-8: save it as such") from None
    except csv.Error as error:
        raise SubquadError(f"{path} cannot be read near line {before}: {error}; mend that line") from None


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        if not file.tell():
            return False
        file.seek(-1, 2)
        return file.read(1) in b"\r\n"


def _lines(rows: list[list[str]], before: int, after: int) -> Int[ndarray, "rows"]:
    """The line that each row begins on; a row has several where a quoted text goes over lines."""
    if after - before == len(rows):
        return np.arange(before + 1, after + 1)
    taken = np.array([1 + sum(text.count("\n") for text in row) for row in rows])
    return before + 1 + np.cumsum(taken) - taken


def _whole(
    rows: list[list[str]], lines: Int[ndarray, "rows"], width: int, tally: Tally, *, cut: bool
) -> tuple[list[list[str]], Int[ndarray, "rows"]]:
    """The rows that have every column. `cut`: these are the last, and the file does not end with the end of a line."""
    widths = np.fromiter(map(len, rows), np.int64, len(rows))
    good = widths == width
    if good.all():
        return rows, lines
    if cut and 0 < widths[-1] < width:
        tally.add("cut in the middle by the end of the file", lines[-1:])
        widths[-1] = 0
    tally.add("with too few columns", lines[(widths > 0) & (widths < width)])
    tally.add("with too many columns", lines[widths > width])
    return [rows[at] for at in np.flatnonzero(good)], lines[good]


def _read_parquet(path: Path, choose: Choose) -> Iterator[Chunk]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise SubquadError(f"{path} is a Parquet file: to read it, pip install 'subquad[data]'") from None
    try:
        with path.open("rb") as opened:
            file = parquet.ParquetFile(opened)
            chosen = choose(list(file.schema_arrow.names))
            first = 1
            for batch in file.iter_batches(CHUNK, columns=list(dict.fromkeys(chosen.values()))):
                columns: dict[str, Sequence[str]] = {role: _texts(batch.column(name)) for role, name in chosen.items()}
                yield Chunk(columns, np.arange(first, first + batch.num_rows))
                first += batch.num_rows
    except OSError as error:
        raise cannot_read(path, error) from None
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise SubquadError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _texts(column: Any) -> list[str]:
    """A column as it would stand in a CSV file; times as seconds."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_timestamp(kind) or pyarrow.types.is_date(kind):
        micro = column.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
        return ["" if value is None else repr(value / 1e6) for value in micro.to_pylist()]
    return ["" if value is None else value for value in column.cast(pyarrow.string()).to_pylist()]


def cannot_read(path: Path, error: OSError) -> SubquadError:
    """The sentence for a file that is not there or may not be read."""
    return SubquadError(f"cannot read {path}: {error.strerror or error}")
