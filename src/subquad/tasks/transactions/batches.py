"""Histories side by side, with padding behind them."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor


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
