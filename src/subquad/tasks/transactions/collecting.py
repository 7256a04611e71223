"""Rows of a table of events as arrays, chunk by chunk, with all columns of the table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from subquad.data.column_values import ColumnValues
from subquad.data.columns import NUMBERS, Column, adapted, is_missing, number_form, sample
from subquad.data.tables import LARGEST_NUMBER, Chunk, Names, StoredColumn, Tally, find_column
from subquad.data.times import ReadTime, day_is_first, detect, guess, is_ambiguous, lenient, numbers
from subquad.tasks.columns.reading import FurtherReaders, further_roles
from subquad.tasks.targets.labels import OBSERVED, TargetChoice, label_roles
from subquad.tasks.transactions.histories import OPTIONAL

KNOWN = {  # names by which columns are recognized; the second is Sberbank's
    "client": ("client", "customer_id", "client_id", "account_id", "user_id"),
    "time": ("time", "tr_datetime", "timestamp", "datetime", "date"),
    "code": ("code", "mcc_code"),
    "type": ("type", "tr_type"),
    "amount": ("amount",),
    "label": ("label", "gender"),
}


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns; an empty name stands for the usual names."""

    client: str = ""
    time: str = ""
    code: str = ""
    type: str = ""
    amount: str = ""
    label: str = ""

    def choose(self, path: Path, names: list[str], *, labelled: bool) -> dict[str, str]:
        """Maps each role to the name of its column. A missing column is refused if it is named or required."""
        chosen, needed = {}, {"client", "time"} | ({"label"} if labelled else set())
        for role, known in KNOWN.items():
            named = getattr(self, role)
            if role == "label" and not labelled:
                continue
            if named or role in needed or any(name in names for name in known):
                option = "--label" if role == "label" else f"--{role}-column"
                chosen[role] = find_column(path, names, named, known, option, role)
        return chosen


@dataclass(frozen=True)
class Reading:
    """How a table is read beside the names of its columns.

    Attributes:
        labels: names of several columns of labels, instead of one.
        observed: name of the column that tells whether the event was observed, for the target event.
        target: what kind of target the labels are.
        kinds: kinds of columns that a user named.
        further: whether columns without a known role are read.
        decided: the columns that a run was trained with; None to recognize them.
        decided_clients: those of them that belong to clients, which may have the name of one of events; None as above.
        static: names of the columns of events that belong to clients; None to find out.
        clients: file with one row for each client; None if there is none, or if it lies in the folder of the events.
        time_form: how times are written, by a name in times.WRITTEN; "auto" to guess, "" to read as earlier versions did.
        order: names of the classes in the order that a run was trained with.
        amount_form: how amounts are written, by a name in columns.NUMBERS; empty to recognize it.
    """

    labels: tuple[str, ...] = ()
    observed: str = ""
    target: TargetChoice = "auto"
    kinds: Mapping[str, str] = field(default_factory=dict)
    further: bool = True
    decided: Mapping[str, Column] | None = None
    decided_clients: Mapping[str, Column] | None = None
    static: frozenset[str] | None = None
    clients: Path | None = None
    time_form: str = "auto"
    order: tuple[str, ...] | None = None
    amount_form: str = ""

    def label_columns(self, columns: Columns, names: list[str]) -> dict[str, str]:
        """The columns of labels that a table has, by role; empty if it lacks one of them."""
        wanted = (
            self.labels
            or tuple(name for name in ((columns.label,) if columns.label else KNOWN["label"]) if name in names)[:1]
        )
        if not wanted or any(name not in names for name in wanted):
            return {}
        chosen = dict(zip(label_roles(len(wanted)), wanted, strict=True))
        if self.observed:
            if self.observed not in names:
                return {}
            chosen[OBSERVED] = self.observed
        return chosen

    def further_columns(self, path: Path, columns: Columns, names: list[str], taken: Iterable[str]) -> dict[str, str]:
        """The columns of a table that have no known role, by role."""
        labels = (self.labels or ((columns.label,) if columns.label else KNOWN["label"])) if self.decided is None else ()
        if not self.further:
            return {}
        known = {*taken, *labels, self.observed}
        return further_roles(path, (name for name in names if name not in known), self.decided)


class Events(NamedTuple):
    """The valid rows of a file, in the order of the file."""

    clients: Int[ndarray, "rows"]
    client_names: list[str]
    codes: Int[ndarray, "rows"]
    code_names: list[str]
    types: Int[ndarray, "rows"]
    type_names: list[str]
    amounts: Float[ndarray, "rows"]
    times: Float[ndarray, "rows"]
    fields: tuple[str, ...]
    columns: list[ColumnValues]
    unused: list[Column]
    time_form: str
    amount_form: str
    complaints: list[str]


