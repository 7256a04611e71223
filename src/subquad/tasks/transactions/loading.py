"""Loading histories: Sberbank's folder, Berka's folder, or one table in CSV or Parquet."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.ragged import offsets_of
from subquad.data.tables import LARGEST_NUMBER, PARQUET, Chunk, Names, Tally, find_column, listed, read_table
from subquad.data.times import ReadTime, detect, numbers, short_date
from subquad.errors import SubquadError
from subquad.files import kind_of
from subquad.tasks.transactions.histories import OPTIONAL, UNLABELLED, Histories

TABLES = (".csv", ".tsv", ".txt", *PARQUET)
KNOWN = {  # names by which columns are recognized; the second is Sberbank's
    "client": ("client", "customer_id"),
    "time": ("time", "tr_datetime"),
    "code": ("code", "mcc_code"),
    "type": ("type", "tr_type"),
    "amount": ("amount",),
    "label": ("label", "gender"),
}
BERKA_LABELS = {"age": ("born in 1950 or later", "born before 1950"), "gender": ("man", "woman")}


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


def load_histories(path: Path, columns: Columns | None = None, *, labelled: bool = True) -> Histories:
    """Loads histories from a folder or a file. With `labelled` false no labels are read, as for clients to be scored.

    The layout is recognized by the folder's contents or the file's suffix.
    """
    columns = columns or Columns()
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}: check the path given by --data")
    if kind == "folder":
        if (path / "transactions.csv").exists():
            return _load_sberbank(path, columns, labelled=labelled)
        if (path / "trans.asc").exists():
            return _load_berka(path, columns.label or "age", labelled=labelled)
        raise SubquadError(f"{path} has neither transactions.csv (Sberbank's layout) nor trans.asc (Berka's)")
    if path.suffix.lower() not in TABLES:
        raise SubquadError(f"{path} is of no known kind: give a folder, or a file that ends in {', '.join(TABLES)}")
    return _load_table(path, columns, labelled=labelled)


class _Events(NamedTuple):
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


class _Labels:
    """The label of each client as text. Clients with two different labels have none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.of: dict[str, str] = {}
        self.twice: dict[str, None] = {}

    def add(self, chunk: Chunk) -> None:
        """Adds the labels of a chunk of rows. Empty labels are ignored."""
        for client, label in dict.fromkeys(zip(chunk.columns["client"], chunk.columns["label"], strict=True)):
            client, label = client.strip(), label.strip()
            if label and client and self.of.setdefault(client, label) != label:
                self.twice[client] = None

    def sentences(self) -> list[str]:
        """A sentence about clients with contradicting labels."""
        if not self.twice:
            return []
        return [f"{self.path.name}: {_count(self.twice, 'client')} with two labels left without: {_first(self.twice)}"]


def _load_table(path: Path, columns: Columns, *, labelled: bool) -> Histories:
    tally = Tally(path, "row" if path.suffix.lower() in PARQUET else "line")
    labels = _Labels(path) if labelled else None
    chunks = read_table(path, lambda names: columns.choose(path, names, labelled=labelled), tally)
    events = _collect(chunks, tally, labels=labels)
    return _assemble(path, events, tally.sentences(), labels)


def _load_sberbank(folder: Path, columns: Columns, *, labelled: bool) -> Histories:
    path, label_path = folder / "transactions.csv", folder / "gender_train.csv"
    tally, labels = Tally(path), None
    if labelled:
        if not label_path.exists():
            raise SubquadError(f"{label_path} is missing: to train, the clients' labels are needed beside transactions.csv")
        labels, read = _Labels(label_path), Columns(client=columns.client, label=columns.label)
        label_tally = Tally(label_path)
        wanted = ("client", "label")
        for chunk in read_table(label_path, lambda names: _only(label_path, read, names, wanted), label_tally):
            labels.add(chunk)
    events = _collect(read_table(path, lambda names: columns.choose(path, names, labelled=False), tally), tally)
    complaints = tally.sentences() + (label_tally.sentences() if labelled else [])
    return _assemble(folder, events, complaints, labels)


def _only(path: Path, columns: Columns, names: list[str], wanted: tuple[str, ...]) -> dict[str, str]:
    """Chooses the columns `wanted` of a file that has no others."""
    name_of = {role: next((n for n in (getattr(columns, role), *KNOWN[role]) if n and n in names), None) for role in wanted}
    for role, name in name_of.items():
        if name is None:
            raise SubquadError(f"{path} has no column {KNOWN[role][-1]!r} but {listed(names)}")
    return {role: name for role, name in name_of.items() if name is not None}


def _load_berka(folder: Path, label: str, *, labelled: bool) -> Histories:
    """Loads transactions of accounts, joined with the owners of the accounts."""
    if labelled and label not in BERKA_LABELS:
        raise SubquadError(f"Berka's clients have no label {label!r}: choose --label age or --label gender")
    path = folder / "trans.asc"
    complaints: list[str] = []
    owners: dict[str, str] = {}
    labels: _Labels | None = _Labels(folder / "client.asc") if labelled else None
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
    chunks = read_table(path, lambda columns: _exactly(path, columns, names), tally, encoding="latin-1")
    owned = (_owned(chunk, owners) for chunk in chunks)
    events = _collect(owned, tally, read_time=short_date, nobody="of an account without an owner")
    order = BERKA_LABELS[label] if labelled else None
    return _assemble(folder, events, tally.sentences() + complaints, labels, order)


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
    }
    return Chunk(columns, chunk.lines)


