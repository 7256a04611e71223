"""Padded batches of histories."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data import ragged


class EventBatch(NamedTuple):
    """Padded events, a mask that is false at padding, and the class of each client."""

    events: Float[Tensor, "b n f"]
    keep: Bool[Tensor, "b n"]
    label: Float[Tensor, "b"]


def pad(
    encoded: Float[ndarray, "events f"],
    offsets: Int[ndarray, "edges"],
    labels: Int[ndarray, "clients"],
    chosen: Int[ndarray, "b"],
) -> EventBatch:
    """The histories of the chosen clients as a padded batch."""
    events = ragged.pad(ragged.slices(torch.from_numpy(encoded), offsets, chosen))
    return EventBatch(events, ragged.keep_of(np.diff(offsets)[chosen]), torch.from_numpy(labels[chosen]).float())
