"""Splits: what is learned from, what is watched while training, and what is kept for the end."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int
from numpy import ndarray

SplitName = Literal["train", "development", "test"]


def shuffled(names: Sequence[str], seed: int) -> Int[ndarray, "names"]:
    """Indices in an order that depends on the names and the seed, not on the order in which the names stand in a file."""
    return np.random.default_rng(seed).permutation(np.argsort(np.array(names), kind="stable"))
