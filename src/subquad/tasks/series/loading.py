"""Reading series of numbers: tables, NumPy's arrays, files of the UEA and UCR archives, and folders of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from subquad.checking import excerpt
from subquad.data.arrays import ARRAYS, read_labelled_array
from subquad.data.columns import is_missing, plain_number
from subquad.data.datasets import TABLES, told_splits
from subquad.data.splits import SplitName
from subquad.data.tables import STORED, Tally, find_column, listed, read_table
from subquad.data.texts import LeftOut, files_at
from subquad.data.times import attempt
from subquad.errors import SubquadError
from subquad.files import read_text
from subquad.tasks.series.sets import Layout, Reading, SeriesSet, channel_names, from_arrays, joined
from subquad.tasks.series.tables import IDS, LABELS, is_bare, read_series_table, table_names

SKTIME = (".ts",)
SUFFIXES = (*TABLES, ".txt", *ARRAYS, *SKTIME)


def load_series(path: Path, wanted: Reading | None = None, *, label_file: str = "", labels: bool = True) -> SeriesSet:
    """Reads all series at a path, and labels from another table if one is named."""
    wanted = wanted or Reading()
    files = _without_copies([(file, name) for file, name in files_at(path, SUFFIXES) if file != Path(label_file or "\0")])
    told_of = told_splits([name for _, name in files], SUFFIXES)
    chosen = [(file, name) for file, name in files if not told_of or name in told_of]
    parts, told, count = list[SeriesSet](), dict[SplitName, list[int]](), 0
    for file, name in chosen:
        series = _read(file, wanted, labels=labels)
        if parts and len(series.channels) != len(parts[0].channels):
            raise SubquadError(
                f"{file} has {len(series.channels)} channels and {chosen[0][0]} has {len(parts[0].channels)}: give series "
                "with the same channels"
            )
        if parts and len(series.channels) > 1:
            series = _in_order(series, parts[0].channels, file, chosen[0][0])
        if len(chosen) > 1:
            stem = Path(name).stem
            several = len(series.names) > 1
            series = series._replace(names=[f"{stem}: {each}" if several else stem for each in series.names])
        if told_of:
            told.setdefault(told_of[name], []).extend(range(count, count + len(series.names)))
        count += len(series.names)
        parts.append(series)
    whole = joined(parts) if len(parts) > 1 else parts[0]
    if not whole.values.size or np.isnan(whole.values).all():
        raise SubquadError(f"{path} has no value that can be used: all are missing or no numbers")
    left_out = LeftOut()
    for _, name in files:
        if told_of and name not in told_of:
            left_out.add("file", "as its name tells no split", name)
    whole = whole._replace(told=told, complaints=(*whole.complaints, *left_out.sentences(path)))
    return _with_labels(whole, Path(label_file), wanted) if label_file else whole


def _without_copies(files: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Leaves out files that stand beside one of sktime with the same name: the archives have their data in several forms."""
    stems = {file.with_suffix("") for file, _ in files if file.suffix.lower() in SKTIME}
    return [pair for pair in files if pair[0].suffix.lower() in SKTIME or pair[0].with_suffix("") not in stems]


def _in_order(series: SeriesSet, channels: Sequence[str], file: Path, first: Path) -> SeriesSet:
    """The channels of series in the order of those of the first file. Raises `SubquadError` if they have other names."""
    if set(series.channels) != set(channels):
        raise SubquadError(
            f"{file} has the channels {listed(series.channels)}, and {first} has {listed(channels)}: give the same names"
        )
    places = [series.channels.index(name) for name in channels]
    return series._replace(values=series.values[:, places], channels=tuple(channels))


def _read(file: Path, wanted: Reading, *, labels: bool) -> SeriesSet:
    suffix = file.suffix.lower()
    if suffix in ARRAYS:
        return _read_arrays(file, wanted.layout)
    if suffix in SKTIME:
        return read_ts(file)
    if suffix not in STORED and is_bare(table_names(file)):
        return _read_bare(file, wanted, labels=labels)
    return read_series_table(file, wanted, labels=labels)


def _read_arrays(file: Path, layout: Layout) -> SeriesSet:
    """An array of series, steps and channels; with two axes, of series and steps, or with long, steps and channels."""
    inputs, labels = read_labelled_array(file)
    if inputs.dtype.kind not in "iufb" or inputs.ndim > 3:
        raise SubquadError(
            f"{file} holds an array of shape {inputs.shape} and type {inputs.dtype}: series are numbers by series, steps "
            "and channels"
        )
    if inputs.ndim == 1:
        inputs, labels = inputs[None, :, None], None
    elif inputs.ndim == 2:
        inputs, labels = (inputs[None], None) if layout == "long" else (inputs[:, :, None], labels)
    shape = " x ".join(map(str, inputs.shape))
    said = f"an array of series x steps x channels, {shape} (--layout long takes two axes for steps x channels)"
    return from_arrays(list(inputs), channel_names(inputs.shape[2]), labels=labels)._replace(said=(said,))


