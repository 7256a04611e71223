"""Padded batches of histories."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data import ragged


class EventBatch(NamedTuple):
    """Padded events, a mask that is false at padding, and for each client the target and what else is known."""

    events: Float[Tensor, "b n f"]
    keep: Bool[Tensor, "b n"]
    target: Float[Tensor, "b k"]
    static: Float[Tensor, "b s"]
    """Columns of the clients as numbers."""
    offset: Float[Tensor, "b o"]
    """Outputs of the linear model of aggregates; 0 without one."""


def pad(
    encoded: Float[ndarray, "events f"], offsets: Int[ndarray, "edges"]
) -> tuple[Float[Tensor, "b n f"], Bool[Tensor, "b n"]]:
    """The encoded events of all clients, padded to the same length, and the mask of real events."""
    clients = np.arange(len(offsets) - 1)
    events = ragged.pad(ragged.slices(torch.from_numpy(encoded), offsets, clients))
    return events, ragged.keep_of(np.diff(offsets))
