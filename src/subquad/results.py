"""A measurement is a flat row; rows are kept as JSON lines, each whole or absent; a run is a folder of them.

``run.json`` says what was run, with which options, on which machine; ``rows.jsonl`` holds what was measured. Everything that
is shown to a person is rebuilt from the two, and both are checked when they are read.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import (
    Any,
    Literal,
    Required,  # which pydantic needs below Python 3.12
)

from filelock import FileLock, Timeout
from pydantic import ConfigDict
from typing_extensions import TypedDict

from subquad.checking import Count, Positive, Seed, Whole, excerpt, read_as
from subquad.errors import SubquadError
from subquad.files import cannot_write, read_text, write_new, write_whole
from subquad.machine import circumstances

FORMAT = 1
"""The version of the folder's layout. A run of a later one is refused."""

RUNS = Path("runs")
"""The folder in which runs are kept unless a command is given --out."""

LOCK = ".lock"
"""The file in a run's folder that is locked while a command writes to it. The system unlocks it when the command ends."""
LOCK_SECONDS = 1.0
"""How long a command waits for the lock, which a command that was killed a moment ago may still hold."""

Row = dict[str, Any]
"""Flat: numbers, strings, booleans and None. `metric`, `value`, `unit`, and what it was measured on."""

RENAMED = {"width": "head_dim"}
"""Names that fields of rows had in earlier versions, and their names of today."""

Scalar = str | float | int | bool | None
WITHOUT_VALUE = ("sample", "left out", "failure")
"""Metrics whose rows hold words and no value. A row of any metric may say by `failure` why it has none."""
_OPEN = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Record(dict[str, Any]):
    """Fields that were read from a file. Asking for one that is not there says which file lacks it."""

    def __init__(self, fields: Mapping[str, Any], place: str) -> None:
        super().__init__(fields)
        self.place = place

    def __missing__(self, name: str) -> Any:
        raise SubquadError(f"{self.place} lacks {excerpt(name)}: the file is damaged")


def place_of(fields: object) -> str:
    """The file that fields were read from, for messages."""
    return getattr(fields, "place", "the options")


class RowFields(TypedDict, total=False):
    """Types of the fields that rows have. A field with another name may hold any text, number or truth value."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    metric: Required[str]
    value: float | int | None
    unit: str
    low: float | None
    high: float | None
    step: Whole
    at: Whole
    split: str
    mechanism: str
    model: str
    recipe: str
    stage: str
    form: Literal["causal", "bidirectional"]
    what: str
    length: Positive
    batch: Count
    heads: Count
    head_dim: Count
    threads: Count
    dtype: str
    device: str
    visit: Whole
    rounds: Count
    layer: Whole
    head: Whole
    failure: str
    message: str
    given: str
    answered: str
    right: str


class MachineFields(TypedDict, total=False):
    """Types of what ``run.json`` says of the machine."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    processor: str
    cores: Count
    memory_bytes: Count
    system: str


