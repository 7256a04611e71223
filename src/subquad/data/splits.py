"""Splits of data into training, development and test sets."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

SplitName = Literal["train", "development", "test"]

TESTED, DEVELOPED = 0.2, 0.1
"""Shares of labelled sequences for the test and for development."""
FEW = 3
"""Groups of fewer sequences are for training only, as there is none to spare."""


class Places(NamedTuple):
    """Indices of the sequences in each split."""

    train: Int[ndarray, "train"]
    development: Int[ndarray, "development"]
    test: Int[ndarray, "test"]


def shuffled(names: Sequence[str], seed: int) -> Int[ndarray, "names"]:
    """Indices in an order that depends on the names and the seed, but not on the order of the names."""
    return np.random.default_rng(seed).permutation(np.argsort(np.array(names), kind="stable"))


def divide(names: Sequence[str], groups: Int[ndarray, "names"], seed: int) -> Places:
    """Divides sequences into splits that have the same shares of each group, such as of each class.

    The order in each split depends on the names and the seed. A group with at least `FEW` sequences is in every split.
    """
    order = shuffled(names, seed)
    parts: tuple[list[ndarray], list[ndarray], list[ndarray]] = ([], [], [])
    for group in np.unique(groups):
        members = order[groups[order] == group]
        tested, developed = (max(1, round(share * len(members))) for share in (TESTED, DEVELOPED))
        cuts = (tested, tested + developed) if len(members) >= FEW else (0, 0)
        for part, chosen in zip(parts, (members[cuts[1] :], members[cuts[0] : cuts[1]], members[: cuts[0]]), strict=True):
            part.append(chosen)
    rank = np.argsort(order)
    joined = (np.concatenate(part) for part in parts)
    return Places(*(part[np.argsort(rank[part])] for part in joined))
