"""Splits of clients into training, development and test. The events of a client are never divided."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.data.splits import shuffled
from subquad.errors import SubquadError
from subquad.tasks.targets.labels import UNLABELLED

FEWEST_UNLABELLED = 6
"""Smallest number of clients whose labels are not used: two in each split."""


class Splits(NamedTuple):
    """Indices of the clients in each split."""

    train: Int[ndarray, "train"]
    development: Int[ndarray, "development"]
    test: Int[ndarray, "test"]


def split(
    clients: Sequence[str],
    labels: Int[ndarray, "clients"],
    *,
    folds: int,
    fold: int,
    seed: int,
    share: float = 1.0,
    by_class: bool = True,
) -> Splits:
    """Divides labelled clients into folds, in an order that depends on their names and the seed.

    One fold is the test split, and a tenth of the other clients is the development split. Only a `share` of the training and
    of the development clients is kept. With `by_class`, each split must have clients of at least two classes.
    """
    if folds < 2 or not 0 <= fold < folds:
        raise SubquadError(f"--folds must be at least 2 and --fold from 0 to folds - 1, but they are {folds} and {fold}")
    labelled = np.flatnonzero(labels != UNLABELLED)
    parts = np.array_split(labelled[shuffled([clients[int(at)] for at in labelled], seed)], folds)
    test = parts.pop(fold)
    rest = np.concatenate(parts)
    tenth = max(1, len(rest) // 10)
    train, development = rest[tenth:], rest[:tenth]
    kept = [max(1, math.ceil(share * len(part))) for part in (train, development)]
    splits = Splits(train[: kept[0]], development[: kept[1]], test)
    for name, indices in splits._asdict().items():
        if len(indices) < 2 or (by_class and len(np.unique(labels[indices])) < 2):
            raise SubquadError(
                f"the {name} split has clients of one class only: there are too few clients, {len(labelled)} with a label; "
                "give more, or other --folds or --split-seed"
                if by_class
                else f"the {name} split has {len(indices)} clients: there are too few, {len(labelled)} with a label"
            )
    return splits


def split_unlabelled(clients: Sequence[str], seed: int) -> Splits:
    """Divides clients whose labels are not used: nine tenths to learn from, a twentieth each for development and test."""
    if len(clients) < FEWEST_UNLABELLED:
        raise SubquadError(f"there are too few clients to learn from, {len(clients)}: give at least {FEWEST_UNLABELLED}")
    order = shuffled(clients, seed)
    kept = max(4, len(order) // 10)
    return Splits(order[kept:], order[: kept // 2], order[kept // 2 : kept])
