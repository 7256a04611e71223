"""Tables in JSON lines: an object in each line, whose fields are the columns."""

import io
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from subquad.errors import SubquadError
from subquad.files import cannot_read, open_plain

JSON_LINES = (".jsonl", ".ndjson")
"""Suffixes of files with a JSON object in each line."""

BETWEEN_VALUES = "\x1f"
"""Character between the values of a list that is one cell, ASCII's unit separator, which no text has."""

LONGEST_LINE = 2**20
"""Largest number of characters of a line. A longer line is refused before it is read as a whole."""


class Record(NamedTuple):
    """The cells of a line by the name of the column, as they would stand in a CSV file."""

    cells: dict[str, str]
    line: int


def json_cell(value: Any) -> str:
    """A value of JSON as it would stand in a CSV file: "" for null, the values of a list with marks between them."""
    if value is None:
        return ""
    if isinstance(value, list):
        return BETWEEN_VALUES.join(map(json_cell, value))
    return value if isinstance(value, str) else json.dumps(value)


def json_cells(text: str) -> dict[str, str]:
    """The cells of a JSON object by name. Raises `SubquadError` for a text that is none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, Mapping):
        raise SubquadError("it is no JSON object: check its braces and quotation marks")
    return {name.strip(): json_cell(value) for name, value in record.items()}


def read_json_lines(path: Path, size: int) -> Iterator[list[Record]]:
    """Yields the records of a file, `size` at a time, without empty lines."""
    try:
        with open_plain(path) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig") as file:
            records = _records(path, file)
            while batch := list(islice(records, size)):
                yield batch
    except OSError as error:
        raise cannot_read(path, error) from None
    except UnicodeDecodeError:
        raise SubquadError(f"{path} is not text in UTF-8: save it as such") from None


def _records(path: Path, file: io.TextIOBase) -> Iterator[Record]:
    number = 0
    while text := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(text) > LONGEST_LINE:
            raise SubquadError(f"line {number} of {path} is longer than {LONGEST_LINE:,} characters: this is not a table")
        if text.strip():
            try:
                yield Record(json_cells(text), number)
            except SubquadError as error:
                raise SubquadError(f"line {number} of {path} cannot be read: {error}") from None
