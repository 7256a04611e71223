"""A measurement is a flat row; rows are kept as JSON lines, each whole or absent; a run is a folder of them.

``run.json`` says what was run, with which options, on which machine; ``rows.jsonl`` holds what was measured. Everything that
is shown to a person is rebuilt from the two.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.errors import SubquadError

Row = dict[str, Any]
"""Flat: numbers, strings, booleans and None. `metric`, `value`, `unit`, and what it was measured on."""

FORMAT = 1
"""The version of the folder's layout. A run of a later one is refused."""


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows to a file in one write each, so that a killed process leaves whole lines behind it.

    What a killed process did leave of a half line is taken out first.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_half_line(path)
        with path.open("ab") as file:
            for row in rows:
                file.write(json.dumps(dict(row), allow_nan=False).encode() + b"\n")
                file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _cannot_write(path, error) from None


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


@dataclass(frozen=True)
class Run:
    """A folder with ``run.json`` and ``rows.jsonl``."""

    folder: Path
    about: Mapping[str, Any]
    """What is in ``run.json``: kind, options, seed, versions, machine and command."""

    @classmethod
    def create(cls, folder: Path, kind: str, about: Mapping[str, Any]) -> "Run":
        """A new run. A folder that holds one already is refused."""
        refuse_taken(folder)
        run = cls(folder, {"format": FORMAT, "kind": kind, **about})
        write_whole(folder / "run.json", json.dumps(run.about, indent=2) + "\n")
        append_rows(run.rows_path, [])
        return run

    @classmethod
    def open(cls, folder: Path, kind: str | None = None) -> "Run":
        """An existing run, of a certain kind if one is named."""
        path = folder / "run.json"
        try:
            about = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise SubquadError(
                f"{folder} is not a run: it has no run.json (runs are folders such as runs/compare-...)"
            ) from None
        except ValueError:
            raise SubquadError(f"{path} is not JSON: the run cannot be read") from None
        if not isinstance(about, dict) or not isinstance(about.get("format"), int):
            raise SubquadError(f"{path} is not of subquad: it names no format")
        if about["format"] > FORMAT:
            made = about.get("versions", {}).get("subquad", "a newer version")
            raise SubquadError(f"{folder} was made by a newer subquad ({made}): update subquad to read it")
        if kind is not None and about.get("kind") != kind:
            raise SubquadError(f"{folder} is a run of `subquad {about.get('kind')}`, not of `subquad {kind}`")
        return cls(folder, about)

    @property
    def rows_path(self) -> Path:
        """Where its rows are."""
        return self.folder / "rows.jsonl"

    def rows(self) -> list[Row]:
        """What was measured so far."""
        return read_rows(self.rows_path)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keeps rows, at once and for good."""
        append_rows(self.rows_path, rows)

    def keep_rows(self, wanted: Callable[[Row], bool]) -> None:
        """Takes out the rows that are not wanted: those that a run which goes on will make again."""
        rows = self.rows()
        kept = [row for row in rows if wanted(row)]
        if len(kept) < len(rows):
            write_whole(self.rows_path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in kept))


def refuse_taken(folder: Path) -> None:
    """A folder holds one run."""
    if (folder / "run.json").exists():
        raise SubquadError(f"{folder} holds a run already: continue it with --resume {folder}, or choose another --out")


def write_whole(path: Path, text: str) -> None:
    """A file that is there whole or not at all: written beside and renamed."""
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from None


def _drop_half_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def _cannot_write(path: Path, error: OSError) -> SubquadError:
    return SubquadError(f"cannot write {path}: {error.strerror or error}; make room or choose another folder")
