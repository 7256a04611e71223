"""Features of the columns that have no known role: vocabularies, bins and scales, learned from the training sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import Checked, Count, Whole, Words, read
from subquad.data.column_values import MISSING_NAME, NOTHING, ColumnValues, hashed
from subquad.data.columns import Column, Kind, truth
from subquad.errors import SubquadError

BINS = 32
MANY = 200
"""Number of different values above which those that few clients have share hashed vectors."""
SHARED = 0.1
"""Smallest share of the rare values that more than one client has. Below it, values such as account numbers tell clients
apart and nothing else, so that all rare ones have one vector: hashed ones would be noise that is learned by heart."""
MOST_KEPT = 20_000
"""Largest number of different values of a column that have vectors of their own, those of the most clients."""
SPREAD = 1.7
"""Largest size of a number: its quantiles are spread evenly from minus this to this, with a variance of about 1."""


@dataclass(frozen=True)
class ColumnFeatures(Checked):
    """Turns the values of a column into symbols, and those of numbers and times into scaled numbers too."""

    name: Words
    kind: Kind
    form: Words = ""  # how numbers or times are written
    separator: Words = ""  # character between several values of one cell
    values: tuple[str, ...] = ()  # values with vectors of their own
    buckets: Whole = 0  # number of vectors that all other values share
    edges: tuple[float, ...] = ()  # quantiles of a number, ascending
    width: Count = 1  # number of symbols of one cell

    @property
    def column(self) -> Column:
        """How the cells of the column are read."""
        return Column(self.name, self.kind, self.form, self.separator)

    @property
    def is_numeric(self) -> bool:
        """Whether the column holds numbers or times."""
        return self.kind in ("number", "time")

    @property
    def symbols(self) -> int:
        """Number of different symbols, with 0 for a missing number, an unknown value, or no further value."""
        return len(self.edges) + 2 if self.is_numeric else 1 + len(self.values) + self.buckets

    def encode(self, read: ColumnValues, times: Float[ndarray, "rows"] | None) -> Int[ndarray, "rows width"]:
        """The symbols of each row. `times` are those of the events, from which times in columns of events are counted."""
        if self.is_numeric:
            real = self.real(read, times)
            bins = np.searchsorted(np.array(self.edges), real, side="right") + 1
            return np.where(np.isnan(real), 0, bins)[:, None]
        symbols = self._lookup(read.names)[read.values]  # NOTHING, which is -1, takes the 0 at the end
        if symbols.ndim == 1:
            return symbols[:, None]
        wide = np.zeros((len(symbols), self.width), np.int64)
        wide[:, : symbols.shape[1]] = symbols[:, : self.width]
        return wide

    @cached_property
    def _known(self) -> dict[str, int]:
        """The symbols of the values with vectors of their own."""
        return {value: number for number, value in enumerate(self.values, start=1)}

    @cached_property
    def _latest(self) -> dict[str, Any]:
        """The list of names that was looked up last, which is the same for all parts of a file, and its symbols."""
        return {"names": None}

    def _lookup(self, names: list[str]) -> Int[ndarray, "names_and_nothing"]:
        """The symbol of each name, and a 0 at the end."""
        if self._latest["names"] is not names:
            first = 1 + len(self.values)
            rest = (first + hashed(name, self.buckets) if self.buckets else 0 for name in names)
            known = self._known
            if self.kind == "boolean":  # yes in one file may be True in another
                truths = {truth(value): number for value, number in known.items()}
                known = {name: truths[truth(name)] for name in names if truth(name) in truths} | known
            symbols = [known.get(name, other) for name, other in zip(names, rest, strict=True)]
            self._latest.update(names=names, symbols=np.array([*symbols, 0]))
        lookup: ndarray = self._latest["symbols"]
        return lookup

    def scaled(self, read: ColumnValues, times: Float[ndarray, "rows"] | None) -> Float[ndarray, "rows"]:
        """Each number by its place among the quantiles, between -1.7 and 1.7; 0 for a missing one."""
        real, edges = self.real(read, times), np.array(self.edges)
        if len(edges) < 2:
            return np.zeros(len(real))
        return np.nan_to_num(np.interp(real, edges, np.linspace(-SPREAD, SPREAD, len(edges))))

    def real(self, read: ColumnValues, times: Float[ndarray, "rows"] | None) -> Float[ndarray, "rows"]:
        """The numbers of a column, with times counted from those of the events."""
        values = read.values.astype(np.float64)
        return values - times if self.kind == "time" and times is not None else values


def learn_column(
    read: ColumnValues, clients: Int[ndarray, "rows"], times: Float[ndarray, "rows"] | None, *, rare: int, buckets: int
) -> ColumnFeatures | Column:
    """Learns the features of a column, or says why it is not used.

    Args:
        read: the values of the training clients.
        clients: the client of each row.
        times: the times of events, or None for a column of clients.
        rare: values that fewer clients have share vectors, if the column has many.
        buckets: number of shared vectors.
    """
    column = read.column
    about: dict[str, Any] = {"name": column.name, "kind": column.kind, "form": column.form, "separator": column.separator}
    if read.is_numeric:
        real = ColumnFeatures(**about).real(read, times)
        present = real[~np.isnan(real)]
        if not len(present):
            return Column(column.name, "unused", why="no values")
        edges = np.unique(np.quantile(present, np.arange(1, BINS) / BINS))
        if len(np.unique(present[: 10 * MANY])) < 2 and len(edges) < 2 and len(present) == len(real):
            return Column(column.name, "unused", why="the same value everywhere")
        return ColumnFeatures(**about, edges=tuple(edges.tolist()))
    counts = _client_counts(read, clients)
    present = np.flatnonzero(counts)
    if not len(present) or [read.names[at] for at in present] == [MISSING_NAME]:
        return Column(column.name, "unused", why="no values")
    if len(present) < 2:
        return Column(column.name, "unused", why="the same value everywhere")
    kept = present if len(present) <= MANY else present[counts[present] >= rare]
    kept = kept[np.argsort(-counts[kept], kind="stable")][:MOST_KEPT]
    rest = np.setdiff1d(present, kept)
    is_shared = len(rest) > 0 and (counts[rest] > 1).mean() >= SHARED
    width = 1 if read.values.ndim == 1 else read.values.shape[1]
    names = tuple(sorted(read.names[at] for at in kept))
    return ColumnFeatures(**about, values=names, buckets=buckets if is_shared else min(1, len(rest)), width=width)


def learn_columns(
    columns: Sequence[ColumnValues], clients: Int[ndarray, "rows"], times: ndarray | None, *, rare: int, buckets: int
) -> tuple[list[ColumnFeatures], list[Column]]:
    """Learns the features of several columns, and returns them with the columns that are not used."""
    learned = [learn_column(column, clients, times, rare=rare, buckets=buckets) for column in columns]
    used = [column for column in learned if isinstance(column, ColumnFeatures)]
    return used, [column for column in learned if isinstance(column, Column)]


class ColumnLayout(NamedTuple):
    """Where the symbols and numbers of columns are in an encoded row: symbols of all columns, then numbers of some."""

    sizes: tuple[int, ...] = ()
    """Number of different symbols of each column."""
    widths: tuple[int, ...] = ()
    """Number of symbols of a cell, for each column."""
    numbers: int = 0
    """Number of columns that have a number too."""

    @property
    def width(self) -> int:
        """Number of fields of an encoded row."""
        return sum(self.widths) + self.numbers


def layout_of(features: Sequence[ColumnFeatures]) -> ColumnLayout:
    """Where the fields of columns are in a row that `encode_columns` returns."""
    sizes, widths = (tuple(getattr(column, name) for column in features) for name in ("symbols", "width"))
    return ColumnLayout(sizes, widths, sum(column.is_numeric for column in features))


def encode_columns(
    features: Sequence[ColumnFeatures], columns: Sequence[ColumnValues], rows: int, times: Float[ndarray, "rows"] | None
) -> Float[ndarray, "rows fields"]:
    """Every row as numbers: the symbols of all columns, which are exact in float32, then the scaled numbers.

    `columns` may hold columns without features, which are left out.
    """
    by_name = {column.column.name: column for column in columns}
    layout = layout_of(features)
    encoded = np.zeros((rows, layout.width), np.float32)
    at, number_at = 0, sum(layout.widths)
    for column in features:
        read = by_name[column.name]
        encoded[:, at : at + column.width] = column.encode(read, times)
        at += column.width
        if column.is_numeric:
            encoded[:, number_at] = column.scaled(read, times)
            number_at += 1
    return encoded


def require_columns(features: Sequence[ColumnFeatures], columns: Sequence[ColumnValues], advice: str = "") -> None:
    """Raises `SubquadError` with advice if data lack a column that a model was trained with."""
    present = {column.column.name for column in columns}
    for column in features:
        if column.name not in present:
            raise SubquadError(
                f"the model was trained with the column {column.name!r:.60}, but the data have none: add the column{advice}"
            )


def _client_counts(read: ColumnValues, clients: Int[ndarray, "rows"]) -> Int[ndarray, "names"]:
    """Number of clients that have each value."""
    values = read.values if read.values.ndim > 1 else read.values[:, None]
    counts = np.zeros(len(read.names), np.int64)
    for at in range(values.shape[1]):
        used = values[:, at] != NOTHING
        pairs = np.unique(clients[used].astype(np.int64) * max(1, len(read.names)) + values[used, at])
        counts += np.bincount(pairs % max(1, len(read.names)), minlength=len(read.names))
    return counts


def read_features(values: Mapping[str, Any], where: str) -> ColumnFeatures:
    """Returns the features that a run stored as JSON."""
    return read(ColumnFeatures, values, where)


def as_json(features: ColumnFeatures) -> dict[str, Any]:
    """Returns the features as JSON types."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(features).items()}
