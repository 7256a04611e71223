"""Feature maps without random or learned parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.feature_maps.base import LOG2_E, FeatureMap, FeatureMapOptions
from subquad.types import Features, Fused, MechanismSize, Scratch

ELU, RELU = Fused("elu"), Fused("relu")
"""The maps that native kernels compute themselves."""


@dataclass(frozen=True)
class Elu(FeatureMapOptions):
    """elu(x) + 1 (Katharopoulos et al. 2020): the cheapest map, never zero; for training from scratch."""

    kind: str = field(default="elu", init=False)
    # for standard normal x the features hardly vary, and all attention weights would be nearly equal
    starting_gain: ClassVar[float] = 5.0

    def feature_count(self, head_dim: int) -> int:
        return head_dim

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, heads * head_dim * head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "EluMap":
        return EluMap()


class EluMap(FeatureMap):
    """elu(x) + 1, as exp(min(x, 0)) + max(x, 0)."""

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        # takes half the time of F.elu(x) + 1 on a CPU
        above, below = (None, None) if scratch is None else (scratch.take(*x.shape), scratch.take(*x.shape))
        below = torch.clamp(x, max=0, out=below).mul_(LOG2_E).exp2_()
        return Features(torch.clamp(x, min=0, out=above).add_(below), None)

    def fused(self) -> Fused:
        return ELU

    def weights(self) -> Sequence[Tensor]:
        return ()

    def feature_count(self, d: int) -> int:
        return d

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivative is exp(x) = phi(x) below zero, and 1 above."""
        return (gradient.mul_(features.values.clamp(max=1)),)


@dataclass(frozen=True)
class Relu(FeatureMapOptions):
    """max(x, 0): weights may be zero; for training from scratch with sparse attention."""

    kind: str = field(default="relu", init=False)

    def feature_count(self, head_dim: int) -> int:
        return head_dim

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, heads * head_dim * head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "ReluMap":
        return ReluMap()


class ReluMap(FeatureMap):
    """max(x, 0)."""

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        return Features(torch.clamp(x, min=0, out=None if scratch is None else scratch.take(*x.shape)), None)

    def fused(self) -> Fused:
        return RELU

    def weights(self) -> Sequence[Tensor]:
        return ()

    def feature_count(self, d: int) -> int:
        return d

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivative is 1 for nonzero features, else 0."""
        return (gradient.mul_(features.values > 0),)


@dataclass(frozen=True)
class Taylor(FeatureMapOptions):
    """1 + x + x^2/2 for exp(x), x = q . k / sqrt d, with d^2/2 features; accurate for |x| < 1."""

    kind: str = field(default="taylor", init=False)

    def feature_count(self, head_dim: int) -> int:
        return 1 + head_dim + head_dim * (head_dim + 1) // 2

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        indices = head_dim * (head_dim + 1)
        return MechanismSize(indices, heads * self.feature_count(head_dim) * head_dim, derived=indices)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "TaylorMap":
        return TaylorMap(head_dim)


class TaylorMap(FeatureMap):
    """[1, y, y_i y_j for i < j, y_i^2 / sqrt 2] with y = x / d^(1/4), without duplicate products."""

    rows: Tensor
    columns: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        rows, columns = torch.triu_indices(head_dim, head_dim)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        y = x * x.shape[-1] ** -0.25
        products = y[..., self.rows] * y[..., self.columns]
        products = torch.where(self.rows == self.columns, math.sqrt(0.5) * products, products)
        return Features(torch.cat([torch.ones_like(y[..., :1]), y, products], dim=-1), None)

    def feature_count(self, d: int) -> int:
        return 1 + d + d * (d + 1) // 2
