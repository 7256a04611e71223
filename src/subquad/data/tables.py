"""Reading tables in chunks of rows, with the line number of each row."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import psutil
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.json_tables import BETWEEN_VALUES, JSON_LINES, LONGEST_LINE, read_json_lines
from subquad.errors import SubquadError
from subquad.files import cannot_read, open_plain

CHUNK = 50_000
"""Number of rows read at a time, because texts take much more memory than the numbers made from them."""

ROW_BYTES = 100
"""Lower bound on the bytes of a row, by which files with too many rows are refused before they are read."""

LARGEST_NUMBER = 1e30
"""Times and amounts beyond this are refused: sums of their squares would overflow."""

ENDS_IN_QUOTES = "unexpected end of data"
"""Message of the module csv for a file that ends inside a quoted text."""

PARQUET = (".parquet", ".pq")
ARROW = (".arrow",)
STORED = (*PARQUET, *ARROW)
"""Suffixes of tables that are not text. Arrow's are the files of a data set that Hugging Face's datasets saved."""

Choose = Callable[[list[str]], Mapping[str, str]]
"""Returns the wanted columns by role, given the names of all columns of a file."""


class StoredColumn(Sequence[str]):
    """A column of a Parquet file: texts on demand, and numbers or distinct values without making a text of each row."""

    def __init__(self, stored: Any, *, is_time: bool = False, lists: Any = None) -> None:
        """A column of values, or of lists of values.

        Args:
            stored: an array of pyarrow with numbers, truths or texts; lists are texts with spaces between their values.
            is_time: whether the numbers are seconds.
            lists: an array of lists, if the column holds these.
        """
        self.stored, self.is_time, self.lists = stored, is_time, lists

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, at: Any) -> Any:
        return self.texts[at]

    @cached_property
    def texts(self) -> list[str]:
        """The values as they would stand in a CSV file."""
        import pyarrow

        return ["" if value is None else value for value in self.stored.cast(pyarrow.string()).to_pylist()]

    def with_marks(self) -> "StoredColumn":
        """The column with `BETWEEN_VALUES` between the values of a list; itself if it holds no lists."""
        return self if self.lists is None else StoredColumn(_joined(self.lists, BETWEEN_VALUES), lists=self.lists)

    def coded(self) -> tuple[Int[ndarray, "rows"], list[str]]:
        """For each row the index of its value among the distinct values, and these as texts, "" for a missing value last."""
        encoded = self.stored.dictionary_encode()
        values = StoredColumn(encoded.dictionary).texts
        places = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        return places.astype(np.int64), [*values, ""]

    def numbers(self) -> Float[ndarray, "rows"] | None:
        """The values as numbers, NaN where there is none; None for a column that holds no numbers."""
        import pyarrow

        kind = self.stored.type
        if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
            return None
        floats = self.stored.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(floats, np.float64)


class Chunk(NamedTuple):
    """Some rows of a table: the columns by role, and the line number of each row."""

    columns: dict[str, Sequence[str]]
    lines: Int[ndarray, "rows"]


class Tally:
    """Counts rows of a file that are left out, by reason, with the line of the first one."""

    def __init__(self, path: Path, place: str = "line") -> None:
        self.path, self.place = path, place
        self.counts: dict[str, tuple[int, int]] = {}

    def add(self, why: str, lines: Int[ndarray, "rows"]) -> None:
        """Counts the rows on the given lines as left out for a reason."""
        if len(lines):
            count, first = self.counts.get(why, (0, int(lines[0])))
            self.counts[why] = (count + len(lines), first)

    def sentences(self) -> list[str]:
        """One sentence for each reason, with the number of rows and the place of the first."""
        sentences = []
        for why, (count, first) in self.counts.items():
            rows, at = ("1 row is", "at") if count == 1 else (f"{count:,} rows are", "the first at")
            sentences.append(f"{self.path.name}: {rows} left out, {why}: {at} {self.place} {first}")
        return sentences


class Names:
    """Numbers names in the order of their first occurrence, ignoring spaces around them."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.written: dict[str, int] = {}  # numbers by the names as written, with their spaces

    def number(self, column: Sequence[str]) -> Int[ndarray, "rows"]:
        """The number of each name. A name that was not seen before gets a new number."""
        if isinstance(column, StoredColumn):
            places, values = column.coded()
            is_missing = len(values) - 1
            numbered = self.number(values if (places == is_missing).any() else values[:-1])
            return numbered[places]
        for text in set(column).difference(self.written) and dict.fromkeys(column):
            self.written[text] = self.numbers.setdefault(text.strip(), len(self.numbers))
        return np.fromiter(map(self.written.__getitem__, column), np.int32, len(column))

    def ordered(self) -> list[str]:
        """The names in the order of their numbers."""
        return list(self.numbers)


