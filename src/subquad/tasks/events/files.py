"""Reading files of events: tables, EasyTPP's JSON, and text files with one sequence per line. Only the form is checked."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.columns import Column, adapted
from subquad.data.pickles import read_pickle
from subquad.data.ragged import offsets_of
from subquad.data.tables import PARQUET, Names, StoredColumn, Tally, find_column, listed, read_table
from subquad.data.times import DATED, WRITTEN, ReadTime, attempt, day_is_first, detect, guess, is_ambiguous, lenient, numbers
from subquad.errors import SubquadError
from subquad.files import read_text
from subquad.tasks.columns.reading import FurtherReaders, further_roles
from subquad.tasks.events.repairs import Rows

TIMES = ("time_since_start", "time_since_last_event", "type_event")
FIELDS = (*TIMES, "dim_process", "seq_idx", "seq_len", "idx_event")
"""Fields of EasyTPP's records and of the events in its pickles."""
NOT_A_TABLE = "give a table in CSV or Parquet to use more than times and types"
KNOWN = {"sequence": ("sequence", "id"), "time": ("time",), "type": ("type",)}  # names by which columns are recognized


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns, where an empty name stands for the usual names, and which further columns are read."""

    sequence: str = ""  # default: "sequence" or "id"
    time: str = ""  # default: "time"
    type: str = ""  # default: "type"
    further: bool = True  # whether columns without a role are read
    time_form: str = "auto"  # how times are written, by a name in times.WRITTEN; "auto" to recognize it
    kinds: Mapping[str, str] = field(default_factory=dict)  # kinds of further columns that a user named
    decided: Mapping[str, Column] | None = None  # further columns that a run was trained with; None to recognize them

    def choose(self, path: Path, names: list[str]) -> dict[str, str]:
        """Maps each role to the name of its column in a table, those of further columns included."""
        chosen = {
            role: find_column(path, names, getattr(self, role), known, f"--{role}-column", role)
            for role, known in KNOWN.items()
        }
        left = (name for name in names if name not in chosen.values())
        return chosen | (further_roles(path, left, self.decided) if self.further else {})

    def why_unused(self) -> str:
        """The reason why further columns of a table are not read."""
        return "they were not used in training" if self.further else "--no-further-columns was given"


def unused(file: str, names: Iterable[str], used: Iterable[str], what: str, why: str) -> tuple[str, ...]:
    """A sentence that names the columns or fields that are not used, if there are any."""
    left = sorted(set(names).difference(used))
    if not left:
        return ()
    named = f"the {what} {listed(left)} is" if len(left) == 1 else f"the {what}s {listed(left, 12)} are"
    return (f"{file}: {named} not used: {why}",)


def read_rows(path: Path, columns: Columns) -> Rows:
    """Reads a table in CSV or Parquet. The rows of a sequence need not be contiguous."""
    tally = Tally(path, "row" if path.suffix.lower() in PARQUET else "line")
    names, types, further = Names(), Names(), FurtherReaders(columns.kinds, columns.decided)
    parts: list[tuple[Any, ...]] = []
    form, read, is_stored = columns.time_form, None, False
    others: list[str] = []

    def choose(column_names: list[str]) -> dict[str, str]:
        chosen = columns.choose(path, column_names)
        others.extend(unused(path.name, column_names, chosen.values(), "column", columns.why_unused()))
        return chosen

    for chunk in read_table(path, choose, tally):
        cells = chunk.columns
        if read is None:
            if columns.decided is not None and form != "auto":
                form = adapted(Column("time", "time", form), cells["time"]).form
            form, read = _time_reader(cells["time"], form)
            if form == "day-first" != columns.time_form and is_ambiguous(cells["time"]):
                others.append(day_is_first(path.name, can_choose=columns.decided is None))
        is_stored = isinstance(cells["time"], StoredColumn) and cells["time"].is_time
        times = numbers(cells["time"], read) if read else np.full(len(chunk.lines), np.nan)
        numbered, kinds = names.number(cells["sequence"]), types.number(cells["type"])
        named = numbered != names.numbers.get("", -1)
        tally.add("without a sequence", chunk.lines[~named])
        further.keep(further.read(chunk), named)
        parts.append(tuple(column[named] for column in (numbered, times, kinds, chunk.lines)))
    if not sum(len(part[0]) for part in parts):
        reasons = tally.sentences()
        raise SubquadError(f"{path} has no event that can be used: {reasons[0] if reasons else 'there are none'}")
    numbered, times, kinds, lines = (np.concatenate(column) for column in zip(*parts, strict=True))
    present, numbered = np.unique(numbered, return_inverse=True)
    ordered = names.ordered()
    return Rows(
        path.name,
        [ordered[at] for at in present],
        numbered,
        times,
        kinds,
        types.ordered(),
        lines,
        tally.place,
        dated=is_stored or form in DATED,
        time_form="auto" if is_stored else form,
        complaints=(*others, *tally.sentences(), *further.sentences(path.name)),
        columns=tuple(further.finished()),
        unused=tuple(further.unused),
    )


def _time_reader(column: Sequence[str], form: str) -> tuple[str, ReadTime | None]:
    """The format of times and its reader, by the first cells; None for a reader if no format fits."""
    if form != "auto":
        return form, lenient(form)
    if guess(column, ("compact",)) is not None:
        return "compact", lenient("compact")
    if (read := detect(column)) is not None:
        return next(name for name, known in WRITTEN.items() if known is read), read
    guessed = guess(column, ("day-first", "month-first"))
    return ("auto", None) if guessed is None else (guessed, lenient(guessed))


def read_records(path: Path) -> tuple[Rows, int]:
    """Reads EasyTPP's JSON, a list or one record per line. Returns the rows and the stated number of types, or 0."""
    records, place = _parse(path, read_text(path))
    if isinstance(records, dict) and "type_event" in records:
        records = [records]
    if not isinstance(records, list):
        raise SubquadError(
            f"{path} is not in EasyTPP's form: it should be a list of records with time_since_start and type_event"
        )
    return rows_of_records(path.name, records, place)


