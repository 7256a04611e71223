"""Initial weights of linear layers."""

import torch
from torch import nn


def initialise(*layers: nn.Linear, gain: float = 1.0, generator: torch.Generator | None = None) -> None:
    """Gives linear layers weights drawn by Xavier's uniform rule (Glorot & Bengio 2010), times `gain`, and no bias."""
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight, gain=gain, generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
