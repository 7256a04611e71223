"""Histories side by side, with padding behind them."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data import ragged


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
    events = ragged.pad(ragged.slices(torch.from_numpy(encoded), offsets, which))
    return EventBatch(events, ragged.keep_of(np.diff(offsets)[which]), torch.from_numpy(labels[which]).float())
