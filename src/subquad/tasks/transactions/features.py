"""Vocabularies and scales, learned from the training clients and stored in the run as JSON."""

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import Checked, Count, Positive, Whole, Words, read
from subquad.data.column_values import hashed
from subquad.data.ragged import first_places
from subquad.data.times import DAY
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.columns.features import (
    BINS,
    MANY,
    MOST_KEPT,
    ColumnFeatures,
    as_json,
    encode_columns,
    layout_of,
    learn_columns,
    read_features,
    require_columns,
)
from subquad.tasks.targets.kinds import Classes, learn_target, target_from
from subquad.tasks.targets.target import Target
from subquad.tasks.transactions.histories import Histories

Amounts = Literal["quantile", "log"]
UNKNOWN = 0
WEEKDAYS = 7
IDS = ("code", "type", "amount bin", "weekday")
NUMBERS = ("log amount", "sine of the time of day", "cosine of it", "log gap", "time since the first event")
FARTHEST = 4.0  # largest distance, in scales, of the time since the first event from its mean
FIELDS = (*IDS, *NUMBERS)


class Layout(NamedTuple):
    """Where fields are in an encoded event: those of `FIELDS`, symbols of further columns, numbers of further columns."""

    sizes: tuple[int, ...]
    """Number of symbols of each field of `IDS`, then of each further column."""
    widths: tuple[int, ...] = ()
    """Number of symbols of a cell, for each further column."""
    numbers: int = 0
    """Number of further columns that have a number too."""

    @property
    def width(self) -> int:
        """Number of fields of an encoded event."""
        return len(FIELDS) + sum(self.widths) + self.numbers


