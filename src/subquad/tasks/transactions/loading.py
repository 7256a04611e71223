"""Loading histories: Sberbank's folder, Berka's folder, a folder with events and clients, or one table in CSV or Parquet."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.column_values import ColumnValues
from subquad.data.columns import Column
from subquad.data.json_tables import JSON_LINES
from subquad.data.ragged import offsets_of
from subquad.data.tables import PARQUET, Chunk, Names, Tally, find_column, listed, read_table
from subquad.data.times import short_date
from subquad.errors import SubquadError
from subquad.files import kind_of
from subquad.tasks.columns.reading import FURTHER, FurtherReaders, is_constant
from subquad.tasks.targets.labels import OBSERVED, UNLABELLED, LabelTexts, count, first, read_labels
from subquad.tasks.transactions.collecting import KNOWN, Columns, Events, Reading, collect
from subquad.tasks.transactions.histories import OPTIONAL, Histories

TABLES = (".csv", ".tsv", ".txt", *JSON_LINES, *PARQUET)
EVENT_FILES = ("transactions", "events")
"""Names, without the suffix, of the table of events in a folder."""
CLIENT_FILES = ("clients", "customers", "labels", "gender_train")
"""Names, without the suffix, of the table of clients in a folder."""
BERKA_LABELS = {"age": ("born in 1950 or later", "born before 1950"), "gender": ("man", "woman")}
BERKA_FURTHER = ("balance", "bank", "account")
"""Columns of Berka's transactions that have no known role."""


def load_histories(
    path: Path, columns: Columns | None = None, *, labelled: bool = True, how: Reading | None = None
) -> Histories:
    """Loads histories from a folder or a file. With `labelled` false no labels are read, as for clients to be scored.

    The layout is recognized by the folder's contents or the file's suffix.
    """
    columns, how = columns or Columns(), how or Reading()
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}: check the path given by --data")
    if kind == "folder":
        if (path / "trans.asc").exists():
            return _load_berka(path, columns.label or "age", how, labelled=labelled)
        if (events := _inside(path, EVENT_FILES)) is not None:
            return _load_tables(path, events, how.clients or _inside(path, CLIENT_FILES), columns, how, labelled=labelled)
        raise SubquadError(
            f"{path} has neither transactions.csv (Sberbank's layout) nor trans.asc (Berka's), nor another table named "
            f"{' or '.join(EVENT_FILES)}"
        )
    if path.suffix.lower() not in TABLES:
        raise SubquadError(f"{path} is of no known kind: give a folder, or a file that ends in {', '.join(TABLES)}")
    return _load_tables(path, path, how.clients, columns, how, labelled=labelled)


def _inside(folder: Path, stems: Iterable[str]) -> Path | None:
    """The table in a folder that has one of these names, the first of the names first."""
    paths = (folder / f"{stem}{suffix}" for stem in stems for suffix in TABLES)
    return next((path for path in paths if path.exists()), None)


class _Clients(NamedTuple):
    """A table with one row for each client."""

    names: dict[str, int]
    """The row of each client."""
    columns: list[ColumnValues]
    unused: list[Column]
    labels: LabelTexts | None
    complaints: list[str]


def _load_tables(
    source: Path, path: Path, client_path: Path | None, columns: Columns, how: Reading, *, labelled: bool
) -> Histories:
    """Loads a table of events, and a table of clients if there is one."""
    clients = None if client_path is None else _read_clients(client_path, columns, how, labelled=labelled)
    needs_labels = labelled and (clients is None or clients.labels is None)
    is_folder = source != path and client_path is None and path.name == "transactions.csv"
    if needs_labels and is_folder and not _has_labels(path, columns, how):
        raise SubquadError(
            f"{source / 'gender_train.csv'} is missing: to train, the clients' labels are needed beside transactions.csv"
        )
    tally = _tally(path)
    texts: list[LabelTexts] = []

    def choose(names: list[str]) -> dict[str, str]:
        chosen = columns.choose(path, names, labelled=False)
        if needs_labels:
            found = how.label_columns(columns, names)
            if not found:
                wanted = [name for name in (*how.labels, how.observed) if name and name not in names]
                find_column(path, names, wanted[0] if wanted else columns.label, KNOWN["label"], "--label", "label")
            texts.append(LabelTexts(path, [name for role, name in found.items() if role != OBSERVED]))
            if (role := next((role for role in OPTIONAL if chosen.get(role) in found.values()), None)) is not None:
                raise SubquadError(
                    f"{path}: the column {excerpt(chosen[role])} is the label, and by its name the {role} of each event: "
                    f"rename it, or name that of the {role} by --{role}-column"
                )
            chosen |= found
        return chosen | how.further_columns(path, columns, names, chosen.values())

    chunks = read_table(path, choose, tally)
    events = collect(_with_labels(chunks, texts), tally, how)
    labels = texts[0] if texts else clients.labels if clients is not None else None
    return assemble(source, events, tally.sentences(), labels if labelled else None, how, clients)