def listed(names: Iterable[str], most: int = 4) -> str:
    """The first `most` names, shortened, for a message."""
    first_names = list(islice(names, most + 1))
    return ", ".join([*map(excerpt, first_names[:most]), *(["..."] if len(first_names) > most else [])])


def find_column(path: Path, names: Sequence[str], chosen: str, known: Sequence[str], option: str, role: str) -> str:
    """The name of a column: `chosen` if it is not empty, or else the first of `known` that the table has."""
    for name in (chosen,) if chosen else known:
        if name in names:
            return name
    raise SubquadError(
        f"{path} has no column {chosen or known[0]!r} but {listed(names)}: name the one with the {role} by {option}"
    )


def read_table(
    path: Path, choose: Choose, tally: Tally, *, encoding: str = "utf-8-sig", quoted: bool = True
) -> Iterator[Chunk]:
    """Yields the chosen columns of a CSV file, or by its suffix of JSON lines, a Parquet or Arrow file, in chunks.

    With `quoted` false, quotation marks are part of the cells, and no cell holds a line break.
    """

    def choose_once(names: list[str]) -> Mapping[str, str]:
        chosen = choose(names)
        for name in chosen.values():
            if names.count(name) > 1:
                raise SubquadError(f"{path} has {names.count(name)} columns {excerpt(name)}: rename all but one")
        return chosen

    if path.suffix.lower() in STORED:
        return _read_stored(path, choose_once)
    if path.suffix.lower() in JSON_LINES:
        return _read_json(path, choose_once)
    return _read_text(path, choose_once, tally, encoding, csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)


def _read_json(path: Path, choose: Choose) -> Iterator[Chunk]:
    """Yields the columns of JSON lines. The names of all columns are those of the first chunk."""
    chosen: Mapping[str, str] | None = None
    for records in read_json_lines(path, CHUNK):
        if chosen is None:
            chosen = choose(list(dict.fromkeys(name for record in records for name in record.cells)))
        columns = {role: [record.cells.get(name, "") for record in records] for role, name in chosen.items()}
        yield Chunk(dict(columns), np.array([record.line for record in records], np.int64))
    if chosen is None:
        raise SubquadError(f"{path} is empty: it should have a JSON object in each line")


def _read_text(path: Path, choose: Choose, tally: Tally, encoding: str, quoting: Literal[0, 3]) -> Iterator[Chunk]:
    reader = None
    try:
        with open_plain(path) as opened, io.TextIOWrapper(opened, encoding=encoding, newline="") as file:
            heading = file.readline(LONGEST_LINE)
            file.seek(0)
            delimiter = max(",;\t", key=heading.count)
            reader = csv.reader(_lines(path, file), delimiter=delimiter, strict=True, quoting=quoting)
            names = [name.strip() for name in next(reader, [])]
            if not names:
                raise SubquadError(f"{path} is empty: it should begin with a line of column names")
            places = {role: names.index(name) for role, name in choose(names).items()}
            yield from _chunks(reader, places, len(names), tally, is_cut=not _ends_with_newline(path))
    except OSError as error:
        raise cannot_read(path, error) from None
    except UnicodeDecodeError:
        raise SubquadError(f"{path} is not text in UTF-8: save it as such") from None
    except csv.Error as error:
        at = 1 if reader is None else reader.line_num
        raise SubquadError(f"{path} cannot be read near line {at}: {_csv_problem(str(error))}; mend it") from None


