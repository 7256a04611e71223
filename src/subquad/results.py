"""A measurement is a flat row; rows are kept as JSON lines, each whole or absent."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from subquad.errors import SubquadError

Row = dict[str, Any]
"""Flat: numbers, strings, booleans and None. `metric`, `value`, `unit`, and what it was measured on."""


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows to a file in one write each, so that a killed process leaves whole lines behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for row in rows:
            file.write(json.dumps(dict(row), allow_nan=False).encode() + b"\n")
            file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. A last line that was cut off while it was written is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise SubquadError(f"there is no file of rows at {path}") from None
    rows: list[Row] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            raise SubquadError(f"line {number} of {path} is not a JSON row: mend it or take it out") from None
        rows.append(row)
    return rows
