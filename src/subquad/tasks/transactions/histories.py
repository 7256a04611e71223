"""Clients' histories: events concatenated client by client, each client's in the order of time."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.ragged import offsets_of, places_of

UNLABELLED = -1
OPTIONAL = ("code", "type", "amount")  # fields that an event may lack


class Histories(NamedTuple):
    """Events of client c are those from offsets[c] up to offsets[c + 1]. Codes and types are indices into their names."""

    clients: list[str]
    offsets: Int[ndarray, "edges"]
    codes: Int[ndarray, "events"]
    code_names: list[str]
    types: Int[ndarray, "events"]
    type_names: list[str]
    amounts: Float[ndarray, "events"]
    times: Float[ndarray, "events"]  # in seconds, with the data's origin
    labels: Int[ndarray, "clients"]  # 0, 1, or -1 for a client without a label
    label_names: tuple[str, str] | None
    fields: tuple[str, ...] = OPTIONAL  # which of the optional fields the data have
    complaints: tuple[str, ...] = ()  # a sentence about each kind of row that was left out

    @property
    def lengths(self) -> Int[ndarray, "clients"]:
        """Number of events of each client."""
        return np.diff(self.offsets)

    def select(self, chosen: Int[ndarray, "chosen"]) -> "Histories":
        """The chosen clients, in the given order."""
        return self._parts(chosen, self.offsets[:-1][chosen], self.lengths[chosen])

    def latest(self, longest: int) -> "Histories":
        """Keeps at most the last `longest` events of each client."""
        lengths = np.minimum(self.lengths, longest)
        if (lengths == self.lengths).all():
            return self
        return self._parts(np.arange(len(lengths)), self.offsets[1:] - lengths, lengths)

    def _parts(self, chosen: ndarray, starts: ndarray, lengths: ndarray) -> "Histories":
        events = places_of(starts, lengths)
        return self._replace(
            clients=[self.clients[at] for at in chosen],
            offsets=offsets_of(lengths),
            codes=self.codes[events],
            types=self.types[events],
            amounts=self.amounts[events],
            times=self.times[events],
            labels=self.labels[chosen],
        )
