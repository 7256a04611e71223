"""Splits of clients into training, development and test. The events of a client are never divided."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.data.splits import shuffled
from subquad.errors import SubquadError
from subquad.tasks.transactions.histories import UNLABELLED


class Splits(NamedTuple):
    """Indices of the clients in each split."""

    train: Int[ndarray, "train"]
    development: Int[ndarray, "development"]
    test: Int[ndarray, "test"]


def split(clients: Sequence[str], labels: Int[ndarray, "clients"], *, folds: int, fold: int, seed: int) -> Splits:
    """Divides labelled clients into folds, in an order that depends on their names and the seed.

    One fold is the test split, and a tenth of the other clients is the development split.
    """
    if folds < 2 or not 0 <= fold < folds:
        raise SubquadError(f"--folds must be at least 2 and --fold from 0 to folds - 1, but they are {folds} and {fold}")
    labelled = np.flatnonzero(labels != UNLABELLED)
    parts = np.array_split(labelled[shuffled([clients[int(at)] for at in labelled], seed)], folds)
    test = parts.pop(fold)
    rest = np.concatenate(parts)
    tenth = max(1, len(rest) // 10)
    splits = Splits(rest[tenth:], rest[:tenth], test)
    for name, indices in splits._asdict().items():
        if len(np.unique(labels[indices])) < 2:
            raise SubquadError(
                f"the {name} split has clients of one class only: there are too few clients, {len(labelled)} with a label; "
                "give more, or other --folds or --split-seed"
            )
    return splits
