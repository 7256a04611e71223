"""Series from tables: a row for each step (long), or a row for each series (wide); columns are recognised by themselves."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.column_values import ColumnReader
from subquad.data.columns import Column, is_missing, overridden, plain_number, recognise
from subquad.data.ragged import offsets_of
from subquad.data.tables import STORED, Chunk, Names, Tally, find_column, listed, read_table
from subquad.data.times import attempt, day_is_first, guess, is_ambiguous, lenient, numbers
from subquad.errors import SubquadError
from subquad.tasks.series.sets import Reading, SeriesSet, from_arrays

IDS = ("unique_id", "series_id", "series", "item_id", "sequence", "sequence_id", "id", "case", "name", "client")
"""Usual names of the column with the name of the series."""
TIMES = ("time", "timestamp", "datetime", "date", "ds", "date_time", "step", "t")
"""Usual names of the column with the time."""
LABELS = ("label", "labels", "class")
"""Usual names of the column with the label."""
SAMPLED, LEAST_LISTED = 200, 3
"""Number of cells by which a column of lists is recognised, and the smallest median length of its lists."""
LONGEST_NAME = 1000
"""Largest number of characters of the name of a column."""
LEAST_NUMBERED = 4
"""Smallest number of columns such as v0, v1, v2, ... by which a table is taken for one with a series in each row."""


def table_names(path: Path) -> list[str]:
    """The names in the first line of a table."""
    names: list[str] = []

    def choose(all_names: list[str]) -> dict[str, str]:
        names.extend(all_names)
        counts = Counter(all_names)
        return {"any": min(all_names, key=counts.__getitem__)}

    for _ in read_table(path, choose, Tally(path)):
        break
    if not is_bare(names) and (strange := [name for name in names if len(name) > LONGEST_NAME or "\0" in name]):
        raise SubquadError(f"{path} has a column {excerpt(strange[0])}, which is no name: rename it")
    return names


def is_bare(names: Sequence[str]) -> bool:
    """Whether the first line of a table holds values in place of names, which spaces may divide."""
    parts = [part for name in names for part in name.split() or [""]]
    return all(is_missing(part) or math.isfinite(attempt(plain_number, part)) for part in parts)


def numbered_columns(names: Iterable[str]) -> dict[str, list[str]]:
    """Columns such as v0, v1, v2, ... in the order of their numbers, by what stands before the number."""
    by_prefix: dict[str, dict[int, str]] = {}
    for name in names:
        if (matched := re.fullmatch(r"(.*?)(\d{1,9})", name)) is not None:
            by_prefix.setdefault(matched[1].rstrip("_ .-"), {})[int(matched[2])] = name
    groups = {prefix: [of[at] for at in sorted(of)] for prefix, of in by_prefix.items() if len(of) >= LEAST_NUMBERED}
    longest = max(map(len, groups.values()), default=0)
    return {prefix: columns for prefix, columns in groups.items() if len(columns) == longest}


def plan_table(path: Path, names: Sequence[str], wanted: Reading) -> Reading:
    """Decides which column has which role and what a row is. Names in `wanted` that are not empty are required."""
    for role, option in (("id", "--id-column"), ("time", "--time-column"), ("label", "--label-column")):
        if name := getattr(wanted, role):
            find_column(path, names, name, (), option, role)
    for name in wanted.values:
        find_column(path, names, name, (), "--value-columns", "values")

    def usual(known: Iterable[str], *taken: str) -> str:
        lowered = {name.lower(): name for name in reversed(names) if name not in taken and name not in wanted.values}
        return next((lowered[name] for name in known if name in lowered), "")

    label = wanted.label or usual(LABELS)
    identifier = wanted.id or usual(IDS, label)
    time = wanted.time or usual(TIMES, label, identifier)
    rest = [name for name in names if name not in (label, identifier, time)]
    numbered = numbered_columns(wanted.values or rest)
    layout = wanted.layout
    if layout == "auto":
        is_wide = not time and sum(map(len, numbered.values())) * 2 >= len(rest) > 0
        layout = "wide" if is_wide else "long"
    if layout == "wide" and not numbered:
        numbered = {"value": list(wanted.values or rest)}
    values = tuple(name for columns in numbered.values() for name in columns) if layout == "wide" else wanted.values
    return Reading(layout, identifier, time if layout == "long" else "", label, values, wanted.time_form)


def read_series_table(path: Path, wanted: Reading, *, labels: bool = True) -> SeriesSet:
    """Reads a table whose first line has the names of its columns. Without `labels`, a column of labels may be missing."""
    names = table_names(path)
    wanted = wanted if labels else _without(wanted, names)
    reading = plan_table(path, names, wanted)
    twice, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise SubquadError(f"{path} has {count} columns {excerpt(twice)}: rename all but one")
    tally = Tally(path, "row" if path.suffix.lower() in STORED else "line")
    chunks = [*read_table(path, lambda all_names: {name: name for name in all_names}, tally)]
    if not chunks or not sum(len(chunk.lines) for chunk in chunks):
        why = tally.sentences()
        raise SubquadError(f"{path} has no rows that can be used: {why[0] if why else 'there are none below the names'}")
    lists = [] if wanted.layout == "long" or reading.time else _list_columns(chunks[0], wanted.values or names)
    if lists:
        series = _read_lists(path, chunks, replace(reading, layout="wide", values=tuple(lists)))
    else:
        read = _read_wide if reading.layout == "wide" else _read_long
        series = read(path, chunks, reading, tally, names)
    return series._replace(complaints=(*series.complaints, *tally.sentences()))


def _without(wanted: Reading, names: Sequence[str]) -> Reading:
    """What is wanted of a table of series without labels: a column of labels is known only if it is there."""
    return Reading(
        wanted.layout,
        wanted.id if wanted.id in names else "",
        wanted.time,
        wanted.label if wanted.label in names else "",
        wanted.values,
        wanted.time_form,
    )


def _texts(chunks: Sequence[Chunk], name: str) -> list[str]:
    return [text for chunk in chunks for text in chunk.columns[name]]


def _numbers(path: Path, chunks: Sequence[Chunk], name: str, said: list[str], *, is_named: bool = False) -> ndarray | None:
    """The values of a column of numbers; None, with the reason in `said`, for a column of something else.

    Whole numbers may be recognised as categories, dates or identifiers. Categories are values in any case, the others if the
    column `is_named` as one of values.
    """
    cells = chunks[0].columns[name]
    decided = recognise(name, cells)
    if decided.kind != "number":
        readable = [text for cell in set(cells) if not is_missing(text := cell.strip())]
        is_numeric = all(math.isfinite(attempt(plain_number, text)) for text in readable)
        if not is_numeric or (decided.kind in ("time", "unused") and not is_named):
            said.append(f"{name}: {decided.kind}{f' ({decided.why})' if decided.why else ''}")
            return None
        decided = overridden(decided, "number", cells)
    reader = ColumnReader(Column(name, "number", decided.form or "point"))
    values = np.concatenate([reader.read(chunk.columns[name]) for chunk in chunks])
    said_cells = reader.sentences(path.name)
    said += [f"{name}: {reader.unreadable:,} cells are no numbers and count as missing"] if said_cells else []
    return values


def _read_wide(path: Path, chunks: Sequence[Chunk], reading: Reading, tally: Tally, names: Sequence[str]) -> SeriesSet:
    """A series in each row; groups of columns with other names before the numbers are channels."""
    said: list[str] = []
    columns = {name: _numbers(path, chunks, name, said, is_named=True) for name in reading.values}
    used = [name for name in reading.values if columns[name] is not None]
    if not used:
        raise SubquadError(f"{path} has no columns of numbers but {listed(names)}: name them by --value-columns")
    groups = numbered_columns(used) or {"value": used}
    table = {name: values for name, values in columns.items() if values is not None}
    stacked = np.stack([np.stack([table[name] for name in group], axis=1) for group in groups.values()], axis=2)
    labels = _label_cells(chunks, reading.label)
    channels = [prefix or "value" for prefix in groups]
    series = from_arrays(list(stacked), channels, _row_names(chunks, reading), labels)
    steps = len(next(iter(groups.values())))
    shown = f"a series in each row, {steps} steps in the columns {excerpt(used[0])} to {excerpt(used[-1])}"
    others = [name for name in names if name not in (*reading.values, reading.id, reading.label)]
    return series._replace(reading=reading, said=(shown, *_named(reading), *_unused(said, others)))


def _list_columns(chunk: Chunk, names: Sequence[str]) -> list[str]:
    """Columns whose cells hold several numbers, as lists in Parquet and data sets of Hugging Face do."""

    def is_list(name: str) -> bool:
        cells = [text for text in islice(chunk.columns[name], SAMPLED) if not is_missing(text.strip())]
        counts = [0 if (values := _list_of(text)) is None else len(values) for text in cells]
        return bool(counts) and min(counts) > 0 and float(np.median(counts)) >= LEAST_LISTED

    return [name for name in names if is_list(name)]


def _list_of(text: str) -> list[float] | None:
    """The numbers in a cell such as ``1 2 3`` or ``[1, 2, 3]``; None if there is something else in it."""
    parts = re.split(r"[\s,;|]+", text.strip().strip("[]()").strip())
    numbers_in_cell = [math.nan if is_missing(part) else attempt(plain_number, part) for part in parts]
    is_number = [is_missing(part) or math.isfinite(number) for part, number in zip(parts, numbers_in_cell, strict=True)]
    return numbers_in_cell if all(is_number) else None


def _read_lists(path: Path, chunks: Sequence[Chunk], reading: Reading) -> SeriesSet:
    """A series in each row, whose steps are in the cells of one column, or of several columns of the same lengths."""
    columns = [[_list_of(text) or [] for text in _texts(chunks, name)] for name in reading.values]
    arrays, row_names = [], _row_names(chunks, reading)
    for row, cells in enumerate(zip(*columns, strict=True)):
        if len({len(cell) for cell in cells}) > 1:
            raise SubquadError(
                f"{path}: {row_names[row]} has lists of {len(cells[0])} and of other numbers of steps: give lists of the "
                "same length, or name fewer columns by --value-columns"
            )
        arrays.append(np.array(cells, np.float64).reshape(len(cells), -1).T)
    series = from_arrays(arrays, reading.values, row_names, _label_cells(chunks, reading.label))
    shown = f"a series in each row, its steps in the cells of {listed(reading.values)}"
    return series._replace(reading=reading, said=(shown, *_named(reading)))


def _row_names(chunks: Sequence[Chunk], reading: Reading) -> list[str]:
    lines = [f"line {line}" for chunk in chunks for line in chunk.lines]
    if not reading.id:
        return lines
    return [text.strip() or line for text, line in zip(_texts(chunks, reading.id), lines, strict=True)]


def _label_cells(chunks: Sequence[Chunk], label: str) -> list[str | None] | None:
    if not label:
        return None
    return [None if is_missing(text.strip()) else text.strip() for text in _texts(chunks, label)]


def _named(reading: Reading) -> list[str]:
    roles = {"series": reading.id, "time": reading.time, "label": reading.label}
    shown = ", ".join(f"{role} {excerpt(name)}" for role, name in roles.items() if name)
    return [f"columns: {shown}"] if shown else []


def _unused(said: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    return [f"not used: {reason}" for reason in said] + [f"not used: {name}" for name in others]


def _read_long(path: Path, chunks: Sequence[Chunk], reading: Reading, tally: Tally, names: Sequence[str]) -> SeriesSet:
    """A step in each row, in the order of the times or of the rows."""
    said: list[str] = []
    roles = (reading.id, reading.time, reading.label)
    candidates = reading.values or tuple(name for name in names if name not in roles)
    is_named = bool(reading.values)
    columns = {name: _numbers(path, chunks, name, said, is_named=is_named) for name in candidates}
    values = {name: column for name, column in columns.items() if column is not None}
    if reading.values and len(values) < len(reading.values):
        raise SubquadError(f"{path} has no numbers in a column that should hold some: {said[0]}")
    if not values:
        raise SubquadError(f"{path} has no columns of numbers but {listed(names)}: name them by --value-columns")
    lines = np.concatenate([chunk.lines for chunk in chunks])
    keys, key_names = _keys(chunks, reading.id, len(lines))
    times, form = _read_times(path, chunks, reading, len(lines))
    usable = np.isfinite(times) & (keys >= 0)
    tally.add("without the name of a series", lines[keys < 0])
    tally.add("without a valid time", lines[(keys >= 0) & ~np.isfinite(times)])
    order = np.lexsort((times, keys))
    order = order[usable[order]]
    if not len(order):
        raise SubquadError(f"{path} has no row that can be used: {tally.sentences()[0]}")
    present, counts = np.unique(keys[order], return_counts=True)
    offsets = offsets_of(counts)
    labels, contradicting = _long_labels(chunks, reading.label, order, offsets)
    complaints = [f"{path.name}: {contradicting:,} series have several labels, the first of which counts"] * bool(
        contradicting
    )
    if reading.time and form == "day-first" != reading.time_form and is_ambiguous(chunks[0].columns[reading.time]):
        complaints.append(day_is_first(path.name, can_choose=False))
    stacked = np.stack([column[order] for column in values.values()], axis=1).astype(np.float32)
    series_names = [key_names[at] for at in present]
    shown = f"a step in each row; channels: {listed(values, 8)}"
    kept = Reading("long", reading.id, reading.time, reading.label, tuple(values), form)
    place = np.arange(len(order), dtype=np.float64) - np.repeat(offsets[:-1], counts)
    return SeriesSet(
        series_names,
        offsets,
        stacked,
        times[order] if reading.time else place,
        tuple(values),
        labels,
        kept,
        {},
        (shown, *_named(reading), *_unused(said)),
        tuple(complaints),
    )


def _keys(chunks: Sequence[Chunk], identifier: str, rows: int) -> tuple[ndarray, list[str]]:
    """The number of the series of each row, -1 where it has no name, and the names."""
    if not identifier:
        return np.zeros(rows, np.int64), ["series"]
    numbered = Names()
    keys = np.concatenate([numbered.number(chunk.columns[identifier]) for chunk in chunks]).astype(np.int64)
    nameless = numbered.numbers.get("", -2)
    return np.where(keys == nameless, -1, keys), numbered.ordered()


def _read_times(path: Path, chunks: Sequence[Chunk], reading: Reading, rows: int) -> tuple[ndarray, str]:
    """The time of each row in seconds or numbers, or its place, and the name of the format."""
    if not reading.time:
        return np.arange(rows, dtype=np.float64), ""
    cells = chunks[0].columns[reading.time]
    is_stored_time = getattr(cells, "is_time", False)
    form = reading.time_form or ("iso" if is_stored_time else guess(cells) or "")
    if not form:
        raise SubquadError(
            f"{path}: the column {excerpt(reading.time)} has neither numbers nor dates: name that of the times by "
            "--time-column"
        )
    return np.concatenate([numbers(chunk.columns[reading.time], lenient(form)) for chunk in chunks]), form


def _long_labels(
    chunks: Sequence[Chunk], label: str, order: ndarray, offsets: ndarray
) -> tuple[list[str | None] | None, int]:
    """The label of each series: the first that is not missing. Also counts series with several labels."""
    cells = _label_cells(chunks, label)
    if cells is None:
        return None, 0
    labels: list[str | None] = []
    contradicting = 0
    for first, last in pairwise(offsets):
        known: Mapping[str, None] = dict.fromkeys(text for at in order[first:last] if (text := cells[at]) is not None)
        labels.append(next(iter(known), None))
        contradicting += len(known) > 1
    return (labels if any(text is not None for text in labels) else None), contradicting
