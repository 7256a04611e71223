"""Histories of about the same length together, so that little is padding."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

GROWTH = 1.1
"""The longest history of a bucket is at most so many times the shortest: less than a tenth is padding."""


class EventBatch(NamedTuple):
    """Events with padding behind them, which events are real, and the class of each client."""

    events: Float[Tensor, "b n f"]
    keep: Bool[Tensor, "b n"]
    label: Float[Tensor, "b"]


def pad(
    encoded: Float[ndarray, "events f"],
    offsets: Int[ndarray, "clients+1"],
    labels: Int[ndarray, "clients"],
    which: Int[ndarray, "b"],
) -> EventBatch:
    """Some clients' histories side by side."""
    lengths = np.diff(offsets)[which]
    events = np.zeros((len(which), lengths.max(), encoded.shape[1]), np.float32)
    for row, client in enumerate(which):
        events[row, : lengths[row]] = encoded[offsets[client] : offsets[client + 1]]
    keep = torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]
    return EventBatch(torch.from_numpy(events), keep, torch.from_numpy(labels[which]).float())


def bucket_edges(longest: int) -> Int[ndarray, "edges"]:
    """The shortest length of each bucket."""
    edges = [1]
    while edges[-1] <= longest:
        edges.append(int(edges[-1] * GROWTH) + 1)
    return np.array(edges)


class Buckets:
    """Clients by length."""

    def __init__(self, clients: Int[ndarray, "clients"], lengths: Int[ndarray, "clients"]) -> None:
        self.of = np.searchsorted(bucket_edges(int(lengths.max())), lengths, side="right")
        self.members = {bucket: clients[self.of == bucket] for bucket in np.unique(self.of).tolist()}

    def draw(self, size: int, generator: torch.Generator) -> Int[ndarray, "size"]:
        """Clients of one bucket, which is drawn in proportion to how many it has; each comes again only after all others."""
        at = int(torch.randint(len(self.of), (1,), generator=generator))
        members = self.members[int(self.of[at])]
        rounds = -(-size // len(members))
        order = torch.cat([torch.randperm(len(members), generator=generator) for _ in range(rounds)])
        return members[order[:size].numpy()]


def bounded(lengths: Int[ndarray, "clients"], tokens: int) -> Iterator[Int[ndarray, "b"]]:
    """All clients from the shortest to the longest, in batches of no more than so many positions, or of one client."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        padded = lengths[order[start:]] * np.arange(1, len(order) - start + 1)
        count = max(1, int(np.searchsorted(padded, tokens, side="right")))
        yield order[start : start + count]
        start += count
