"""Clients' histories: events one after the other, client by client, each client's in the order of time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

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
        offsets = offsets_of(lengths)
        events = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._replace(
            clients=[self.clients[at] for at in which],
            offsets=offsets,
            codes=self.codes[events],
            types=self.types[events],
            amounts=self.amounts[events],
            times=self.times[events],
            labels=self.labels[which],
        )


def offsets_of(lengths: Int[ndarray, "clients"]) -> Int[ndarray, "clients+1"]:
    """Where each client's events begin, and where the last one's end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


class Names:
    """Numbers for names, in the order in which they first come. Spaces around a name do not count."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.written: dict[str, int] = {}  # the same with the spaces

    def number(self, column: Sequence[str]) -> Int[ndarray, "rows"]:
        """The number of each name; new names get new ones."""
        for text in set(column).difference(self.written) and dict.fromkeys(column):
            self.written[text] = self.numbers.setdefault(text.strip(), len(self.numbers))
        return np.fromiter(map(self.written.__getitem__, column), np.int32, len(column))

    def ordered(self) -> list[str]:
        """Names by their numbers."""
        return list(self.numbers)


def first_events(offsets: Int[ndarray, "clients+1"]) -> Bool[ndarray, "events"]:
    """Which events are the first of their client."""
    first = np.zeros(offsets[-1], bool)
    first[offsets[:-1][np.diff(offsets) > 0]] = True
    return first
