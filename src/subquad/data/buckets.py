"""Batches of sequences of similar length, to keep padding small."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

GROWTH = 1.1
"""Ratio of the longest to the shortest length in a bucket: less than a tenth of a batch is padding."""


def bucket_edges(longest: int) -> Int[ndarray, "edges"]:
    """The shortest length of each bucket, up to the bucket of the longest sequence."""
    edges = [1]
    while edges[-1] <= longest:
        edges.append(int(edges[-1] * GROWTH) + 1)
    return np.array(edges)


class Buckets:
    """Sequences grouped by length."""

    def __init__(self, sequences: Int[ndarray, "sequences"], lengths: Int[ndarray, "sequences"]) -> None:
        self.of = np.searchsorted(bucket_edges(int(lengths.max())), lengths, side="right")
        self.members = {bucket: sequences[self.of == bucket] for bucket in np.unique(self.of).tolist()}

    def draw(self, size: int, generator: torch.Generator) -> Int[ndarray, "size"]:
        """Draws sequences of one bucket, chosen in proportion to its size. Sequences repeat only after all others of it."""
        at = int(torch.randint(len(self.of), (1,), generator=generator))
        members = self.members[int(self.of[at])]
        rounds = -(-size // len(members))
        order = torch.cat([torch.randperm(len(members), generator=generator) for _ in range(rounds)])
        return members[order[:size].numpy()]


def bounded(lengths: Int[ndarray, "sequences"], tokens: int) -> Iterator[Int[ndarray, "b"]]:
    """Yields all sequences by ascending length, in batches of at most `tokens` positions or of a single sequence."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        padded = lengths[order[start:]] * np.arange(1, len(order) - start + 1)
        count = max(1, int(np.searchsorted(padded, tokens, side="right")))
        yield order[start : start + count]
        start += count
