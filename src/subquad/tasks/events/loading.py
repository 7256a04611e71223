"""Loading events: EasyTPP's JSON or pickles, text files with a sequence on each line, a table, or a hub dataset."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from subquad.data.json_tables import JSON_LINES
from subquad.data.named import is_named, load_named
from subquad.data.splits import shuffled
from subquad.data.tables import PARQUET, listed
from subquad.errors import SubquadError
from subquad.files import kind_of
from subquad.tasks.events.files import (
    Columns,
    is_easytpp,
    read_lines,
    read_pickled,
    read_records,
    read_rows,
    rows_of_records,
    whole_number,
)
from subquad.tasks.events.repairs import Repairs, Rows, assemble
from subquad.tasks.events.sequences import EventSequences

JSON = (".json", *JSON_LINES)
PICKLES = (".pkl", ".pickle")
FILES = (*JSON, ".csv", ".tsv", *PARQUET, *PICKLES)
MOST = 100_000  # largest number of types
SPLITS = {  # names of files, and of splits of a dataset
    "train": ("train",),
    "development": ("development", "dev", "valid", "validation", "val"),
    "test": ("test",),
}


class EventSplits(NamedTuple):
    """Sequences for training, development and test, with the same types. Sequences are never cut."""

    train: EventSequences
    development: EventSequences
    test: EventSequences

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of all three splits."""
        return tuple(dict.fromkeys(sentence for part in self for sentence in part.complaints))


class _Read(NamedTuple):
    """The rows of a file, and what the file says about its types."""

    rows: Rows
    types: int = 0  # stated number of types, or 0
    first: int | None = 0  # number of the first type; None if types are names


def load_splits(
    source: str, columns: Columns | None = None, repairs: Repairs | None = None, *, fold: int = 1, seed: int = 0
) -> EventSplits:
    """Loads training, development and test sequences from a folder, a file or a dataset of the Hugging Face hub.

    Without a development split, a tenth of the training sequences is used for it. A single file is divided into 60% for
    training, 20% for development and 20% for the test. Both divisions depend on the seed.
    """
    path, columns, repairs = Path(source), columns or Columns(), repairs or Repairs()
    kind = kind_of(path)
    if kind == "folder":
        read = _folder(path, columns, fold)
    elif kind != "nothing":
        read = {"all": _file(path, columns)}
    elif is_named(source):
        read = _hub(source)
    else:
        raise SubquadError(f"there is no file or folder {source}: check the path given by --data")
    names = _type_names(source, list(read.values()))
    loaded = {split: assemble(part.rows, names, repairs) for split, part in read.items()}
    splits = _cut(source, loaded, seed)
    for split, part in splits._asdict().items():
        if part.lengths.max(initial=0) < 2:
            raise SubquadError(
                f"the {split} split of {source} has no sequence of 2 events or more: there is nothing to predict"
            )
    return splits


def load_sequences(
    path: Path, type_names: Sequence[str], columns: Columns | None = None, repairs: Repairs | None = None, *, fold: int = 1
) -> EventSequences:
    """Loads new sequences from a file, whose types must be among `type_names`. A folder gives its test split."""
    columns, repairs = columns or Columns(), repairs or Repairs()
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}: check the path given by --data")
    read = _folder(path, columns, fold)["test"] if kind == "folder" else _file(path, columns)
    return assemble(read.rows, type_names, repairs, next_events=True)


def _file(path: Path, columns: Columns) -> _Read:
    suffix = path.suffix.lower()
    if suffix in JSON_LINES and not is_easytpp(path):
        return _Read(read_rows(path, columns), first=None)
    if suffix in JSON:
        return _Read(*read_records(path))
    if suffix in PICKLES:
        return _Read(*read_pickled(path))
    if suffix in (".csv", ".tsv", *PARQUET):
        return _Read(read_rows(path, columns), first=None)
    raise SubquadError(f"{path} is of no known kind: give a folder, or a file that ends in {', '.join(FILES)}")