def _read_bare(file: Path, wanted: Reading, *, labels: bool) -> SeriesSet:
    """A table without names: a series in each line, after its label in ``.tsv`` files, as in the UCR archive."""
    lines = [line for line in read_text(file).splitlines() if line.strip()]
    delimiter = max(",;\t", key=lines[0].count)
    rows = [[cell.strip() for cell in (line.split(delimiter) if delimiter in line else line.split())] for line in lines]
    for number, row in enumerate(rows, start=1):
        wrong = next((cell for cell in row if not is_missing(cell) and not np.isfinite(attempt(plain_number, cell))), None)
        if wrong is not None:
            raise SubquadError(
                f"{file}: line {number} has {excerpt(wrong)}, which is no number: mend it, or add column names"
            )
    numbers = [np.array([np.nan if is_missing(cell) else float(cell) for cell in row]) for row in rows]
    if wanted.layout == "long" or max(map(len, rows)) == 1:
        if len({len(row) for row in rows}) > 1:
            raise SubquadError(
                f"{file} has lines of different lengths: with a step in each line, all have the same channels"
            )
        said = f"a step in each line, without names: {len(rows[0])} channels"
        return from_arrays([np.stack(numbers)], channel_names(len(rows[0])))._replace(said=(said,))
    has_labels = file.suffix.lower() in (".tsv", ".txt") and all(len(row) > 1 for row in rows)
    texts = [_class_text(row[0]) for row in rows] if has_labels else None
    arrays = [row[1 if has_labels else 0 :, None] for row in numbers]
    said = f"a series in each line, without names{', after its label' if has_labels else ''}"
    return from_arrays(arrays, ["value"], labels=texts)._replace(said=(said,))


def _class_text(cell: str) -> str | None:
    if is_missing(cell):
        return None
    number = float(cell)
    return str(int(number)) if number == int(number) else cell


def read_ts(file: Path) -> SeriesSet:
    """A file of the UEA archive: lines with @ about the data, then a series in each, with ``:`` between its channels."""
    head, rows = dict[str, str](), list[str]()
    for line in read_text(file).splitlines():
        text = line.strip()
        if text.startswith("@"):
            name, _, value = text[1:].partition(" ")
            head[name.lower()] = value.strip()
        elif text and not text.startswith("#"):
            rows.append(text)
    if not rows:
        raise SubquadError(f"{file} has no series below @data: it is no whole .ts file")
    if head.get("timestamps", "false").lower() == "true":
        raise SubquadError(f"{file} has a time beside each value, which is not read: write it as a table with id and time")
    has_labels = any(head.get(name, "false").lower().startswith("true") for name in ("classlabel", "targetlabel"))
    arrays, labels = [], list[str | None]()
    for number, row in enumerate(rows, start=1):
        parts = row.split(":")
        labels.append(parts.pop().strip() if has_labels else None)
        arrays.append(_channels_of(file, number, parts))
    widths = {array.shape[1] for array in arrays}
    if len(widths) > 1:
        raise SubquadError(f"{file} has series of {min(widths)} and of {max(widths)} channels: all should have the same")
    return from_arrays(arrays, channel_names(widths.pop()), labels=labels)._replace(said=("a file of the UEA archive",))


def _channels_of(file: Path, number: int, parts: Sequence[str]) -> np.ndarray:
    try:
        channels = [[np.nan if is_missing(cell.strip()) else float(cell) for cell in part.split(",")] for part in parts]
    except ValueError as error:
        raise SubquadError(f"{file}: series {number} has something that is no number ({str(error)[:60]}): mend it") from None
    longest = max(map(len, channels), default=0)
    return np.array([channel + [np.nan] * (longest - len(channel)) for channel in channels]).reshape(len(channels), -1).T


def _with_labels(series: SeriesSet, path: Path, wanted: Reading) -> SeriesSet:
    """The series with labels from a table that names each series and its label."""

    def choose(names: list[str]) -> dict[str, str]:
        identifier = find_column(
            path, names, wanted.id if wanted.id in names else "", [*IDS, names[0]], "--id-column", "series"
        )
        rest = [name for name in names if name != identifier]
        label = find_column(path, rest, wanted.label, [*LABELS, *rest[:1]], "--label-column", "label")
        return {"id": identifier, "label": label}

    tally, labels = Tally(path), dict[str, str]()
    for chunk in read_table(path, choose, tally):
        for name, label in zip(chunk.columns["id"], chunk.columns["label"], strict=True):
            if not is_missing(label.strip()):
                labels.setdefault(name.strip(), label.strip())
    matched = [labels.get(name) for name in series.names]
    if all(label is None for label in matched):
        raise SubquadError(
            f"{path} labels {listed(labels, 2)}, but the series are called {listed(series.names, 2)}: no name is the same"
        )
    return series._replace(labels=matched, complaints=(*series.complaints, *tally.sentences()))
