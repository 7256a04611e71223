"""Labelled sequences that are stored, read or drawn one at a time, and batches of them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from subquad.data.buckets import Buckets
from subquad.data.ragged import keep_of, pad
from subquad.data.splits import SplitName

PAD, CLASS, FIRST = 0, 1, 2
"""Tokens for padding and for the position whose vector is classified, and the first token of a task."""


class Example(NamedTuple):
    """A sequence of tokens counted from 0, without those that all tasks have, and its class index."""

    tokens: Int[ndarray, "n"]
    label: int
    second: Int[ndarray, "m"] | None = None
    """The second sequence of a pair; None for single sequences."""

    @property
    def positions(self) -> int:
        """Number of positions of the longer sequence of a pair, or of the only one."""
        return max(len(self.tokens), 0 if self.second is None else len(self.second))


class SequenceBatch(NamedTuple):
    """Padded tokens and masks that are false at padding, for sequences and second sequences, and class indices.

    Second sequences have no positions if the task has single sequences.
    """

    tokens: Int[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]
    second: Int[Tensor, "b m"]
    second_keep: Bool[Tensor, "b m"]
    label: Int[Tensor, "b"]


class Source:
    """Some labelled sequences, each of which is made when it is asked for."""

    def __init__(self, count: int, make: Callable[[int], Example], lengths: Int[ndarray, "count"] | None = None) -> None:
        """`lengths` are given if they are known without making the sequences; batches then have similar ones."""
        self.count, self.make, self.lengths = count, make, lengths

    def at(self, places: Sequence[int] | Int[ndarray, "some"]) -> list[Example]:
        """The sequences at these places."""
        return [self.make(int(place)) for place in places]

    def first(self, most: int) -> list[Example]:
        """The first sequences, at most so many."""
        return self.at(range(min(most, self.count)))

    def draw(self, size: int, generator: torch.Generator) -> list[Example]:
        """Draws sequences at random, of similar length where lengths are known."""
        if self.lengths is not None:
            return self.at(self._buckets.draw(size, generator))
        return self.at(torch.randint(self.count, (size,), generator=generator).tolist())

    @cached_property
    def _buckets(self) -> Buckets:
        assert self.lengths is not None
        return Buckets(np.arange(self.count), self.lengths)


def stored(tokens: Sequence[ndarray], labels: Sequence[int], seconds: Sequence[ndarray] = ()) -> Source:
    """A source of sequences that are in memory."""

    def make(place: int) -> Example:
        return Example(tokens[place], int(labels[place]), seconds[place] if seconds else None)

    longer = [max(map(len, pair)) for pair in zip(tokens, seconds, strict=True)] if seconds else list(map(len, tokens))
    return Source(len(tokens), make, np.array(longer, np.int64))


class Loaded(NamedTuple):
    """The sequences of each split, the names of the classes, and sentences about what was left out."""

    splits: dict[SplitName, Source]
    labels: list[str]
    longest: int
    """Largest number of positions of a sequence, without the class token."""
    complaints: tuple[str, ...] = ()


def collate(examples: Sequence[Example], *, class_token: bool) -> SequenceBatch:
    """Pads sequences to a batch, with the class token in front of each if `class_token`."""
    tokens, keep = _padded([example.tokens for example in examples], class_token=class_token)
    seconds = [example.second for example in examples if example.second is not None]
    if seconds:
        second, second_keep = _padded(seconds, class_token=class_token)
    else:
        second, second_keep = tokens[:, :0], keep[:, :0]
    return SequenceBatch(tokens, keep, second, second_keep, torch.tensor([example.label for example in examples]))


def _padded(sequences: Sequence[ndarray], *, class_token: bool) -> tuple[Tensor, Tensor]:
    front = [CLASS] * class_token
    rows = [
        torch.from_numpy(np.concatenate([front, tokens.astype(np.int64) + FIRST]).astype(np.int64)) for tokens in sequences
    ]
    return pad(rows, PAD), keep_of([len(row) for row in rows])