def collect(
    chunks: Iterable[Chunk],
    tally: Tally,
    how: Reading,
    *,
    read_time: ReadTime | None = None,
    nobody: str = "without a client",
) -> Events:
    """Converts texts to numbers chunk by chunk. Invalid rows are left out and counted."""
    names = {role: Names() for role in ("client", "code", "type")}
    further, time_form, amount_form = FurtherReaders(how.kinds, how.decided), how.time_form, how.amount_form
    parts: list[tuple[ndarray, ...]] = []
    fields: tuple[str, ...] = ()
    complaints: list[str] = []
    for chunk in chunks:
        cells, rows = chunk.columns, len(chunk.lines)
        fields = tuple(role for role in OPTIONAL if role in cells)
        if read_time is None:
            time_form = _adapted_form("time", time_form, cells["time"], how)
            time_form, read_time = _time_reader(cells["time"], time_form)
            if time_form == "day-first" != how.time_form and is_ambiguous(cells["time"]):
                complaints.append(day_is_first(tally.path.name, can_choose=how.decided is None))
        times = numbers(cells["time"], read_time) if read_time else np.full(rows, np.nan)
        if not parts and "amount" in cells:
            own = number_form(sample(cells["amount"]).counts)[0]
            amount_form = _adapted_form("number", amount_form, cells["amount"], how) or own
        amounts, missing = _amounts(cells.get("amount") or ["0"] * rows, amount_form or "point")
        keys = [cells.get(role) or [""] * rows for role in names]
        numbered = [names[role].number(column) for role, column in zip(names, keys, strict=True)]
        nameless = numbered[0] == names["client"].numbers.get("", -1)
        good = _good(chunk, tally, nameless, times, np.where(missing, 0.0, amounts), nobody)
        further.keep(further.read(chunk), good)
        parts.append(tuple(column[good] for column in (*numbered, amounts, times)))
    empty = [np.zeros(0, kind) for kind in (np.int32, np.int32, np.int32, float, float)]
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)] or empty
    client, code, kind = (names[role].ordered() for role in ("client", "code", "type"))
    complaints += further.sentences(tally.path.name)
    forms = ("" if time_form == "auto" else time_form, amount_form)
    about = (fields, further.finished(), further.unused, *forms, complaints)
    return Events(joined[0], client, joined[1], code, joined[2], kind, joined[3], joined[4], *about)


def _adapted_form(kind: Literal["number", "time"], form: str, cells: Sequence[str], how: Reading) -> str:
    """How numbers or times of new data are written: as in those trained on, unless these are written otherwise."""
    is_known = how.decided is not None and form not in ("", "auto")
    return adapted(Column(kind, kind, form), cells).form if is_known else form


def _amounts(cells: Sequence[str], form: str) -> tuple[Float[ndarray, "rows"], Bool[ndarray, "rows"]]:
    """Amounts, NaN for those that cannot be read, and marks of the cells without one, whose amount is NaN, too."""
    if isinstance(cells, StoredColumn) and (stored := cells.numbers()) is not None:
        return stored, np.isnan(stored)
    amounts = numbers(cells, NUMBERS[form])
    missing = np.isnan(amounts)
    for at in np.flatnonzero(missing).tolist():
        missing[at] = is_missing(cells[at].strip())
    return amounts, missing


def _good(chunk: Chunk, tally: Tally, nameless: ndarray, times: ndarray, amounts: ndarray, nobody: str) -> ndarray:
    """Marks the rows that can be used, and counts the others by reason."""
    bad = {nobody: nameless, "with a time that cannot be read": ~np.isfinite(times)}
    bad["with an amount that is not a finite number"] = ~np.isfinite(amounts)
    largest = np.maximum(np.abs(times), np.abs(amounts))
    bad[f"with a time or an amount beyond {LARGEST_NUMBER:g}"] = largest > LARGEST_NUMBER
    good = np.ones(len(chunk.lines), bool)
    for why, where in bad.items():
        tally.add(why, chunk.lines[good & where])
        good &= ~where
    return good


def _time_reader(column: Sequence[str], form: str) -> tuple[str, ReadTime | None]:
    """The format of times and its reader, by the first cells; None for a reader if no format fits."""
    if isinstance(column, StoredColumn) and column.is_time:
        return "auto", float
    if not form:
        return form, detect(column)
    if form != "auto":
        return form, lenient(form)
    guessed = guess(column)
    if guessed is None:
        return form, detect(column)
    return guessed, lenient(guessed)
