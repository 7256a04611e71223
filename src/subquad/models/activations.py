"""Activations of the feed-forward part of a layer."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["gelu", "relu", "nelu", "nelu-printed"]


class Nelu(nn.Module):
    """elu(x) + 1, which Do and Bergner 2022, a replication of *Transformers are RNNs*, put in the place of ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1


class NeluPrinted(nn.Module):
    """x + 1 below 0 and exp(x) above, as the code in Do and Bergner 2022 prints elu(x) + 1: with its branches exchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < 0, x + 1, x.clamp(min=0).exp())  # the clamp keeps the unused branch's gradient finite


ACTIVATIONS: Mapping[Activation, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "nelu": Nelu,
    "nelu-printed": NeluPrinted,
}
