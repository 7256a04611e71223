"""Clients' histories: events concatenated client by client, each client's in the order of time."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.column_values import ColumnValues
from subquad.data.columns import Column
from subquad.data.ragged import offsets_of, places_of

OPTIONAL = ("code", "type", "amount")  # fields that an event may lack


class Histories(NamedTuple):
    """Events of client c are those from offsets[c] up to offsets[c + 1]. Codes and types are indices into their names."""

    clients: list[str]
    offsets: Int[ndarray, "edges"]
    codes: Int[ndarray, "events"]
    code_names: list[str]
    types: Int[ndarray, "events"]
    type_names: list[str]
    amounts: Float[ndarray, "events"]  # NaN where there is none
    times: Float[ndarray, "events"]  # in seconds, with the data's origin
    labels: Int[ndarray, "clients"]  # number of the class, 0 where a target is known that is no class, -1 without any
    label_names: tuple[str, ...] | None  # names of the classes, or of several labels
    fields: tuple[str, ...] = OPTIONAL  # which of the optional fields the data have
    complaints: tuple[str, ...] = ()  # a sentence about each kind of row that was left out
    columns: tuple[ColumnValues, ...] = ()  # further columns of the events
    static: tuple[ColumnValues, ...] = ()  # columns of the clients
    unused: tuple[Column, ...] = ()  # columns that are not used, with the reason
    target_kind: str = "classes"
    truth: Float[ndarray, "clients k"] | None = None  # what is predicted of each client, if it is no class
    time_form: str = ""  # how times are written, by a name in times.WRITTEN; empty if that does not matter
    amount_form: str = ""  # how amounts are written, by a name in columns.NUMBERS; empty if that does not matter

    @property
    def lengths(self) -> Int[ndarray, "clients"]:
        """Number of events of each client."""
        return np.diff(self.offsets)

    @property
    def targets(self) -> Float[ndarray, "clients k"]:
        """What is predicted of each client: the number of its class, or other numbers."""
        return self.labels[:, None].astype(float) if self.truth is None else self.truth

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
            columns=tuple(column.take(events) for column in self.columns),
            static=tuple(column.take(chosen) for column in self.static),
            truth=None if self.truth is None else self.truth[chosen],
        )
