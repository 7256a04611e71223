"""Sequences of events: times and types, concatenated sequence by sequence, each in the order of time."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from subquad.data.column_values import ColumnValues
from subquad.data.columns import Column
from subquad.data.ragged import first_places, offsets_of, places_of


class EventSequences(NamedTuple):
    """Events of sequence s are those from offsets[s] up to offsets[s + 1]. Types are indices into `type_names`."""

    names: list[str]
    offsets: Int[ndarray, "edges"]
    times: Float[ndarray, "events"]  # float64, in the data's unit and with the data's origin
    types: Int[ndarray, "events"]
    type_names: list[str]
    starts: Float[ndarray, "sequences"]  # start of the observation of each sequence; the time of its first event if unknown
    ends: Float[ndarray, "sequences"]  # end of the observation of each sequence; the time of its last event if unknown
    complaints: tuple[str, ...] = ()  # a sentence about each kind of row that was left out or mended
    columns: tuple[ColumnValues, ...] = ()  # further columns of the events
    unused: tuple[Column, ...] = ()  # further columns that are not used, with the reason
    dated: bool = False  # whether times are dates, in seconds since 1970
    time_form: str = "auto"  # how times are written, by a name in times.WRITTEN; "auto" if that does not matter

    @property
    def lengths(self) -> Int[ndarray, "sequences"]:
        """Number of events of each sequence."""
        return np.diff(self.offsets)

    @property
    def first(self) -> Bool[ndarray, "events"]:
        """Mask of the events that are the first of their sequence."""
        return first_places(self.offsets)

    @property
    def gaps(self) -> Float[ndarray, "events"]:
        """Time from the previous event to each event; for a first event, from the start of its sequence."""
        gaps = np.diff(self.times, prepend=0.0)
        present = self.lengths > 0
        at = self.offsets[:-1][present]
        gaps[at] = self.times[at] - self.starts[present]
        return gaps

    def select(self, chosen: Int[ndarray, "some"]) -> "EventSequences":
        """The chosen sequences, in the given order."""
        lengths = self.lengths[chosen]
        events = places_of(self.offsets[:-1][chosen], lengths)
        return self._replace(
            names=[self.names[at] for at in chosen],
            offsets=offsets_of(lengths),
            times=self.times[events],
            types=self.types[events],
            starts=self.starts[chosen],
            ends=self.ends[chosen],
            columns=tuple(column.take(events) for column in self.columns),
        )
