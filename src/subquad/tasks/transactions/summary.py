"""What the data hold: clients, events, the target, and each column with its kind, values and missing values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from subquad.data.column_values import ColumnValues
from subquad.data.times import DAY
from subquad.tasks.targets.labels import UNLABELLED
from subquad.tasks.transactions.features import Features
from subquad.tasks.transactions.histories import Histories
from subquad.words import compact

Entry = dict[str, Any]
"""A line of the summary: name, where it belongs, what it is, number of values, share of missing values, a note."""


def summarise(histories: Histories, features: Features) -> tuple[Entry, ...]:
    """Returns the lines of the summary: an overview, the target, the columns that are used, those that are not."""
    return (
        _entry("clients", "overview", "", len(histories.clients), note=_lengths(histories)),
        _entry("events", "overview", "", len(histories.times), note=_span(histories)),
        *_target(histories),
        *_roles(histories),
        *(_column(column, "event") for column in _used(histories.columns, features.further_columns)),
        *(_column(column, "client") for column in _used(histories.static, features.static_columns)),
        *(_entry(name, "unused", "", 0, note=why) for name, why in features.unused),
    )


def _used(columns: Sequence[ColumnValues], features: Sequence[Any]) -> list[ColumnValues]:
    names = {column.name for column in features}
    return [column for column in columns if column.column.name in names]


def _entry(name: str, where: str, kind: str, values: int, missing: float = 0.0, note: str = "") -> Entry:
    return {"name": name, "where": where, "kind": kind, "values": values, "missing": missing, "note": note}


def _lengths(histories: Histories) -> str:
    shortest, middle, longest = np.quantile(histories.lengths, (0.0, 0.5, 1.0))
    return f"{shortest:.0f} to {longest:.0f} events each, {middle:.0f} in the middle"


def _span(histories: Histories) -> str:
    return f"over {compact(float(histories.times.max() - histories.times.min()) / DAY)} days"


def _target(histories: Histories) -> Iterator[Entry]:
    known = histories.labels != UNLABELLED
    if histories.label_names is None or not known.any():
        return
    truth, names = histories.targets[known], histories.label_names
    if histories.target_kind == "classes":
        counts = np.bincount(truth[:, 0].astype(int), minlength=len(names))
        note = ", ".join(f"{name}: {count:,}" for name, count in zip(names[:8], counts, strict=False))
        note += ", ..." if len(names) > 8 else ""
    elif histories.target_kind == "labels":
        shares = np.nanmean(truth, axis=0)
        note = ", ".join(f"{name}: {share:.0%}" for name, share in zip(names[:8], shares, strict=False))
    elif histories.target_kind == "event":
        note = (
            f"observed for {truth[:, 1].mean():.0%}, times from {compact(truth[:, 0].min())} to {compact(truth[:, 0].max())}"
        )
    else:
        note = f"{compact(truth.min())} to {compact(truth.max())}, mean {compact(truth.mean())}"
    yield _entry("target", "target", histories.target_kind, int(known.sum()), float(1 - known.mean()), note)


def _roles(histories: Histories) -> Iterator[Entry]:
    for name, numbers, names in (
        ("code", histories.codes, histories.code_names),
        ("type", histories.types, histories.type_names),
    ):
        if name in histories.fields:
            missing = float((numbers == names.index("")).mean()) if "" in names else 0.0
            yield _entry(name, "event", "category", len(names), missing)
    if "amount" in histories.fields:
        low, high = float(histories.amounts.min()), float(histories.amounts.max())
        different = len(np.unique(histories.amounts[:100_000]))
        yield _entry("amount", "event", "number", different, note=f"{compact(low)} to {compact(high)}")


def _column(column: ColumnValues, where: str) -> Entry:
    missing = float(column.missing().mean()) if len(column.values) else 0.0
    if column.is_numeric:
        present = column.values[~np.isnan(column.values)]
        note = f"{compact(float(present.min()))} to {compact(float(present.max()))}" if len(present) else ""
        return _entry(column.column.name, where, column.column.kind, len(np.unique(present[:100_000])), missing, note)
    return _entry(column.column.name, where, column.column.kind, len(column.names), missing)


def lines(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """The summary as lines for a terminal."""
    said = []
    for entry in summary:
        where, name, note = entry["where"], _printable(entry["name"]), _printable(entry["note"])
        if where == "overview":
            said.append(f"{entry['values']:,} {name}: {note}")
        elif where == "unused":
            said.append(f"  not used: {name} ({note})")
        else:
            missing = f"{entry['missing']:.1%} missing" if entry["missing"] else ""
            count = f"{entry['values']:,} {'clients' if where == 'target' else 'values'}"
            details = ", ".join(filter(None, (count, note, missing)))
            of = {"event": "", "client": " of the client", "target": ""}[where]
            said.append(f"  {name}: {entry['kind']}{of} ({details})")
    return said


def _printable(text: str) -> str:
    """The text, or how Python writes it if it holds characters that a terminal would obey."""
    return text if text.isprintable() else repr(text)
