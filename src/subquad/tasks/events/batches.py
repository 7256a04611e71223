"""Sequences of events side by side, and cut along time."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data import ragged


class EventBatch(NamedTuple):
    """Events with padding behind them, in the model's unit of time. Nothing looks at padding: what is behind is not seen."""

    times: Float[Tensor, "b n"]  # since the start, float64
    gaps: Float[Tensor, "b n"]  # since the event before, float32; below 0 for a first event
    types: Int[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]


class Encoded(NamedTuple):
    """Events of all sequences, one sequence after the other, in the model's unit of time."""

    offsets: Int[ndarray, "sequences+1"]
    times: Float[ndarray, "events"]
    gaps: Float[ndarray, "events"]
    types: Int[ndarray, "events"]

    def pad(self, which: Int[ndarray, "b"]) -> EventBatch:
        """Some sequences as a batch."""
        times, gaps, types = (
            ragged.pad(ragged.slices(torch.from_numpy(values), self.offsets, which))
            for values in (self.times, self.gaps, self.types)
        )
        return EventBatch(times, gaps.float(), types, ragged.keep_of(np.diff(self.offsets)[which]))


class Piece(NamedTuple):
    """Some events of each sequence, and the events that follow each of them."""

    given: EventBatch
    following: EventBatch

    @property
    def counted(self) -> Bool[Tensor, "b n"]:
        """Which of the following are real: those that a likelihood is of."""
        return self.following.keep


def pieces(batch: EventBatch, chunk: int) -> Iterator[Piece]:
    """All events but the last of each sequence, each with the next, in chunks; 0 for one."""
    n = batch.keep.shape[1] - 1
    for start in range(0, n, chunk or max(n, 1)):
        end = min(n, start + chunk) if chunk else n
        given, following = (EventBatch(*(part[:, start + shift : end + shift] for part in batch)) for shift in (0, 1))
        yield Piece(given, following)


def count_pieces(batch: EventBatch, chunk: int) -> int:
    """How many there are."""
    n = batch.keep.shape[1] - 1
    return -(-n // chunk) if chunk else min(n, 1)