def _folder(path: Path, columns: Columns, fold: int) -> dict[str, _Read]:
    """Reads the files of a folder, by split."""
    folds = sorted(file.name.split("-")[1] for file in path.glob("time-*-train.txt"))
    if folds:
        if str(fold) not in folds:
            raise SubquadError(f"{path} has no time-{fold}-train.txt: choose --fold {' or '.join(folds)}")
        pairs = {split: [path / f"{what}-{fold}-{split}.txt" for what in ("time", "event")] for split in ("train", "test")}
        return {split: _Read(read_lines(*pair), first=1) for split, pair in pairs.items()}
    files = {
        split: next((file for name in names for suffix in FILES if (file := path / f"{name}{suffix}").exists()), None)
        for split, names in SPLITS.items()
    }
    if files["train"] is None and files["test"] is None:
        raise SubquadError(
            f"{path} is of no known layout: it has neither train.json and test.json (EasyTPP's) nor time-1-train.txt, "
            "event-1-train.txt and the same for test (one sequence a line)"
        )
    for split in ("train", "test"):
        if files[split] is None:
            raise SubquadError(f"{path} has no {split}.json beside the others: put it there, or give one file to be split")
    read: dict[str, _Read] = {}
    for split, present in files.items():
        if present is not None:
            read[split] = _file(present, columns)
            if columns.decided is None:  # times and further columns of other splits are read as those of the training split
                further = (*(values.column for values in read[split].rows.columns), *read[split].rows.unused)
                decided = {column.name: column for column in further}
                columns = replace(columns, decided=decided, time_form=read[split].rows.time_form)
    return read


def _hub(name: str) -> dict[str, _Read]:
    """Reads a dataset of the Hugging Face hub with EasyTPP's fields, by split."""
    loaded = load_named(name)
    read = {}
    for split, names in SPLITS.items():
        present = next((split_name for split_name in names if split_name in loaded), None)
        if present is not None:
            read[split] = _Read(*rows_of_records(f"{name}, {present}", loaded[present]))
        elif split != "development":
            raise SubquadError(f"the dataset {name} has no split {split!r} but {listed(loaded)}")
    return read


def _type_names(source: str, read: list[_Read]) -> list[str]:
    """Names of the types: those that occur, or if types are numbers, all numbers from the first to the last.

    EasyTPP's numbers begin with 0, and files state how many there are. If that number itself occurs, they begin with 1.
    """
    values = {name: whole_number(name) for part in read for name in part.rows.written if name}
    if any(part.first is None for part in read):
        if len(values) > MOST:
            raise SubquadError(f"{source} has {len(values):,} types, and more than {MOST:,} cannot be told apart")
        return sorted(values, key=lambda name: (values[name] is None, values[name] or 0, name))
    present = {value for value in values.values() if value is not None}
    stated, start = max(part.types for part in read), read[0].first or 0
    if stated and stated in present and min(present) >= 1:
        start = 1
    stop = start + stated if stated else max(present, default=-1) + 1
    if stop > MOST:
        raise SubquadError(f"{source} has types up to number {stop - 1:,}, and more than {MOST:,} cannot be told apart")
    return [str(number) for number in range(start, stop)]


def _cut(source: str, loaded: dict[str, EventSequences], seed: int) -> EventSplits:
    """Divides the data into the splits that they do not have."""
    if "all" in loaded:
        count = len(loaded["all"].names)
        if count < 3:
            raise SubquadError(
                f"{source} has {'one sequence' if count == 1 else f'{count} sequences'}, but at least 3 are needed: to "
                "train on, to watch, and to test on"
            )
        fifth = max(1, round(0.2 * count))
        parts = np.split(shuffled(loaded["all"].names, seed), [fifth, 2 * fifth])
        test, development, train = (loaded["all"].select(np.sort(part)) for part in parts)
        return EventSplits(train, development, test)
    if "development" in loaded:
        return EventSplits(**loaded)
    count = len(loaded["train"].names)
    if count < 2:
        raise SubquadError(f"{source} has one training sequence and no development split: at least 2 sequences are needed")
    order, tenth = shuffled(loaded["train"].names, seed), max(1, count // 10)
    development, train = (loaded["train"].select(np.sort(part)) for part in (order[:tenth], order[tenth:]))
    return EventSplits(train, development, loaded["test"])