def _has_labels(path: Path, columns: Columns, how: Reading) -> bool:
    """Whether the table of events has the columns of the labels."""
    names: list[str] = []

    def choose(all_names: list[str]) -> dict[str, str]:
        names.extend(all_names)
        return {"any": all_names[0]}

    next(iter(read_table(path, choose, _tally(path))), None)
    return bool(how.label_columns(columns, names))


def _with_labels(chunks: Iterable[Chunk], texts: Sequence[LabelTexts]) -> Iterator[Chunk]:
    """Yields chunks after adding their labels; `texts` is filled when the heading of the table is read."""
    for chunk in chunks:
        for labels in texts:
            labels.add(chunk)
        yield chunk


def _tally(path: Path) -> Tally:
    return Tally(path, "row" if path.suffix.lower() in PARQUET else "line")


def _read_clients(path: Path, columns: Columns, how: Reading, *, labelled: bool) -> _Clients:
    """Reads a table with one row for each client: columns of the clients, and their labels if it has these."""
    if kind_of(path) == "nothing":
        raise SubquadError(f"there is no file {path}: check the path given by --client-table")
    how = how if how.decided_clients is None else replace(how, decided=how.decided_clients)
    tally, names, further = _tally(path), Names(), FurtherReaders(how.kinds, how.decided)
    texts: list[LabelTexts] = []

    def choose(all_names: list[str]) -> dict[str, str]:
        usual = next((name for name in (columns.client, *KNOWN["client"]) if name and name in all_names), None)
        if usual is None:
            raise SubquadError(f"{path} has no column {columns.client or KNOWN['client'][1]!r} but {listed(all_names)}")
        found = how.label_columns(columns, all_names) if labelled else {}
        if found:
            texts.append(LabelTexts(path, [name for role, name in found.items() if role != OBSERVED]))
        elif labelled and path.stem == CLIENT_FILES[-1]:
            raise SubquadError(f"{path} has no column {columns.label or KNOWN['label'][-1]!r} but {listed(all_names)}")
        chosen = {"client": usual, **found}
        return chosen | how.further_columns(path, columns, all_names, chosen.values())

    rows: list[ndarray] = []
    for chunk in _with_labels(read_table(path, choose, tally), texts):
        rows.append(names.number(chunk.columns["client"]))
        further.keep(further.read(chunk), np.ones(len(chunk.lines), bool))
    numbered = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    complaints = tally.sentences()
    _, first_rows, counts = np.unique(numbered, return_index=True, return_counts=True)
    if (counts > 1).any() and further.readers:
        twice = [names.ordered()[at] for at in np.flatnonzero(counts > 1)]
        complaints.append(
            f"{path.name}: {count(twice, 'client')} in several rows, the first of which counts: {first(twice)}"
        )
    complaints += further.sentences(path.name)
    row_of = {name: int(row) for name, row in zip(names.ordered(), first_rows, strict=True)}
    return _Clients(row_of, further.finished(), further.unused, texts[0] if texts else None, complaints)


def _load_berka(folder: Path, label: str, how: Reading, *, labelled: bool) -> Histories:
    """Loads transactions of accounts, joined with the owners of the accounts."""
    if labelled and label not in BERKA_LABELS:
        raise SubquadError(f"Berka's clients have no label {label!r}: choose --label age or --label gender")
    path = folder / "trans.asc"
    complaints: list[str] = []
    owners: dict[str, str] = {}
    labels: LabelTexts | None = LabelTexts(folder / "client.asc") if labelled else None
    for chunk in _asc(folder / "disp.asc", ("account_id", "client_id", "type"), complaints):
        held = zip(*(chunk.columns[name] for name in ("account_id", "client_id", "type")), strict=True)
        owners |= {account: client for account, client, kind in held if kind == "OWNER"}
    if labels is not None:
        for chunk in _asc(folder / "client.asc", ("client_id", "birth_number"), complaints):
            clients = chunk.columns["client_id"]
            born = [_berka_label(number, label) for number in chunk.columns["birth_number"]]
            labels.add(Chunk({"client": clients, "label": born}, chunk.lines))
    tally = Tally(path)
    names = ("account_id", "date", "type", "operation", "amount", "k_symbol")
    wanted = [name for name in BERKA_FURTHER if how.further and (how.decided is None or name in how.decided)]

    def choose(columns: list[str]) -> dict[str, str]:
        return _exactly(path, columns, (*names, *(name for name in wanted if name in columns)))

    chunks = read_table(path, choose, tally, encoding="latin-1")
    owned = (_owned(chunk, owners) for chunk in chunks)
    events = collect(owned, tally, how, read_time=short_date, nobody="of an account without an owner")
    order = BERKA_LABELS[label] if labelled else None
    return assemble(folder, events, tally.sentences() + complaints, labels, how, None, order)


