"""Clients' histories: events one after the other, client by client, each client's in the order of time."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.ragged import offsets_of, places_of

UNLABELLED = -1
OPTIONAL = ("code", "type", "amount")  # what an event may go without


class Histories(NamedTuple):
    """Events of client c are those from offsets[c] up to offsets[c + 1]. Codes and types are numbers of names."""

    clients: list[str]
    offsets: Int[ndarray, "clients+1"]
    codes: Int[ndarray, "events"]
    code_names: list[str]
    types: Int[ndarray, "events"]
    type_names: list[str]
    amounts: Float[ndarray, "events"]
    times: Float[ndarray, "events"]  # in seconds, from whenever the data count
    labels: Int[ndarray, "clients"]  # 0, 1, or -1 where there is none
    label_names: tuple[str, str] | None
    fields: tuple[str, ...] = OPTIONAL  # which of them the data have
    complaints: tuple[str, ...] = ()  # a sentence about each kind of row that was left out

    @property
    def lengths(self) -> Int[ndarray, "clients"]:
        """How many events each client has."""
        return np.diff(self.offsets)

    def select(self, which: Int[ndarray, "some"]) -> "Histories":
        """These clients, in this order."""
        return self._parts(which, self.offsets[:-1][which], self.lengths[which])

    def latest(self, longest: int) -> "Histories":
        """No more than so many events of each client: the last ones."""
        kept = np.minimum(self.lengths, longest)
        return self if (kept == self.lengths).all() else self._parts(np.arange(len(kept)), self.offsets[1:] - kept, kept)

    def _parts(self, which: ndarray, starts: ndarray, lengths: ndarray) -> "Histories":
        events = places_of(starts, lengths)
        return self._replace(
            clients=[self.clients[at] for at in which],
            offsets=offsets_of(lengths),
            codes=self.codes[events],
            types=self.types[events],
            amounts=self.amounts[events],
            times=self.times[events],
            labels=self.labels[which],
        )
