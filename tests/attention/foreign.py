"""Attentions as another package might have them, imported by name in tests."""

import os
import subprocess

import torch
from torch import Tensor, nn

__all__ = ["Deadly", "Placed", "Untrained", "Weary", "Weighted", "mixes_all", "subprocess"]


def _mixed(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ v


class Weighted(nn.Module):
    """Has weights of its own, draws them, and is made causal by its constructor."""

    def __init__(self, num_heads: int, head_dim: int, causal: bool = False, spread: float = 1.0) -> None:
        super().__init__()
        self.causal = causal
        self.values = nn.Parameter(spread * torch.randn(num_heads, head_dim, head_dim))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _mixed(q, k, v @ self.values, causal=self.causal)


class Placed(nn.Module):
    """Has a weight for each position, so that it takes sequences up to a length."""

    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(max_len, 1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        return _mixed(q, k + self.places[: k.shape[2]], v, causal=causal)


class Weary(nn.Module):
    """Raises in the third call of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        self.calls += self.training
        if self.calls > 2:
            raise RuntimeError("that is enough")
        return _mixed(q, k, v, causal=causal)


class Untrained(nn.Module):
    """Raises in training."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        if self.training:
            raise NotImplementedError("for inference only")
        return _mixed(q, k, v, causal=causal)


class Deadly(nn.Module):
    """Ends the process in training."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        if self.training:
            os._exit(3)
        return _mixed(q, k, v, causal=causal)


def mixes_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Has no causal form, and takes no mask."""
    return _mixed(q, k, v, causal=False)
