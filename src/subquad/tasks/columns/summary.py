"""What columns hold, as lines for people: kind, number of values, missing values."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from subquad.data.column_values import MISSING_NAME, ColumnValues
from subquad.data.times import DATED, as_text
from subquad.tasks.columns.features import ColumnFeatures
from subquad.words import compact

Entry = dict[str, Any]
"""A line of the summary: name, where it belongs, what it is, number of values, share of missing values, a note."""


def entry(name: str, where: str, kind: str, values: int, missing: float = 0.0, note: str = "") -> Entry:
    """Returns a line of the summary; `where` is overview, target, event, client, sequence or unused."""
    return {"name": name, "where": where, "kind": kind, "values": values, "missing": missing, "note": note}


def used_columns(columns: Sequence[ColumnValues], features: Sequence[ColumnFeatures]) -> list[ColumnValues]:
    """The columns that have features."""
    names = {column.name for column in features}
    return [column for column in columns if column.column.name in names]


def column_entry(column: ColumnValues, where: str) -> Entry:
    """Returns the line of the summary about a column."""
    missing = float(column.missing().mean()) if len(column.values) else 0.0
    if column.is_numeric:
        present = column.values[~np.isnan(column.values)]
        is_date = column.column.kind == "time" and column.column.form in DATED
        ends = [_end(float(end), is_date=is_date) for end in (present.min(), present.max())] if len(present) else []
        note = " to ".join(ends)
        return entry(column.column.name, where, column.column.kind, len(np.unique(present[:100_000])), missing, note)
    return entry(column.column.name, where, column.column.kind, len(set(column.names) - {MISSING_NAME}), missing)


def _end(value: float, *, is_date: bool) -> str:
    """The smallest or largest value of a column as text: the day of a date, or a number."""
    return as_text(value, is_date=True).partition("T")[0] if is_date else compact(value)


def lines(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """The summary as lines for a terminal."""
    said = []
    for about in summary:
        where, name, note = about["where"], _printable(about["name"]), _printable(about["note"])
        if where == "overview":
            said.append(f"{about['values']:,} {name}: {note}")
        elif where == "unused":
            said.append(f"  not used: {name} ({note})")
        else:
            missing = f"{about['missing']:.1%} missing" if about["missing"] else ""
            noun = "client" if where == "target" else "value"
            count = f"{about['values']:,} {noun}{'' if about['values'] == 1 else 's'}"
            details = ", ".join(filter(None, (count, note, missing)))
            of = {"event": "", "client": " of the client", "sequence": " of the sequence", "target": ""}[where]
            said.append(f"  {name}: {about['kind']}{of} ({details})")
    return said


def _printable(text: str) -> str:
    """The text, or how Python writes it if it holds characters that a terminal would obey."""
    return text if text.isprintable() else repr(text)