@dataclass(frozen=True)
class Features(Checked):
    """Converts events to numbers, in the same way for all clients."""

    codes: tuple[str, ...]  # number 0 stands for any other code
    types: tuple[str, ...]
    amounts: Amounts
    edges: tuple[float, ...]  # edges between bins of amounts
    amount_mean: float  # mean of sign(amount) log(1 + |amount|)
    amount_scale: Positive
    gap_mean: float  # mean of log(1 + seconds since the previous event)
    gap_scale: Positive
    age_mean: float  # mean of the seconds since the client's first event
    age_scale: Positive
    fields: tuple[str, ...]  # which of code, type and amount the data have
    labels: tuple[str, ...]
    clients: Count = 1  # number of clients in all data, to notice changes
    events: Count = 1
    buckets: Whole = 0  # number of symbols that codes and types without a symbol of their own share
    time_form: Words = ""  # how times are written; empty for runs of earlier versions
    amount_form: Words = ""  # how amounts are written; empty for runs of earlier versions
    further: tuple[dict[str, Any], ...] = ()  # features of further columns of events
    static: tuple[dict[str, Any], ...] = ()  # features of columns of clients
    unused: tuple[tuple[str, str], ...] = ()  # names of columns that are not used, with the reason
    summary: tuple[dict[str, Any], ...] = ()  # what each column holds, for people
    target: dict[str, Any] = dataclasses.field(default_factory=dict)  # what is predicted; empty for two classes
    wide: dict[str, Any] = dataclasses.field(default_factory=dict)  # branch of aggregates; empty for none

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Features":
        """Reads the values that `as_json` returned."""
        return read(cls, kept, f"{place_of(kept)}: learned")

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of symbols of each field of `IDS`, including the unknown symbol, and of each further column."""
        shared = self.buckets
        own = (len(self.codes) + 1 + shared, len(self.types) + 1 + shared, len(self.edges) + 2, WEEKDAYS)
        return (*own, *(column.symbols for column in self.further_columns))

    @cached_property
    def further_columns(self) -> tuple[ColumnFeatures, ...]:
        """Features of further columns of events."""
        return tuple(read_features(values, f"learned: further: {at}") for at, values in enumerate(self.further))

    @cached_property
    def static_columns(self) -> tuple[ColumnFeatures, ...]:
        """Features of the columns of clients."""
        return tuple(read_features(values, f"learned: static: {at}") for at, values in enumerate(self.static))

    @cached_property
    def predicted(self) -> Target:
        """What is predicted of a client."""
        return target_from(self.target, "learned: target") if self.target else Classes(self.labels)

    @property
    def layout(self) -> Layout:
        """Where the symbols and numbers of each field are in an encoded event."""
        further = layout_of(self.further_columns)
        return Layout(self.sizes, further.widths, further.numbers)

    def require_fields(self, histories: Histories) -> None:
        """Raises `SubquadError` if events lack a field that the model was trained with."""
        for field in self.fields:
            if field not in histories.fields:
                raise SubquadError(
                    f"the model was trained with each event's {field}, but the data have none: add the column"
                )
        require_columns(self.further_columns, histories.columns)
        require_columns(self.static_columns, histories.static, ", or give --data a folder with events.csv and clients.csv")

    def encode(self, histories: Histories) -> Float[ndarray, "events fields"]:
        """Every event as numbers: the fields of `FIELDS`, symbols of further columns, then numbers of further columns.

        Numbers of symbols are exact in float32.
        """
        encoded = np.zeros((len(histories.times), self.layout.width), np.float32)
        encoded[:, 0] = self._symbols(self.codes, histories.code_names)[histories.codes]
        encoded[:, 1] = self._symbols(self.types, histories.type_names)[histories.types]
        if self.amounts == "quantile":
            bins = np.searchsorted(np.array(self.edges), histories.amounts, side="right") + 1
            encoded[:, 2] = np.where(np.isnan(histories.amounts), UNKNOWN, bins)
        else:
            encoded[:, 4] = np.nan_to_num((signed_log(histories.amounts) - self.amount_mean) / self.amount_scale)
        encoded[:, 3] = np.floor(histories.times / DAY) % WEEKDAYS
        angle = histories.times % DAY * (2.0 * np.pi / DAY)
        encoded[:, 5], encoded[:, 6] = np.sin(angle), np.cos(angle)
        encoded[:, 7] = (log_gaps(histories) - self.gap_mean) / self.gap_scale
        age = (ages(histories) - self.age_mean) / self.age_scale
        encoded[:, 8] = age.clip(-FARTHEST, FARTHEST)
        encoded[:, len(FIELDS) :] = encode_columns(self.further_columns, histories.columns, len(encoded), histories.times)
        return encoded

    @cached_property
    def _lookups(self) -> dict[int, tuple[list[str], ndarray]]:
        """The symbols of names by the identity of the list of names, which is the same for all parts of some data."""
        return {}

    def _symbols(self, vocabulary: tuple[str, ...], names: list[str]) -> Int[ndarray, "names"]:
        if id(names) not in self._lookups:
            self._lookups[id(names)] = names, _lookup(vocabulary, names, self.buckets)
        return self._lookups[id(names)][1]


def learn(training: Histories, amounts: Amounts, everybody: Histories, *, rare: int = 5, buckets: int = 64) -> Features:
    """Learns vocabularies and scales from the training clients. Of `everybody`, only the size is stored.

    Values of columns with many different ones share `buckets` symbols if fewer than `rare` clients have them.
    """
    assert training.label_names is not None
    known = training.amounts[~np.isnan(training.amounts)] if not np.isnan(training.amounts).all() else np.zeros(1)
    logs, gaps, age = signed_log(known), log_gaps(training), ages(training)
    quantiles = np.quantile(known, np.arange(1, BINS) / BINS)
    client = np.repeat(np.arange(len(training.clients)), training.lengths)
    codes, more_codes = _present(training.codes, training.code_names, client, rare)
    types, more_types = _present(training.types, training.type_names, client, rare)
    further, unused = learn_columns(training.columns, client, training.times, rare=rare, buckets=buckets)
    everybody_once = np.arange(len(training.clients))
    static, unused_static = learn_columns(training.static, everybody_once, None, rare=rare, buckets=buckets)
    unused = [*training.unused, *unused, *unused_static]
    return Features(
        codes=codes,
        types=types,
        amounts=amounts,
        edges=tuple(np.unique(quantiles).tolist()) if amounts == "quantile" else (),
        amount_mean=float(logs.mean()),
        amount_scale=float(logs.std()) or 1.0,
        gap_mean=float(gaps.mean()),
        gap_scale=float(gaps.std()) or 1.0,
        age_mean=float(age.mean()),
        age_scale=float(age.std()) or 1.0,
        fields=training.fields,
        labels=training.label_names if training.target_kind == "classes" else (),
        clients=len(everybody.clients),
        events=len(everybody.times),
        buckets=buckets if more_codes or more_types else 0,
        time_form=everybody.time_form,
        amount_form=everybody.amount_form,
        further=tuple(as_json(column) for column in further),
        static=tuple(as_json(column) for column in static),
        unused=tuple((column.name, column.why) for column in unused),
        target=_target(training),
    )


def _target(training: Histories) -> dict[str, Any]:
    """The target as JSON; empty for two classes, whose names are `labels`."""
    assert training.label_names is not None
    names = training.label_names
    if training.target_kind == "classes" and len(names) == 2:
        return {}
    learned = asdict(learn_target(training.target_kind, names, training.targets))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in learned.items()}


def signed_log(amounts: Float[ndarray, "events"]) -> Float[ndarray, "events"]:
    """Returns sign(amount) log(1 + |amount|)."""
    return np.sign(amounts) * np.log1p(np.abs(amounts))


def log_gaps(histories: Histories) -> Float[ndarray, "events"]:
    """Returns log(1 + seconds since the client's previous event), 0 for the first event."""
    gaps = np.diff(histories.times, prepend=histories.times[:1])
    gaps[first_places(histories.offsets)] = 0.0
    return np.log1p(gaps)


def ages(histories: Histories) -> Float[ndarray, "events"]:
    """Seconds since the client's first event, which tell the position in the history."""
    return histories.times - np.repeat(histories.times[histories.offsets[:-1]], histories.lengths)


def _present(
    numbers: Int[ndarray, "events"], names: list[str], client: Int[ndarray, "events"], rare: int
) -> tuple[tuple[str, ...], bool]:
    """Names with symbols of their own, and whether there are others: of many names, those that few clients have."""
    present = np.unique(numbers)
    if len(present) <= MANY:
        return tuple(sorted(names[at] for at in present)), False
    pairs = np.unique(client * len(names) + numbers)
    counts = np.bincount(pairs % len(names), minlength=len(names))
    kept = present[counts[present] >= rare]
    kept = kept[np.argsort(-counts[kept], kind="stable")][:MOST_KEPT]
    return tuple(sorted(names[at] for at in kept)), True


def _lookup(vocabulary: tuple[str, ...], names: list[str], buckets: int) -> Int[ndarray, "names"]:
    known = {name: number for number, name in enumerate(vocabulary, start=UNKNOWN + 1)}
    first = len(vocabulary) + 1
    if buckets:
        return np.array([known.get(name, first + hashed(name, buckets)) for name in names])
    return np.array([known.get(name, UNKNOWN) for name in names])