class AboutFields(TypedDict, total=False):
    """Types of the fields of ``run.json``. Those of the options are checked where they are used."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    format: Required[int]
    kind: str
    options: dict[str, Any]
    mechanisms: dict[str, dict[str, Any]]
    learned: dict[str, Any]
    seed: Seed
    page: bool
    versions: dict[str, str]
    machine: MachineFields
    command: str
    started: str


def new_folder(*names: str) -> Path:
    """The default folder of a run that starts now: runs/NAMES-DATE-TIME."""
    return RUNS / "-".join([*names, f"{datetime.now(UTC):%Y%m%d-%H%M%S}"])


def holds_run(folder: Path) -> bool:
    """Whether there is a run in a folder."""
    return (folder / "run.json").exists()


def describe_run(
    options: Mapping[str, Any], command: Sequence[str], *, seed: int | None = None, page: bool | None = None
) -> dict[str, Any]:
    """What run.json keeps of a command: its options and words, the versions, the machine and the time of its start."""
    chosen = {"seed": seed, "page": page}
    return {
        "options": dict(options),
        **{name: value for name, value in chosen.items() if value is not None},
        **circumstances(shlex.join(["subquad", *command])),
    }


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
        raise cannot_write(path, error) from None


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. A last line that was cut off while it was written is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise SubquadError(f"there is no file of rows at {path}") from None
    except OSError as error:
        raise SubquadError(f"cannot read {path}: {error.strerror}") from None
    return [_row(line, f"line {number} of {path}") for number, line in enumerate(lines[:-1], start=1)]


def _row(line: bytes, place: str) -> Row:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise SubquadError(f"{place} is not a JSON row: mend it or take it out") from None
    if not isinstance(fields, dict):
        raise SubquadError(f"{place} is not a row with fields: mend it or take it out")
    fields = {RENAMED.get(name, name): value for name, value in fields.items()}
    read_as(RowFields, fields, f"{place}:")
    if "value" in fields and fields["value"] is None and fields["metric"] not in WITHOUT_VALUE and "failure" not in fields:
        raise SubquadError(f"{place}: {excerpt(fields['metric'])} has no value: mend the row or take it out")
    for name, value in fields.items():
        if not isinstance(value, Scalar):
            raise SubquadError(f"{place}: {excerpt(name)} must be a text, a number or nothing, but is {excerpt(value)}")
    return _Record(fields, place)


@dataclass(frozen=True)
class Run:
    """A folder with ``run.json`` and ``rows.jsonl``."""

    folder: Path
    about: Mapping[str, Any]
    """What is in ``run.json``: kind, options, seed, versions, machine and command."""

    @classmethod
    def create(cls, folder: Path, kind: str, about: Mapping[str, Any], rows: Iterable[Mapping[str, Any]] = ()) -> "Run":
        """A new run, with rows where they are all known already. A folder that holds a run is refused.

        The rows are written before ``run.json``, without which a folder is no run: a killed command leaves all of them or
        no run at all.
        """
        refuse_taken(folder)
        run = cls(folder, {"format": FORMAT, "kind": kind, **about})
        with run.writing():
            refuse_taken(folder)  # it may have been made by another command in this very moment
            run._replace_rows(rows)
            write_new(folder / "run.json", json.dumps(run.about, indent=2) + "\n")
        return run

    @classmethod
    def open(cls, folder: Path, kind: str | None = None) -> "Run":
        """An existing run, of a certain kind if one is named."""
        path = folder / "run.json"
        if not holds_run(folder):
            raise SubquadError(f"{folder} is not a run: it has no run.json (runs are folders such as runs/compare-...)")
        try:
            about = json.loads(read_text(path), object_hook=lambda fields: _Record(fields, str(path)))
        except (ValueError, RecursionError) as error:
            raise SubquadError(f"{path} is not JSON: the run cannot be read") from error
        if not isinstance(about, dict) or not isinstance(about.get("format"), int):
            raise SubquadError(f"{path} is not of subquad: it names no format")
        if about["format"] > FORMAT:
            made_by = about.get("versions")
            version = made_by.get("subquad") if isinstance(made_by, dict) else None
            raise SubquadError(f"{folder} was made by a newer subquad ({version or 'unknown'}): update subquad to read it")
        read_as(AboutFields, about, f"{path}:")
        if kind is not None and about.get("kind") != kind:
            raise SubquadError(f"{folder} is a run of `subquad {about.get('kind')}`, not of `subquad {kind}`")
        return cls(folder, about)

    @property
    def rows_path(self) -> Path:
        """The file with its rows."""
        return self.folder / "rows.jsonl"

    def rows(self) -> list[Row]:
        """What was measured so far. A run without the file has not measured anything."""
        return read_rows(self.rows_path) if os.path.lexists(self.rows_path) else []

    def count_rows(self) -> int:
        """How many rows there are, without reading what is in them."""
        if not self.rows_path.exists():
            return 0
        with self.rows_path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes rows to the disk."""
        append_rows(self.rows_path, rows)

    def keep_rows(self, wanted: Callable[[Row], bool]) -> None:
        """Deletes the rows that are not wanted."""
        rows = self.rows()
        kept = [row for row in rows if wanted(row)]
        if len(kept) < len(rows):
            self._replace_rows(kept)

    def keep_first_rows(self, count: int) -> None:
        """Deletes all rows but the first ones."""
        if count < self.count_rows():
            self._replace_rows(self.rows()[:count] if count else ())  # where none is kept, none has to be readable

    def _replace_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        write_whole(self.rows_path, "".join(json.dumps(dict(row), allow_nan=False) + "\n" for row in rows))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside the block, this process alone writes to the run. A second one is refused in a sentence.

        The lock is the system's, on an open file that child processes do not inherit: it ends with the process.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from None
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise SubquadError(
                f"another command is writing to {self.folder} at this moment: wait for it to end, or choose another --out"
            ) from None
        except OSError as error:
            raise cannot_write(self.folder / LOCK, error) from None
        try:
            yield
        finally:
            lock.release()


def refuse_taken(folder: Path) -> None:
    """Refuses a folder that holds a run already."""
    if holds_run(folder):
        raise SubquadError(f"{folder} holds a run already: continue it with --resume {folder}, or choose another --out")


def _drop_half_line(path: Path) -> None:
    """Cuts the file after its last line break, looking at its end only."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)


_BLOCK = 2**16  # bytes that are searched for line breaks at once
