"""Runs and their measurements: a run is a folder, a measurement is a flat row, and rows are kept as JSON lines.

``run.json`` holds the options, the versions and the machine; ``rows.jsonl`` holds the measurements. All tables, charts and
pages are rebuilt from these two files, and both are checked when they are read.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import (
    Any,
    Literal,
    Required,  # pydantic needs it below Python 3.12
)

from filelock import FileLock, Timeout
from pydantic import ConfigDict
from typing_extensions import TypedDict

from subquad.checking import Count, NonNegative, Positive, Seed, Whole, excerpt, read_as
from subquad.errors import SubquadError
from subquad.files import cannot_write, read_text, write_new, write_whole
from subquad.machine import circumstances

FORMAT = 1
"""Version of the layout of a run's folder. Runs with a later version are refused."""

RUNS = Path("runs")
"""Folder in which commands create runs if --out is not given."""

LOCK = ".lock"
"""Name of the file that a command locks while it writes to a run. The lock ends with the process."""
LOCK_SECONDS = 1.0
"""How long a command waits for the lock of a run, which a process that was just killed may still hold."""

Row = dict[str, Any]
"""A flat measurement with `metric`, `value`, `unit` and the conditions: numbers, strings, booleans and None."""

RENAMED = {"width": "head_dim"}
"""Maps names that fields of rows had in earlier versions to the current names."""

Scalar = str | float | int | bool | None
WITHOUT_VALUE = ("sample", "left out", "failure", "held")
"""Metrics whose rows may have no value. A row of any other metric without a value gives the reason in `failure`."""
_OPEN = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Record(dict[str, Any]):
    """Fields that were read from a file. Accessing a missing field raises an error that names the file."""

    def __init__(self, fields: Mapping[str, Any], place: str) -> None:
        super().__init__(fields)
        self.place = place

    def __missing__(self, name: str) -> Any:
        raise SubquadError(f"{self.place} lacks {excerpt(name)}: the file is damaged")


def place_of(fields: object) -> str:
    """The name of the file that `fields` were read from, for messages."""
    return getattr(fields, "place", "the options")


class RowFields(TypedDict, total=False):
    """Types of the known fields of rows. Any other field may hold a text, a number or a truth value."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    metric: Required[str]
    value: float | int | None
    unit: str
    low: float | None
    high: float | None
    step: Whole
    elapsed: float | int
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
    inputs: str
    size: Positive
    kernel: str
    projection: str
    features: Count
    angle: NonNegative
    formula: NonNegative
    failure: str
    message: str
    given: str
    answered: str
    right: str


class MachineFields(TypedDict, total=False):
    """Types of the fields that describe the machine in ``run.json``."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    processor: str
    cores: Count
    memory_bytes: Count
    system: str


class AboutFields(TypedDict, total=False):
    """Types of the fields of ``run.json``. The contents of `options` are checked where they are used."""

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


def folder_name(attention: str) -> str:
    """The name of an attention, or of several by layer, as part of a folder's name."""
    return attention.replace("*", "x").replace(",", "-").replace(" ", "-").replace(":", ".")


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / "run.json").exists()


def describe_run(
    options: Mapping[str, Any], command: Sequence[str], *, seed: int | None = None, page: bool | None = None
) -> dict[str, Any]:
    """Returns the fields of run.json for a command: options, command line, versions, machine and time of the start."""
    chosen = {"seed": seed, "page": page}
    return {
        "options": dict(options),
        **{name: value for name, value in chosen.items() if value is not None},
        **circumstances(shlex.join(["subquad", *command])),
    }


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends rows to a file, one write for each, so that a killed process leaves at most one incomplete line.

    An incomplete last line that a killed process left is removed first.
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
    """Returns the rows of a file. An incomplete last line is ignored."""
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
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise SubquadError(f"{place}: {excerpt(name)} is too large a number: mend the row or take it out")
    return _Record(fields, place)


@dataclass(frozen=True)
class Run:
    """A folder with ``run.json`` and ``rows.jsonl``."""

    folder: Path
    about: Mapping[str, Any]
    """Contents of ``run.json``: kind, options, seed, versions, machine and command."""

    @classmethod
    def create(cls, folder: Path, kind: str, about: Mapping[str, Any], rows: Iterable[Mapping[str, Any]] = ()) -> "Run":
        """Creates a run, optionally with rows that are already known. A folder that holds a run is refused.

        The rows are written before ``run.json``. A folder without ``run.json`` is no run, so a command that is killed leaves
        either no run or a run with all of these rows.
        """
        refuse_taken(folder)
        run = cls(folder, {"format": FORMAT, "kind": kind, **about})
        with run.writing():
            refuse_taken(folder)  # another command may have created a run in the meantime
            run._replace_rows(rows)
            write_new(folder / "run.json", json.dumps(run.about, indent=2) + "\n")
        return run

    @classmethod
    def open(cls, folder: Path, kind: str | None = None) -> "Run":
        """Opens an existing run. If `kind` is given, a run of another kind is refused."""
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
        """The file that holds the rows."""
        return self.folder / "rows.jsonl"

    def rows(self) -> list[Row]:
        """The rows measured so far; empty if the file does not exist."""
        return read_rows(self.rows_path) if os.path.lexists(self.rows_path) else []

    def count_rows(self) -> int:
        """Number of rows, counted without parsing them."""
        if not self.rows_path.exists():
            return 0
        with self.rows_path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows to the run's file."""
        append_rows(self.rows_path, rows)

    def keep_rows(self, wanted: Callable[[Row], bool]) -> None:
        """Deletes the rows for which `wanted` is false."""
        rows = self.rows()
        kept = [row for row in rows if wanted(row)]
        if len(kept) < len(rows):
            self._replace_rows(kept)

    def keep_first_rows(self, count: int) -> None:
        """Deletes all rows but the first `count`."""
        if count < self.count_rows():
            self._replace_rows(self.rows()[:count] if count else ())  # with count 0 the rows need not be readable

    def _replace_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        write_whole(self.rows_path, "".join(json.dumps(dict(row), allow_nan=False) + "\n" for row in rows))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Locks the run while the block runs. Raises `SubquadError` if another process holds the lock.

        The lock is held on an open file that child processes do not inherit, so it ends with this process.
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
    """Raises `SubquadError` if a folder already holds a run."""
    if holds_run(folder):
        raise SubquadError(f"{folder} holds a run already: continue it with --resume {folder}, or choose another --out")


def _drop_half_line(path: Path) -> None:
    """Truncates a file after its last line break, reading only its end."""
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


_BLOCK = 2**16  # number of bytes that are searched for line breaks at once
