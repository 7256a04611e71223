"""Hedgehog (Zhang et al. 2024): a feature map that learns to approximate softmax."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.checking import Count
from subquad.feature_maps.base import LOG2_E, FeatureMap, FeatureMapOptions, even, project
from subquad.ops.autocast import product
from subquad.types import Features, Fused, Maps, MechanismSize, Scratch


@dataclass(frozen=True)
class Learned(FeatureMapOptions):
    """softmax([Wx; -Wx]) with a W for each head (Hedgehog, Zhang et al. 2024); approximates exp after training."""

    features: Count | None = None  # number of features; twice head_dim if not set
    kind: str = field(default="learned", init=False)

    def feature_count(self, head_dim: int) -> int:
        return 2 * head_dim if self.features is None else self.features

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        features = self.feature_count(head_dim)
        return MechanismSize(2 * heads * (head_dim + 1) * (features // 2), heads * features * head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "LearnedMap":
        return LearnedMap(heads, head_dim, even("learned", self.feature_count(head_dim)), generator)


class LearnedMap(FeatureMap):
    """Learned features with separate W for queries and keys, initially the identity."""

    def __init__(self, heads: int, head_dim: int, features: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.queries = LearnedSide(heads, head_dim, features, generator)
        self.keys = LearnedSide(heads, head_dim, features, generator)

    def sides(self) -> Maps:
        return Maps(self.queries, self.keys)

    def feature_count(self, d: int) -> int:
        return self.keys.feature_count(d)


class LearnedSide(FeatureMap):
    """[softmax(Wy + b), softmax(-Wy - b)] with y = x / d^(1/4)."""

    def __init__(self, heads: int, head_dim: int, features: int, generator: torch.Generator | None) -> None:
        super().__init__()
        half = features // 2
        start = torch.eye(head_dim, half)
        start[:, head_dim:] = torch.randn(head_dim, max(0, half - head_dim), generator=generator) / math.sqrt(head_dim)
        self.weight = nn.Parameter(start.repeat(heads, 1, 1))
        self.bias = nn.Parameter(torch.zeros(heads, 1, half))

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        if scratch is not None:
            return Features(self._write(x, scratch), None)
        logits = product(x * x.shape[-1] ** -0.25, self.weight.to(x.dtype)) + self.bias.to(x.dtype)
        return Features(torch.cat([logits.softmax(-1), (-logits).softmax(-1)], dim=-1), None)

    def _write(self, x: Float[Tensor, "b h n d"], scratch: Scratch) -> Float[Tensor, "b h n m"]:
        """Computes the features in half the time on a CPU, with powers of 2 and both halves in one tensor."""
        half = self.weight.shape[-1]
        weight, bias = (LOG2_E * x.shape[-1] ** -0.25 * self.weight).to(x.dtype), (LOG2_E * self.bias).to(x.dtype)
        logits, values = project(x, weight, scratch).add_(bias), scratch.take(*x.shape[:3], 2 * half)
        torch.sub(logits, logits.amax(-1, keepdim=True), out=values[..., :half])
        torch.sub(logits.amin(-1, keepdim=True), logits, out=values[..., half:])
        pair = values.exp2_().unflatten(-1, (2, half))
        pair.div_(pair.sum(-1, keepdim=True))
        return values

    def feature_count(self, d: int) -> int:
        return 2 * self.weight.shape[-1]

    def weights(self) -> Sequence[Tensor]:
        return [weight for weight in (self.weight, self.bias) if weight.requires_grad]

    def fused(self) -> Fused:
        return Fused("learned", self.weight, self.bias)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The gradient of softmax is s (g - s . g) for each half; the logits of the second half are negated."""
        pair = (2, self.weight.shape[-1])
        slopes = gradient.mul_(features.values).unflatten(-1, pair)
        slopes = slopes.addcmul_(features.values.unflatten(-1, pair), slopes.sum(-1, keepdim=True), value=-1)
        for_logits, scale = slopes[..., 0, :] - slopes[..., 1, :], x.shape[-1] ** -0.25
        for_weights = [(x.mT @ for_logits).sum(0).mul_(scale), for_logits.sum((0, 2))[:, None]]
        trained = [part for part, weight in zip(for_weights, (self.weight, self.bias), strict=True) if weight.requires_grad]
        return for_logits @ (scale * self.weight).mT.to(x.dtype), *trained
