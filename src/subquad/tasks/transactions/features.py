"""Vocabularies and scales, learned from the training clients and stored in the run as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import Checked, Count, Positive, read
from subquad.data.ragged import first_places
from subquad.data.times import DAY
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.transactions.histories import Histories

Amounts = Literal["quantile", "log"]
UNKNOWN = 0
WEEKDAYS = 7
BINS = 32
IDS = ("code", "type", "amount bin", "weekday")
NUMBERS = ("log amount", "sine of the time of day", "cosine of it", "log gap", "time since the first event")
FARTHEST = 4.0  # largest distance, in scales, of the time since the first event from its mean
FIELDS = (*IDS, *NUMBERS)


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
    labels: tuple[str, str]
    clients: Count = 1  # number of clients in all data, to notice changes
    events: Count = 1

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Features":
        """Reads the values that `as_json` returned."""
        return read(cls, kept, f"{place_of(kept)}: learned")

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of symbols of each field of `IDS`, including the unknown symbol."""
        return len(self.codes) + 1, len(self.types) + 1, len(self.edges) + 2, WEEKDAYS

    def require_fields(self, histories: Histories) -> None:
        """Raises `SubquadError` if events lack a field that the model was trained with."""
        for field in self.fields:
            if field not in histories.fields:
                raise SubquadError(
                    f"the model was trained with each event's {field}, but the data have none: add the column"
                )

    def encode(self, histories: Histories) -> Float[ndarray, "events fields"]:
        """Every event as numbers, in the order of `FIELDS`. Numbers of symbols are exact in float32."""
        encoded = np.zeros((len(histories.times), len(FIELDS)), np.float32)
        encoded[:, 0] = _lookup(self.codes, histories.code_names)[histories.codes]
        encoded[:, 1] = _lookup(self.types, histories.type_names)[histories.types]
        if self.amounts == "quantile":
            encoded[:, 2] = np.searchsorted(np.array(self.edges), histories.amounts, side="right") + 1
        else:
            encoded[:, 4] = (signed_log(histories.amounts) - self.amount_mean) / self.amount_scale
        encoded[:, 3] = np.floor(histories.times / DAY) % WEEKDAYS
        angle = histories.times % DAY * (2.0 * np.pi / DAY)
        encoded[:, 5], encoded[:, 6] = np.sin(angle), np.cos(angle)
        encoded[:, 7] = (log_gaps(histories) - self.gap_mean) / self.gap_scale
        age = (ages(histories) - self.age_mean) / self.age_scale
        encoded[:, 8] = age.clip(-FARTHEST, FARTHEST)
        return encoded


def learn(training: Histories, amounts: Amounts, everybody: Histories) -> Features:
    """Learns vocabularies and scales from the training clients. Of `everybody`, only the size is stored."""
    assert training.label_names is not None
    logs, gaps, age = signed_log(training.amounts), log_gaps(training), ages(training)
    quantiles = np.quantile(training.amounts, np.arange(1, BINS) / BINS)
    return Features(
        codes=_present(training.codes, training.code_names),
        types=_present(training.types, training.type_names),
        amounts=amounts,
        edges=tuple(np.unique(quantiles).tolist()) if amounts == "quantile" else (),
        amount_mean=float(logs.mean()),
        amount_scale=float(logs.std()) or 1.0,
        gap_mean=float(gaps.mean()),
        gap_scale=float(gaps.std()) or 1.0,
        age_mean=float(age.mean()),
        age_scale=float(age.std()) or 1.0,
        fields=training.fields,
        labels=training.label_names,
        clients=len(everybody.clients),
        events=len(everybody.times),
    )


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


def _present(numbers: Int[ndarray, "events"], names: list[str]) -> tuple[str, ...]:
    return tuple(sorted(names[at] for at in np.unique(numbers)))


def _lookup(vocabulary: tuple[str, ...], names: list[str]) -> Int[ndarray, "names"]:
    known = {name: number for number, name in enumerate(vocabulary, start=UNKNOWN + 1)}
    return np.array([known.get(name, UNKNOWN) for name in names])
