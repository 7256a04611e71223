"""Batches of event sequences, and pieces of them along time."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data import ragged
from subquad.tasks.events.columns import EventColumns
from subquad.tasks.events.returns import Return, due_after


class EventBatch(NamedTuple):
    """Padded events in the model's unit of time. Padding comes after the events, so causal models never see it."""

    times: Float[Tensor, "b n"]  # since the start of the sequence, float64
    gaps: Float[Tensor, "b n"]  # since the previous event, float32; below 0 for a first event
    types: Int[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]
    due: Float[Tensor, "b n c"]  # time until each of c returns is due after the event, float32
    columns: Float[Tensor, "b n f"]  # fields of further columns, float32


class Encoded(NamedTuple):
    """Events of all sequences, concatenated, in the model's unit of time."""

    offsets: Int[ndarray, "edges"]
    times: Float[ndarray, "events"]
    gaps: Float[ndarray, "events"]
    types: Int[ndarray, "events"]
    returns: tuple[Return, ...] = ()  # types that come again after a fixed time
    columns: EventColumns = EventColumns()  # further columns

    def pad(self, chosen: Int[ndarray, "b"]) -> EventBatch:
        """The chosen sequences as a padded batch."""
        times, gaps, types = (
            ragged.pad(ragged.slices(torch.from_numpy(values), self.offsets, chosen))
            for values in (self.times, self.gaps, self.types)
        )
        lengths = np.diff(self.offsets)[chosen]
        fields = self.columns.encode(ragged.places_of(self.offsets[:-1][chosen], lengths))
        columns = ragged.pad(fields.split(lengths.tolist()))
        due = due_after(self.returns, times, types).due
        return EventBatch(times, gaps.float(), types, ragged.keep_of(lengths), due, columns)


class Piece(NamedTuple):
    """Some events of each sequence, and the event that follows each of them."""

    given: EventBatch
    following: EventBatch

    @property
    def counted(self) -> Bool[Tensor, "b n"]:
        """Mask of the following events that are real, whose likelihood counts."""
        return self.following.keep


def pieces(batch: EventBatch, chunk: int) -> Iterator[Piece]:
    """Yields all events but the last of each sequence, with the events that follow, in chunks; `chunk` 0 means one chunk."""
    n = batch.keep.shape[1] - 1
    for start in range(0, n, chunk or max(n, 1)):
        end = min(n, start + chunk) if chunk else n
        given, following = (EventBatch(*(part[:, start + shift : end + shift] for part in batch)) for shift in (0, 1))
        yield Piece(given, following)


def count_pieces(batch: EventBatch, chunk: int) -> int:
    """Number of pieces that `pieces` yields."""
    n = batch.keep.shape[1] - 1
    return -(-n // chunk) if chunk else min(n, 1)