def _collect(
    chunks: Iterable[Chunk],
    tally: Tally,
    *,
    labels: _Labels | None = None,
    read_time: ReadTime | None = None,
    nobody: str = "without a client",
) -> _Events:
    """Converts texts to numbers chunk by chunk. Invalid rows are left out and counted."""
    names = {role: Names() for role in ("client", "code", "type")}
    parts: list[tuple[ndarray, ...]] = []
    fields: tuple[str, ...] = ()
    for chunk in chunks:
        cells, rows = chunk.columns, len(chunk.lines)
        fields = tuple(role for role in OPTIONAL if role in cells)
        read_time = read_time or detect(cells["time"])
        times = numbers(cells["time"], read_time) if read_time else np.full(rows, np.nan)
        amounts = numbers(cells["amount"]) if "amount" in cells else np.zeros(rows)
        keys = [cells.get(role) or [""] * rows for role in names]
        numbered = [names[role].number(column) for role, column in zip(names, keys, strict=True)]
        bad = {nobody: numbered[0] == names["client"].numbers.get("", -1)}
        bad["with a time that cannot be read"] = ~np.isfinite(times)
        bad["with an amount that is not a finite number"] = ~np.isfinite(amounts)
        largest = np.maximum(np.abs(times), np.abs(amounts))
        bad[f"with a time or an amount beyond {LARGEST_NUMBER:g}"] = largest > LARGEST_NUMBER
        good = np.ones(rows, bool)
        for why, where in bad.items():
            tally.add(why, chunk.lines[good & where])
            good &= ~where
        if labels is not None:
            labels.add(chunk)
        parts.append(tuple(column[good] for column in (*numbered, amounts, times)))
    empty = [np.zeros(0, kind) for kind in (np.int32, np.int32, np.int32, float, float)]
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)] or empty
    client, code, kind = (names[role].ordered() for role in ("client", "code", "type"))
    return _Events(joined[0], client, joined[1], code, joined[2], kind, joined[3], joined[4], fields)


def _assemble(
    path: Path,
    events: _Events,
    complaints: list[str],
    labels: _Labels | None,
    order: tuple[str, str] | None = None,
) -> Histories:
    """Sorts events by client and time, and adds the labels of the clients."""
    if not len(events.times):
        raise SubquadError(f"{path} has no row that can be used: {complaints[0] if complaints else 'there are none'}")
    sorting = np.lexsort((events.times, events.clients))  # a stable sort: events at the same time keep their order
    present, counts = np.unique(events.clients, return_counts=True)
    clients = [events.client_names[at] for at in present]
    numbered, names = np.full(len(clients), UNLABELLED, np.int64), None
    if labels is not None:
        numbered, names = _label(path, clients, labels, order)
        complaints = complaints + labels.sentences() + _unmatched(clients, numbered, labels)
    return Histories(
        clients,
        offsets_of(counts),
        events.codes[sorting],
        events.code_names,
        events.types[sorting],
        events.type_names,
        events.amounts[sorting],
        events.times[sorting],
        numbered,
        names,
        events.fields,
        tuple(complaints),
    )


def _label(
    path: Path, clients: list[str], labels: _Labels, order: tuple[str, str] | None
) -> tuple[Int[ndarray, "clients"], tuple[str, str]]:
    written = [labels.of.get(client) if client not in labels.twice else None for client in clients]
    values = sorted({label for label in written if label is not None})
    if len(values) != 2:
        what = f"{len(values)} values ({listed(values)})" if values else "no value at all"
        raise SubquadError(f"the label of {path}'s clients must have two values, but has {what}")
    low, high = order or (values[0], values[1])
    numbered = {low: 0, high: 1, None: UNLABELLED}
    return np.array([numbered[label] for label in written]), (low, high)


def _unmatched(clients: list[str], numbered: Int[ndarray, "clients"], labels: _Labels) -> list[str]:
    complaints = []
    without = [clients[at] for at in np.flatnonzero(numbered == UNLABELLED)]
    if without:
        complaints.append(f"{_count(without, 'client')} without a label not trained on: {_first(without)}")
    known = set(clients)
    eventless = [client for client in labels.of if client not in known]
    if eventless:
        complaints.append(
            f"{labels.path.name}: {_count(eventless, 'client')} with a label but without events: {_first(eventless)}"
        )
    return complaints


def _count(names: Iterable[str], noun: str) -> str:
    count = len(list(names))
    return f"1 {noun} is" if count == 1 else f"{count:,} {noun}s are"


def _first(names: Iterable[str]) -> str:
    listed_names = list(names)
    return excerpt(listed_names[0]) if len(listed_names) == 1 else f"the first is {excerpt(listed_names[0])}"