def is_easytpp(path: Path) -> bool:
    """Whether a file of JSON lines begins with one of EasyTPP's records, whose fields are lists, or with none at all."""
    text = read_text(path).lstrip()
    try:
        record = json.loads(text[: text.find("\n")] if "\n" in text else text)
    except (ValueError, RecursionError):
        return True
    return not isinstance(record, Mapping) or any(name in record for name in TIMES)


def read_pickled(path: Path) -> tuple[Rows, int]:
    """Reads EasyTPP's pickles: a dict with a list of sequences by split, each a list of events, and the number of types.

    The split is the one that the file is named after, or the only one that has sequences. A list of records in the form of
    EasyTPP's JSON is read too.
    """
    content = read_pickle(path)
    if isinstance(content, list):
        return rows_of_records(path.name, content)
    splits = {name: part for name, part in content.items() if isinstance(part, list) and part} if content else {}
    if path.stem not in splits and len(splits) != 1:
        raise SubquadError(
            f"{path} is not in EasyTPP's form: it should be a dict with a list of sequences {path.stem!r}, and 'dim_process'"
        )
    sequences, types = splits.get(path.stem) or next(iter(splits.values())), content.get("dim_process")
    return rows_of_records(path.name, (_record(events, types) for events in sequences), "sequence")


def _record(events: Any, types: Any) -> Any:
    """A sequence of events as a record of lists; anything else as it is, to be refused with its place."""
    if not isinstance(events, list) or not all(isinstance(event, Mapping) for event in events):
        return events
    present = [name for name in TIMES if any(name in event for event in events)] if events else TIMES[::2]
    others = {name for event in events for name in event if name not in FIELDS}
    about = {"dim_process": types, **dict.fromkeys(others)}
    return {**about, **{name: [event.get(name) for event in events] for name in present}}


def rows_of_records(file: str, records: Iterable[Any], place: str = "record") -> tuple[Rows, int]:
    """Returns the rows of records in EasyTPP's form, and the number of types that they state, or 0."""
    names: list[str] = []
    times: list[Any] = []
    types: list[str] = []
    lengths: list[int] = []
    since_last: list[int] = []  # numbers of the records whose times are gaps
    kinds = 0
    others: dict[str, None] = {}
    for number, record in enumerate(records, 1):
        events = _events(file, record, f"{place} {number}")
        others |= dict.fromkeys(map(str, record.keys() - set(FIELDS)))
        if events.are_gaps:
            since_last.append(len(names))
        names.append(_word(record.get("seq_idx", number)))
        times += events.times
        types += map(_word, events.types)
        lengths.append(len(events.types))
        kinds = max(kinds, whole_number(_word(record.get("dim_process"))) or 0)
    joined, offsets = numbers(times), offsets_of(np.array(lengths, np.int64))
    with np.errstate(over="ignore"):  # infinite times are refused later
        for at in since_last:
            joined[offsets[at] : offsets[at + 1]] = joined[offsets[at] : offsets[at + 1]].cumsum()
    rows = _one_a_line(file, names, joined, types, lengths, place)
    return rows._replace(complaints=unused(file, others, (), "field", NOT_A_TABLE)), kinds


