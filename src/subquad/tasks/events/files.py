"""Reading files of events: tables, EasyTPP's JSON, and texts with one sequence a line. Nothing is checked but the form."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subquad.errors import SubquadError
from subquad.tasks.events.repairs import Rows
from subquad.tasks.transactions.histories import Names
from subquad.tasks.transactions.tables import Tally, cannot_read, read_table
from subquad.tasks.transactions.times import attempt, detect, iso, numbers

PARQUET = (".parquet", ".pq")
KNOWN = {"sequence": ("sequence", "id"), "time": ("time",), "type": ("type",)}  # names of columns unless told


@dataclass(frozen=True)
class Columns:
    """What a table's columns are called; "" for a known name."""

    sequence: str = ""  # "sequence" or "id"
    time: str = ""  # "time": numbers or ISO dates
    type: str = ""  # "type"

    def choose(self, path: Path, names: list[str]) -> dict[str, str]:
        """Each column's name by what it is for."""
        chosen = {}
        for role, known in KNOWN.items():
            told = getattr(self, role)
            found = next((name for name in ((told,) if told else known) if name in names), None)
            if found is None:
                raise SubquadError(
                    f"{path} has no column {told or known[0]!r} but {', '.join(map(repr, names[:12]))}: "
                    f"name the one with the {role} by --{role}-column"
                )
            chosen[role] = found
        return chosen


def read_rows(path: Path, columns: Columns) -> Rows:
    """A table in CSV or Parquet. A sequence's rows need not stand together."""
    tally = Tally(path, "row" if path.suffix.lower() in PARQUET else "line")
    names, types = Names(), Names()
    parts: list[tuple[Any, ...]] = []
    read = None
    for chunk in read_table(path, lambda given: columns.choose(path, given), tally):
        given = chunk.columns
        read = read or detect(given["time"])
        times = numbers(given["time"], read) if read else np.full(len(chunk.lines), np.nan)
        numbered, kinds = names.number(given["sequence"]), types.number(given["type"])
        named = numbered != names.numbers.get("", -1)
        tally.add("without a sequence", chunk.lines[~named])
        parts.append(tuple(column[named] for column in (numbered, times, kinds, chunk.lines)))
    if not sum(len(part[0]) for part in parts):
        said = tally.sentences()
        raise SubquadError(f"{path} has no event that can be used: {said[0] if said else 'there are none'}")
    numbered, times, kinds, lines = (np.concatenate(column) for column in zip(*parts, strict=True))
    present, numbered = np.unique(numbered, return_inverse=True)
    return Rows(
        path.name,
        [names.ordered()[at] for at in present],
        numbered,
        times,
        kinds,
        types.ordered(),
        lines,
        tally.place,
        dated=read is iso,
        complaints=tuple(tally.sentences()),
    )


def read_records(path: Path) -> tuple[Rows, int]:
    """EasyTPP's JSON, a list or a record a line; and how many types it says there are, 0 where it does not."""
    text = _text(path)
    try:
        found, place = json.loads(text), "record"
    except json.JSONDecodeError as error:
        found, place = _json_lines(path, text, error), "line"
    if isinstance(found, dict) and "type_event" in found:
        found = [found]
    if not isinstance(found, list):
        raise SubquadError(
            f"{path} is not in EasyTPP's form: it should be a list of records with time_since_start and type_event"
        )
    return rows_of_records(path.name, found, place)


def rows_of_records(file: str, records: Iterable[Any], place: str = "record") -> tuple[Rows, int]:
    """The same of records that are read already."""
    names, times, types, lengths, kinds = [], [], [], [], 0
    for number, record in enumerate(records, 1):
        when, what = _events(file, record, f"{place} {number}")
        names.append(str(record.get("seq_idx", number)))
        times.append(when)
        types += what
        lengths.append(len(what))
        kinds = max(kinds, whole_number(str(record.get("dim_process"))) or 0)
    return _one_a_line(file, names, times, types, lengths, place), kinds


def read_lines(times_path: Path, types_path: Path) -> Rows:
    """Two texts with one sequence a line: times in the one, types in the other."""
    when, what = (_text(path).splitlines() for path in (times_path, types_path))
    for lines in (when, what):
        while lines and not lines[-1].strip():
            lines.pop()
    if len(when) != len(what):
        raise SubquadError(
            f"{times_path} has {len(when):,} sequences but {types_path.name} {len(what):,}: "
            "both must have the same, one a line"
        )
    times, types, lengths = [], [], []
    for number, (left, right) in enumerate(zip(when, what, strict=True), 1):
        texts, kinds = left.replace(",", " ").split(), right.replace(",", " ").split()
        if len(texts) != len(kinds):
            raise SubquadError(
                f"line {number} of {times_path} has {len(texts):,} times but that of {types_path.name} {len(kinds):,} "
                "types: each event must have both"
            )
        times.append(numbers(texts))
        types += kinds
        lengths.append(len(kinds))
    names = [str(number) for number in range(1, len(times) + 1)]
    return _one_a_line(times_path.name, names, times, types, lengths, "line")


def whole_number(text: str) -> int | None:
    """A type's number, also where it is written as 3.0; none if it is not a whole number."""
    value = attempt(float, text)
    return int(value) if np.isfinite(value) and value == int(value) else None


def _one_a_line(
    file: str, names: list[str], times: list[np.ndarray], types: Sequence[str], lengths: list[int], place: str
) -> Rows:
    numbered = np.repeat(np.arange(len(names)), lengths)
    kinds = Names()
    number = kinds.number(types)
    # 3.0 and 3 are the same type
    written = [text if (value := whole_number(text)) is None else str(value) for text in kinds.ordered()]
    joined = np.concatenate(times) if times else np.zeros(0)
    return Rows(file, names, numbered, joined, number, written, 1 + numbered, place, shared=True)


def _events(file: str, record: Any, where: str) -> tuple[np.ndarray, list[str]]:
    """Times and types of a record."""
    if not isinstance(record, Mapping):
        raise SubquadError(
            f"{file}: {where} is no record but {str(record)[:40]!r}: EasyTPP's have time_since_start and type_event"
        )
    lists = {name: record.get(name) for name in ("time_since_start", "time_since_last_event", "type_event")}
    what = lists["type_event"]
    when = lists["time_since_start"]
    since = when is None and lists["time_since_last_event"] is not None
    when = lists["time_since_last_event"] if since else when
    if not isinstance(when, list) or not isinstance(what, list):
        missing = "type_event" if isinstance(when, list) else "time_since_start"
        raise SubquadError(
            f"{file}: {where} has no list {missing!r}: EasyTPP's records have time_since_start and type_event"
        )
    length = record.get("seq_len", len(what))
    if not len(when) == len(what) == length:
        raise SubquadError(
            f"{file}: {where} has {len(when):,} times, {len(what):,} types and a seq_len of {length}, which must be the same"
        )
    times = numbers(["" if time is None else str(time) for time in when])
    return np.cumsum(times) if since else times, ["" if kind is None else str(kind) for kind in what]


def _json_lines(path: Path, text: str, error: json.JSONDecodeError) -> list[Any]:
    """A record a line. What cannot be read as that either is said to be cut, which is what mostly happened to it."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as wrong:
            at = wrong if found else error
            line_number = number if found else error.lineno
            raise SubquadError(
                f"{path} is not whole: {at.msg} at line {line_number}, column {at.colno}; it may have been cut, get it again"
            ) from None
    if not found:
        raise SubquadError(f"{path} is empty")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise cannot_read(path, error) from None
    except UnicodeDecodeError:
        raise SubquadError(f"{path} is not text in UTF-8: save it as such") from None
