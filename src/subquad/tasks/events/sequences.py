"""Sequences of events: times and types one after the other, sequence by sequence, each in the order of time."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray


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

    def select(self, which: Int[ndarray, "some"]) -> "EventSequences":
        """These sequences, in this order."""
        lengths = self.lengths[which]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        events = np.repeat(self.offsets[:-1][which] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._replace(
            names=[self.names[at] for at in which],
            offsets=offsets,
            times=self.times[events],
            types=self.types[events],
            starts=self.starts[which],
            ends=self.ends[which],
        )
