"""Further columns of events: what is learned about them, and how they are encoded, hidden and embedded.

A row of fields begins with a mark that is 1 where the columns of an event are hidden, as those of events in the future are.
The fields of `encode_columns` follow. A model without further columns has rows of no fields.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.data.column_values import ColumnReader, ColumnValues
from subquad.tasks.columns.embedding import embed_columns
from subquad.tasks.columns.features import (
    ColumnFeatures,
    ColumnLayout,
    as_json,
    encode_columns,
    layout_of,
    learn_columns,
    require_columns,
)
from subquad.tasks.columns.reading import is_constant
from subquad.tasks.columns.summary import column_entry, entry, used_columns
from subquad.tasks.events.sequences import EventSequences

HIDDEN_SHARE = 0.2
"""Share of the training sequences whose columns are hidden after a random event, as they are in continuations."""

SMALL = 0.1
"""Standard deviation of initial vectors of symbols and numbers; those of types have 1."""


def learn_further(training: EventSequences, *, rare: int, buckets: int) -> dict[str, Any]:
    """Learns the features of further columns, as fields of `Scales`. Rare values share `buckets` vectors."""
    if not training.columns and not training.unused:
        return {}
    sequence = np.repeat(np.arange(len(training.names)), training.lengths)
    features, unused = learn_columns(training.columns, sequence, _origin(training), rare=rare, buckets=buckets)
    used = used_columns(training.columns, features)
    carried = [
        column.column.name
        for column in used
        if column.column.kind != "time" and is_constant(column, training.offsets[:-1], training.lengths)
    ]
    reasons = [(column.name, column.why) for column in (*training.unused, *unused)]
    kinds = ((column, "sequence" if column.column.name in carried else "event") for column in used)
    lengths = np.quantile(training.lengths, (0.0, 0.5, 1.0))
    note = f"{lengths[0]:.0f} to {lengths[2]:.0f} events each, {lengths[1]:.0f} in the middle"
    return {
        "further": tuple(as_json(column) for column in features),
        "carried": tuple(carried),
        "unused": tuple(reasons),
        "summary": (
            entry("training sequences", "overview", "", len(training.names), note=note),
            entry("type", "event", "category", len(np.unique(training.types))),
            *(column_entry(column, where) for column, where in kinds),
            *(entry(name, "unused", "", 0, note=why) for name, why in reasons),
        ),
    }


def _origin(sequences: EventSequences) -> Float[ndarray, "events"] | None:
    """Times that those in further columns are counted from; None if events have no dates."""
    return sequences.times if sequences.dated else None


class EventColumns(NamedTuple):
    """Further columns of the events of some sequences, encoded when they are asked for."""

    features: tuple[ColumnFeatures, ...] = ()
    values: tuple[ColumnValues, ...] = ()
    times: Float[ndarray, "events"] | None = None  # times that those in columns are counted from

    @classmethod
    def of(cls, features: tuple[ColumnFeatures, ...], sequences: EventSequences, *, dated: bool) -> "EventColumns":
        """Further columns of sequences. Raises `SubquadError` if they lack a column that has features."""
        require_columns(features, sequences.columns)
        return cls(features, tuple(used_columns(sequences.columns, features)), sequences.times if dated else None)

    def encode(self, events: Int[ndarray, "some"]) -> Float[Tensor, "some f"]:
        """Fields of the chosen events."""
        if not self.features:
            return torch.zeros(len(events), 0)
        values = [column.take(events) for column in self.values]
        times = None if self.times is None else self.times[events]
        fields = encode_columns(self.features, values, len(events), times)
        return torch.from_numpy(np.concatenate([np.zeros((len(events), 1), np.float32), fields], axis=1))


def encode_cells(features: tuple[ColumnFeatures, ...], cells: Mapping[str, str], time: float | None) -> Float[Tensor, "1 f"]:
    """Fields of one event whose cells are texts by the name of the column; a column that is not there is missing."""
    readers = [ColumnReader(column.column) for column in features]
    values = []
    for column, reader in zip(features, readers, strict=True):
        reader.keep(reader.read([cells.get(column.name, "")]))
        values.append(reader.finished())
    return EventColumns(features, tuple(values), None if time is None else np.array([time])).encode(np.zeros(1, np.int64))


def carried_fields(features: tuple[ColumnFeatures, ...], carried: tuple[str, ...]) -> Bool[Tensor, "f"]:
    """Marks the fields of columns that have one value in each sequence, which are known of events in the future, too."""
    if not features:
        return torch.zeros(0, dtype=torch.bool)
    symbols = [column.name in carried for column in features for _ in range(column.width)]
    numbers = [column.name in carried for column in features if column.is_numeric]
    return torch.tensor([False, *symbols, *numbers])


def hidden_after(fields: Float[Tensor, "... f"], carried: Bool[Tensor, "f"]) -> Float[Tensor, "... f"]:
    """Fields of events in the future of a sequence whose last event has the given fields."""
    if not len(carried):
        return fields
    hidden = torch.where(carried.to(fields.device), fields, 0.0)
    hidden[..., 0] = 1.0
    return hidden


def hide_some(
    fields: Float[Tensor, "b n f"], carried: Bool[Tensor, "f"], generator: torch.Generator
) -> Float[Tensor, "b n f"]:
    """Hides the fields of some sequences from a random event on, so that a model learns to continue without them."""
    if not len(carried):
        return fields
    b, n, _ = fields.shape
    start = (torch.rand(b, generator=generator) * n).long()
    start[torch.rand(b, generator=generator) > HIDDEN_SHARE] = n
    is_hidden = torch.arange(n) >= start[:, None]
    return torch.where(is_hidden[..., None], hidden_after(fields, carried), fields)


def column_numbers(layout: ColumnLayout, model_dim: int) -> int:
    """Number of parameters of `ColumnVectors`; 0 without columns."""
    return (sum(layout.sizes) + layout.numbers + 1) * model_dim if layout.sizes else 0


class ColumnVectors(nn.Module):
    """The sum of a vector for each symbol and a direction for each number, and of one for columns that are hidden."""

    def __init__(
        self, features: tuple[ColumnFeatures, ...], model_dim: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.layout = layout_of(features)

        def drawn(size: int) -> nn.Parameter:
            return nn.Parameter(SMALL * torch.randn(size, model_dim, generator=generator))

        self.vectors = nn.ParameterList(drawn(size) for size in self.layout.sizes)
        self.numbers = drawn(self.layout.numbers) if self.layout.numbers else None
        self.hidden = nn.Parameter(torch.zeros(model_dim))
        with torch.no_grad():
            for vectors in self.vectors:
                vectors[0] = 0.0  # stands for values that were not seen in training, which should add nothing

    def forward(self, fields: Float[Tensor, "b n f"]) -> Float[Tensor, "b n w"]:
        return fields[..., :1] * self.hidden + embed_columns(fields[..., 1:], self.layout.widths, self.vectors, self.numbers)
