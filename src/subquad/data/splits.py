"""Splits of data into training, development and test sets."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int
from numpy import ndarray

SplitName = Literal["train", "development", "test"]


def shuffled(names: Sequence[str], seed: int) -> Int[ndarray, "names"]:
    """Indices in an order that depends on the names and the seed, but not on the order of the names."""
    return np.random.default_rng(seed).permutation(np.argsort(np.array(names), kind="stable"))