def read_lines(times_path: Path, types_path: Path) -> Rows:
    """Reads two text files with one sequence per line: times in the one, types in the other."""
    time_lines, kind_lines = (read_text(path).splitlines() for path in (times_path, types_path))
    for lines in (time_lines, kind_lines):
        while lines and not lines[-1].strip():
            lines.pop()
    if len(time_lines) != len(kind_lines):
        raise SubquadError(
            f"{times_path} has {len(time_lines):,} sequences but {types_path.name} {len(kind_lines):,}: "
            "both must have the same, one a line"
        )
    times: list[str] = []
    types: list[str] = []
    lengths: list[int] = []
    for number, (left, right) in enumerate(zip(time_lines, kind_lines, strict=True), 1):
        texts, kinds = left.replace(",", " ").split(), right.replace(",", " ").split()
        if len(texts) != len(kinds):
            raise SubquadError(
                f"line {number} of {times_path} has {len(texts):,} times but that of {types_path.name} {len(kinds):,} "
                "types: each event must have both"
            )
        times += texts
        types += kinds
        lengths.append(len(kinds))
    names = [str(number) for number in range(1, len(lengths) + 1)]
    return _one_a_line(times_path.name, names, numbers(times), types, lengths, "line")


def whole_number(text: str) -> int | None:
    """The number in a text such as "3" or "3.0", or None if it is not a whole number."""
    value = attempt(float, text)
    return int(value) if np.isfinite(value) and value == int(value) else None


def _one_a_line(
    file: str, names: list[str], times: Float[ndarray, "events"], types: Sequence[str], lengths: list[int], place: str
) -> Rows:
    numbered = np.repeat(np.arange(len(names)), lengths)
    kinds = Names()
    number = kinds.number(types)
    # "3.0" and "3" are the same type
    written = [text if (value := whole_number(text)) is None else str(value) for text in kinds.ordered()]
    return Rows(file, names, numbered, times, number, written, 1 + numbered, place, shared=True)


class _Events(NamedTuple):
    """Times and types of a record, as written."""

    times: list[Any]
    types: list[Any]
    are_gaps: bool  # whether times are counted from the previous event


def _events(file: str, record: Any, where: str) -> _Events:
    if not isinstance(record, Mapping):
        raise SubquadError(
            f"{file}: {where} is no record but {excerpt(record)}: EasyTPP's have time_since_start and type_event"
        )
    times, gaps, kinds = (record.get(name) for name in TIMES)
    are_gaps = times is None and gaps is not None
    times = gaps if are_gaps else times
    if not isinstance(times, list) or not isinstance(kinds, list):
        missing = "type_event" if isinstance(times, list) else "time_since_start"
        raise SubquadError(
            f"{file}: {where} has no list {missing!r}: EasyTPP's records have time_since_start and type_event"
        )
    length = record.get("seq_len", len(kinds))
    if not len(times) == len(kinds) == length:
        raise SubquadError(
            f"{file}: {where} has {len(times):,} times, {len(kinds):,} types and a seq_len of {excerpt(length)}, "
            "which must be the same"
        )
    return _Events(times, kinds, are_gaps)


def _word(value: Any) -> str:
    """A name or a number as text, "" for None, and an excerpt of any other value."""
    if value is None:
        return ""
    return str(value) if isinstance(value, str | int | float) else excerpt(value)


def _parse(path: Path, text: str) -> tuple[Any, str]:
    """The contents of a JSON file and what to call its parts. Text that is not JSON as a whole is read line by line."""
    try:
        return json.loads(text), "record"
    except json.JSONDecodeError as error:
        return _json_lines(path, text, error), "line"
    except (RecursionError, ValueError) as error:
        raise SubquadError(f"{path} cannot be read: {_json_problem(error)}") from None


def _json_lines(path: Path, text: str, error: json.JSONDecodeError) -> list[Any]:
    """Reads one record per line. If that fails, the error says that the file may have been cut, the usual reason."""
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            records += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as wrong:
            at = wrong if records else error
            line_number = number if records else error.lineno
            raise SubquadError(
                f"{path} is not whole: {at.msg} at line {line_number}, column {at.colno}; it may have been cut, get it again"
            ) from None
        except (RecursionError, ValueError) as wrong:
            raise SubquadError(f"{path} cannot be read: line {number}: {_json_problem(wrong)}") from None
    if not records:
        raise SubquadError(f"{path} is empty")
    return records


def _json_problem(error: Exception) -> str:
    """Why JSON that is well-formed cannot be read."""
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
