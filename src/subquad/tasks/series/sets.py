"""Series of numbers with their times, one after the other in flat arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import Checked, Words
from subquad.data.ragged import offsets_of, places_of
from subquad.data.splits import SplitName
from subquad.data.tables import LARGEST_NUMBER

Layout = Literal["auto", "long", "wide"]


@dataclass(frozen=True)
class Reading(Checked):
    """How a table was read: its layout and columns, so that new tables are read in the same way."""

    layout: Layout = "auto"
    id: Words = ""  # column with the name of the series
    time: Words = ""  # column with the time
    label: Words = ""  # column with the label
    values: tuple[Words, ...] = ()  # columns with the values
    time_form: Words = ""  # how times are written, by a name in times.WRITTEN; empty without times


class SeriesSet(NamedTuple):
    """Series s has the steps from offsets[s] up to offsets[s + 1], each with a value of every channel.

    Attributes:
        values: NaN where a value is missing.
        times: times of the steps in seconds or in the unit of the data; 0, 1, 2, ... if the data have no times.
        labels: the label of each series as text, None for a series without one; or None if there are no labels.
        told: indices of the series of each split, if the names of files tell the splits.
        said: sentences about what was recognised.
    """

    names: list[str]
    offsets: Int[ndarray, "edges"]
    values: Float[ndarray, "steps channels"]
    times: Float[ndarray, "steps"]
    channels: tuple[str, ...]
    labels: list[str | None] | None = None
    reading: Reading = Reading()
    told: dict[SplitName, list[int]] = {}  # noqa: RUF012
    said: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()

    @property
    def lengths(self) -> Int[ndarray, "series"]:
        """Number of steps of each series."""
        return np.diff(self.offsets)

    def take(self, chosen: Sequence[int] | Int[ndarray, "some"]) -> "SeriesSet":
        """Some of the series."""
        places = np.asarray(chosen, np.int64)
        lengths = self.lengths[places]
        at = places_of(self.offsets[:-1][places], lengths)
        labels = None if self.labels is None else [self.labels[place] for place in places]
        names = [self.names[place] for place in places]
        flat = {"values": self.values[at], "times": self.times[at]}
        return self._replace(names=names, offsets=offsets_of(lengths), labels=labels, told={}, **flat)

    def latest(self, most: int) -> "SeriesSet":
        """The last steps of each series, `most` of them at most."""
        lengths = np.minimum(self.lengths, most)
        at = places_of(self.offsets[1:] - lengths, lengths)
        return self._replace(offsets=offsets_of(lengths), values=self.values[at], times=self.times[at])

    def of(self, place: int) -> Float[ndarray, "n channels"]:
        """The values of one series."""
        return self.values[self.offsets[place] : self.offsets[place + 1]]

    def times_of(self, place: int) -> Float[ndarray, "n"]:
        """The times of one series."""
        return self.times[self.offsets[place] : self.offsets[place + 1]]


def cleaned(values: ndarray) -> Float[ndarray, "..."]:
    """Values as float32, NaN where they are not finite or too large for sums of their squares."""
    numbers = np.asarray(values, np.float64)
    return np.where(np.abs(numbers) <= LARGEST_NUMBER, numbers, np.nan).astype(np.float32)


def from_arrays(
    arrays: Sequence[Float[ndarray, "_ channels"]],
    channels: Sequence[str],
    names: Sequence[str] | None = None,
    labels: Sequence[str | None] | None = None,
) -> SeriesSet:
    """A set of series without times. Steps at the end of a series without any value are left out."""
    trimmed = [_trimmed(cleaned(array)) for array in arrays]
    lengths = [len(array) for array in trimmed]
    known = None if labels is None or all(label is None for label in labels) else list(labels)
    return SeriesSet(
        list(names) if names is not None else [f"series {at}" for at in range(1, len(arrays) + 1)],
        offsets_of(lengths),
        np.concatenate(trimmed) if trimmed else np.zeros((0, len(channels)), np.float32),
        np.concatenate([np.arange(length, dtype=np.float64) for length in lengths]) if lengths else np.zeros(0),
        tuple(channels),
        known,
    )


def _trimmed(values: Float[ndarray, "n channels"]) -> Float[ndarray, "m channels"]:
    known = np.flatnonzero(~np.isnan(values).all(1))
    return values[: known[-1] + 1] if len(known) else values[:0]


def channel_names(count: int) -> list[str]:
    """Names of channels that have none."""
    return ["value"] if count == 1 else [f"channel {at}" for at in range(1, count + 1)]


def joined(parts: Sequence[SeriesSet]) -> SeriesSet:
    """The series of several files, which have the same channels."""
    labels: list[str | None] = []
    for part in parts:
        labels += part.labels if part.labels is not None else [None] * len(part.names)
    return parts[0]._replace(
        names=[name for part in parts for name in part.names],
        offsets=offsets_of(np.concatenate([part.lengths for part in parts])),
        values=np.concatenate([part.values for part in parts]),
        times=np.concatenate([part.times for part in parts]),
        labels=labels if any(label is not None for label in labels) else None,
        said=tuple(dict.fromkeys(sentence for part in parts for sentence in part.said)),
        complaints=tuple(sentence for part in parts for sentence in part.complaints),
    )