def _asc(path: Path, names: tuple[str, ...], complaints: list[str]) -> Iterator[Chunk]:
    tally = Tally(path)
    yield from read_table(path, lambda columns: _exactly(path, columns, names), tally, encoding="latin-1")
    complaints += tally.sentences()


def _exactly(path: Path, columns: list[str], names: tuple[str, ...]) -> dict[str, str]:
    for name in names:
        if name not in columns:
            raise SubquadError(f"{path} has no column {name!r}: it is not a file of Berka's data")
    return {name: name for name in names}


def _berka_label(birth_number: str, label: str) -> str:
    """The label in a birth number `YYMMDD`, in which 50 is added to the month for women; "" if it is invalid."""
    if len(birth_number) != 6 or not birth_number.isdecimal():
        return ""
    index = int(birth_number[:2]) < 50 if label == "age" else int(birth_number[2:4]) > 50
    return BERKA_LABELS[label][index]


def _owned(chunk: Chunk, owners: Mapping[str, str]) -> Chunk:
    """A chunk of Berka's transactions with the columns named by role."""
    cells = chunk.columns
    columns = {
        "client": [owners.get(account, "") for account in cells["account_id"]],
        "time": cells["date"],
        "code": cells["k_symbol"],
        "type": [f"{kind} {how}".strip() for kind, how in zip(cells["type"], cells["operation"], strict=True)],
        "amount": cells["amount"],
        **{FURTHER + name: cells[name] for name in BERKA_FURTHER if name in cells},
    }
    return Chunk(columns, chunk.lines)


def assemble(
    path: Path,
    events: Events,
    complaints: list[str],
    labels: LabelTexts | None,
    how: Reading,
    table: _Clients | None = None,
    order: tuple[str, str] | None = None,
) -> Histories:
    """Sorts events by client and time, and adds the labels and the columns of the clients."""
    if not len(events.times):
        raise SubquadError(f"{path} has no row that can be used: {complaints[0] if complaints else 'there are none'}")
    complaints = complaints + events.complaints + (table.complaints if table is not None else [])
    sorting = np.lexsort((events.times, events.clients))  # a stable sort: events at the same time keep their order
    present, counts = np.unique(events.clients, return_counts=True)
    clients, offsets = [events.client_names[at] for at in present], offsets_of(counts)
    moving, static = _divided([column.take(sorting) for column in events.columns], offsets, how)
    static += [] if table is None else [_aligned(column, table.names, clients) for column in table.columns]
    histories = Histories(
        clients,
        offsets,
        events.codes[sorting],
        events.code_names,
        events.types[sorting],
        events.type_names,
        events.amounts[sorting],
        events.times[sorting],
        np.full(len(clients), UNLABELLED, np.int64),
        None,
        events.fields,
        columns=tuple(moving),
        static=tuple(static),
        unused=(*events.unused, *(table.unused if table is not None else ())),
        time_form=events.time_form,
        amount_form=events.amount_form,
    )
    if labels is not None:
        named = order or (how.order if how.order and len(how.order) == 2 else None)
        labelled = read_labels(path, clients, labels, how.target, named)
        complaints = complaints + labelled.complaints
        histories = histories._replace(
            labels=labelled.numbers, label_names=labelled.names, truth=labelled.truth, target_kind=labelled.kind
        )
    return histories._replace(complaints=tuple(complaints))


def _divided(
    columns: Iterable[ColumnValues], offsets: Int[ndarray, "edges"], how: Reading
) -> tuple[list[ColumnValues], list[ColumnValues]]:
    """Divides columns into those of events and those that are the same in all events of a client, with a value for each."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    moving: list[ColumnValues] = []
    static: list[ColumnValues] = []
    for column in columns:
        is_static = is_constant(column, starts, lengths) if how.static is None else column.column.name in how.static
        (static if is_static else moving).append(column.take(starts) if is_static else column)
    return moving, static


def _aligned(column: ColumnValues, rows: Mapping[str, int], clients: Sequence[str]) -> ColumnValues:
    """The values of the clients in their order. A client that the table of clients lacks has a missing value."""
    names = column.names
    if column.is_numeric:
        missing = np.full((1, *column.values.shape[1:]), np.nan, column.values.dtype)
    else:
        names = names if "" in names else [*names, ""]
        missing = np.full((1, *column.values.shape[1:]), -1, column.values.dtype)
        missing.reshape(1, -1)[0, 0] = names.index("")
    values = np.concatenate([column.values, missing])
    places = np.array([rows.get(client, len(values) - 1) for client in clients])
    return ColumnValues(column.column, values[places], names)
