"""Sequences of events: times and types one after the other, sequence by sequence, each in the order of time."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from subquad.data.ragged import first_places, offsets_of, places_of


class EventSequences(NamedTuple):
    """Events of sequence s are those from offsets[s] up to offsets[s + 1]. Types are numbers of names."""

    names: list[str]
    offsets: Int[ndarray, "sequences+1"]
    times: Float[ndarray, "events"]  # float64, in the data's unit, as the data have them
    types: Int[ndarray, "events"]
    type_names: list[str]
    starts: Float[ndarray, "sequences"]  # from when on a sequence was watched: its first event's time where unknown
    ends: Float[ndarray, "sequences"]  # until when: its last event's time where unknown
    complaints: tuple[str, ...] = ()  # a sentence about each kind of row that was left out or mended

    @property
    def lengths(self) -> Int[ndarray, "sequences"]:
        """How many events each sequence has."""
        return np.diff(self.offsets)

    @property
    def first(self) -> Bool[ndarray, "events"]:
        """Which events are the first of their sequence."""
        return first_places(self.offsets)

    @property
    def gaps(self) -> Float[ndarray, "events"]:
        """From the event before to each; of a first one, from the start of its sequence."""
        found = np.diff(self.times, prepend=0.0)
        present = self.lengths > 0
        at = self.offsets[:-1][present]
        found[at] = self.times[at] - self.starts[present]
        return found

    def select(self, which: Int[ndarray, "some"]) -> "EventSequences":
        """These sequences, in this order."""
        lengths = self.lengths[which]
        events = places_of(self.offsets[:-1][which], lengths)
        return self._replace(
            names=[self.names[at] for at in which],
            offsets=offsets_of(lengths),
            times=self.times[events],
            types=self.types[events],
            starts=self.starts[which],
            ends=self.ends[which],
        )
