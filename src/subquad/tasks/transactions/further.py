"""Features of the columns that have no known role: vocabularies, bins and scales, learned from the training clients."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import Checked, Count, Whole, Words, read
from subquad.data.column_values import MISSING_NAME, NOTHING, ColumnValues, hashed
from subquad.data.columns import Column, Kind

BINS = 32
MANY = 200
"""Number of different values above which those that few clients have share hashed vectors."""
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
        known = {value: number for number, value in enumerate(self.values, start=1)}
        first = 1 + len(self.values)
        rest = [first + hashed(name, self.buckets) if self.buckets else 0 for name in read.names]
        lookup = np.array([known.get(name, other) for name, other in zip(read.names, rest, strict=True)] + [0])
        symbols = lookup[read.values]  # NOTHING, which is -1, takes the 0 at the end
        if symbols.ndim == 1:
            return symbols[:, None]
        wide = np.zeros((len(symbols), self.width), np.int64)
        wide[:, : symbols.shape[1]] = symbols[:, : self.width]
        return wide

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
    is_rest = len(kept) < len(present)
    width = 1 if read.values.ndim == 1 else read.values.shape[1]
    names = tuple(sorted(read.names[at] for at in kept))
    return ColumnFeatures(**about, values=names, buckets=buckets if is_rest else 0, width=width)


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