def _lines(path: Path, file: io.TextIOBase) -> Iterator[str]:
    """Yields the lines of a file. Raises `SubquadError` for a line that is too long, before it is read as a whole."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise SubquadError(f"line {number} of {path} is longer than {LONGEST_LINE:,} characters: this is not a table")
        yield line


def _csv_problem(message: str) -> str:
    if message.startswith("field larger"):
        return f"a text in it has more than {csv.field_size_limit():,} characters, maybe because a quotation mark never ends"
    if message == ENDS_IN_QUOTES:
        return "a quotation mark never ends"
    return message


def _chunks(reader: Any, places: Mapping[str, int], width: int, tally: Tally, *, is_cut: bool) -> Iterator[Chunk]:
    """Yields the rows that have all columns. `is_cut` says that the file does not end with a line break.

    All cells go into one list, because many lists of rows would slow down the garbage collector.
    """
    pick = _picker(list(places.values()))
    short: list[int] = []  # the line of the latest row, if it has too few columns
    while True:
        cells: list[str] = []
        lines: list[int] = []
        line = before = reader.line_num + 1
        try:
            for row in islice(reader, CHUNK):
                if short:
                    tally.add("with too few columns", np.array(short, np.int64))
                    short = []
                if len(row) == width:
                    cells += pick(row)
                    lines.append(line)
                elif len(row) > width:
                    tally.add("with too many columns", np.array([line]))
                elif row:
                    short = [line]
                line = reader.line_num + 1
        except csv.Error as error:
            if str(error) != ENDS_IN_QUOTES or reader.line_num > line:
                raise
            short = [line]  # the file was cut inside a text of its last line
        if line == before:
            break
        yield Chunk({role: cells[at :: len(places)] for at, role in enumerate(places)}, np.array(lines, np.int64))
    tally.add("cut in the middle by the end of the file" if is_cut else "with too few columns", np.array(short, np.int64))


def _picker(places: Sequence[int]) -> Callable[[Sequence[str]], Sequence[str]]:
    """Returns a function that picks the cells at these places out of a row."""
    if len(places) > 1:
        return itemgetter(*places)
    (place,) = places
    return lambda row: (row[place],)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        if not file.tell():
            return False
        file.seek(-1, 2)
        return file.read(1) in b"\r\n"


def _read_stored(path: Path, choose: Choose) -> Iterator[Chunk]:
    kind = "Arrow" if path.suffix.lower() in ARROW else "Parquet"
    try:
        import pyarrow
    except ImportError:
        raise SubquadError(f"{path} is {_an(kind)} file: to read it, pip install 'subquad[data]'") from None
    try:
        with open_plain(path) as opened:
            yield from _stored_chunks(_arrow_batches(opened, choose) if kind == "Arrow" else _parquet(path, opened, choose))
    except (pyarrow.ArrowException, KeyError) as error:
        message = str(error).partition("\n")[0][:150]
        raise SubquadError(f"{path} cannot be read as {kind}: {message}") from None
    except OSError as error:
        raise cannot_read(path, error) from None


def _an(kind: str) -> str:
    return f"{'an' if kind.startswith('A') else 'a'} {kind}"


def _parquet(path: Path, opened: BinaryIO, choose: Choose) -> Iterator[tuple[Mapping[str, str], Any]]:
    """Yields the chosen columns and batches of rows of a Parquet file."""
    from pyarrow import parquet

    file = parquet.ParquetFile(opened)
    if file.metadata.num_rows * ROW_BYTES > psutil.virtual_memory().available:
        raise SubquadError(f"{path} has {file.metadata.num_rows:,} rows, too many for the memory: split it")
    chosen = choose(list(file.schema_arrow.names))
    for batch in file.iter_batches(CHUNK, columns=list(dict.fromkeys(chosen.values()))):
        yield chosen, batch


def _arrow_batches(opened: BinaryIO, choose: Choose) -> Iterator[tuple[Mapping[str, str], Any]]:
    """Yields the chosen columns and batches of rows of an Arrow file, in its form for streams or for files."""
    from pyarrow import ipc

    is_file = opened.read(6) == b"ARROW1"
    opened.seek(0)
    if is_file:
        file = ipc.open_file(opened)
        chosen = choose(list(file.schema.names))
        for at in range(file.num_record_batches):
            yield chosen, file.get_batch(at)
        return
    with ipc.open_stream(opened) as stream:
        chosen = choose(list(stream.schema.names))
        for batch in stream:
            yield chosen, batch


def _stored_chunks(batches: Iterable[tuple[Mapping[str, str], Any]]) -> Iterator[Chunk]:
    first = 1
    for chosen, batch in batches:
        columns: dict[str, Sequence[str]] = {role: _stored(batch.column(name)) for role, name in chosen.items()}
        yield Chunk(columns, np.arange(first, first + batch.num_rows))
        first += batch.num_rows


def _stored(column: Any) -> StoredColumn:
    """A column of Parquet or Arrow: times in seconds, lists as texts with spaces, and other values as texts."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        return _stored(column.dictionary_decode())
    if pyarrow.types.is_timestamp(kind) or pyarrow.types.is_date(kind):
        micro = column.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
        seconds = micro.to_numpy(zero_copy_only=False) / 1e6
        return StoredColumn(pyarrow.array(seconds, pyarrow.float64(), from_pandas=True), is_time=True)
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        return StoredColumn(_joined(column, " "), lists=column)
    is_plain = pyarrow.types.is_boolean(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    return StoredColumn(column if is_plain else column.cast(pyarrow.string()))


def _joined(lists: Any, separator: str) -> Any:
    """An array of texts with a separator between the values of each list."""
    import pyarrow

    cells = (None if cell is None else separator.join(map(str, cell)) for cell in lists.to_pylist())
    return pyarrow.array(cells, pyarrow.string())
