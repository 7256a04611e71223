"""Feature maps: functions phi for which phi(q) . phi(k) takes the place of exp(q . k / sqrt d).

Each is a frozen dataclass of options that builds a module:

=========  ================================  ===================================================================
`Elu`      elu(x) + 1                        approximates nothing; to train from scratch: cheapest, never zero
`Relu`     max(x, 0)                         approximates nothing; to train from scratch where weights may be zero
`Random`   FAVOR+                            exp, without bias; to stand in for a trained softmax as it is
`Learned`  softmax([Wx; -Wx]), Hedgehog      exp, once trained; to convert a trained model with little training
`Taylor`   [1, x, x x^T / sqrt 2]            exp, near 0; to follow small dot products closely at d^2/2 features
=========  ================================  ===================================================================

A new map needs `forward` and `width`. `pullback` comes from autograd; writing it by hand makes the backward faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.errors import SubquadError
from subquad.ops import projections
from subquad.types import FeatureFunction, Features, Room

LOG2_E = math.log2(math.e)


class FeatureMap(nn.Module):
    """phi as a module."""

    has_exponent = False
    starting_gain = 1.0  # of the projections to queries and keys, times what keeps their variance

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        """The features of each position by itself."""
        raise NotImplementedError

    def width(self, d: int) -> int:
        """How many features an input of width d has."""
        raise NotImplementedError

    def sides(self) -> tuple[FeatureFunction, FeatureFunction]:
        """phi for queries and phi for keys: the same, unless a map says otherwise."""
        return self, self

    def weights(self) -> Sequence[Tensor]:
        """What is trained."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The gradient for x and for each of the weights. d phi / d exponent is ln 2 phi, whatever the map."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            values, exponent = self(leaf)
            outputs, gradients = [values], [gradient]
            if exponent is not None and exponent.requires_grad:
                outputs.append(exponent)
                gradients.append(math.log(2) * (gradient * values.detach()).sum(-1, keepdim=True))
            return torch.autograd.grad(
                outputs, [leaf, *self.weights()], gradients, allow_unused=True, materialize_grads=True
            )


class FeatureMapOptions(Protocol):
    """Options of a feature map: a frozen dataclass that builds."""

    @property
    def kind(self) -> str:
        """Its name in the registry."""
        ...

    def build(self, *, heads: int, width: int, generator: torch.Generator | None = None) -> FeatureMap: ...


@dataclass(frozen=True)
class Elu:
    """elu(x) + 1 (Katharopoulos et al. 2020): approximates nothing; cheapest, and never zero: to train from scratch."""

    kind: str = field(default="elu", init=False)

    def build(self, *, heads: int, width: int, generator: torch.Generator | None = None) -> "EluMap":
        return EluMap()


class EluMap(FeatureMap):
    """elu(x) + 1, as exp(min(x, 0)) + max(x, 0)."""

    starting_gain = 5.0  # for standard normal x the map is mostly its mean, and all weights nearly the same

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        # in half the time of F.elu(x) + 1 on a CPU
        above, below = (None, None) if room is None else (room.take(*x.shape), room.take(*x.shape))
        below = torch.clamp(x, max=0, out=below).mul_(LOG2_E).exp2_()
        return Features(torch.clamp(x, min=0, out=above).add_(below), None)

    def width(self, d: int) -> int:
        return d

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The slope is exp(x) = phi(x) below zero, 1 above it."""
        return (gradient.mul_(features.values.clamp(max=1)),)


@dataclass(frozen=True)
class Relu:
    """max(x, 0): approximates nothing; weights may be zero: to train from scratch where sparsity is welcome."""

    kind: str = field(default="relu", init=False)

    def build(self, *, heads: int, width: int, generator: torch.Generator | None = None) -> "ReluMap":
        return ReluMap()


class ReluMap(FeatureMap):
    """max(x, 0)."""

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        return Features(torch.clamp(x, min=0, out=None if room is None else room.take(*x.shape)), None)

    def width(self, d: int) -> int:
        return d

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The slope is 1 where the feature is not zero."""
        return (gradient.mul_(features.values > 0),)


@dataclass(frozen=True)
class Taylor:
    """1 + x + x^2/2 for exp, x = q . k / sqrt d: close where |x| < 1; to follow small dot products, at d^2/2 features."""

    kind: str = field(default="taylor", init=False)

    def build(self, *, heads: int, width: int, generator: torch.Generator | None = None) -> "TaylorMap":
        return TaylorMap(width)


class TaylorMap(FeatureMap):
    """[1, y, y_i y_j for i < j, y_i^2 / sqrt 2] with y = x / d^(1/4): each product of two coordinates once."""

    rows: Tensor
    columns: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        rows, columns = torch.triu_indices(width, width)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        y = x * x.shape[-1] ** -0.25
        products = y[..., self.rows] * y[..., self.columns]
        products = torch.where(self.rows == self.columns, math.sqrt(0.5) * products, products)
        return Features(torch.cat([torch.ones_like(y[..., :1]), y, products], dim=-1), None)

    def width(self, d: int) -> int:
        return 1 + d + d * (d + 1) // 2


@dataclass(frozen=True)
class Learned:
    """softmax([Wx; -Wx]) with W of each head's own (Hedgehog, Zhang et al. 2024): exp once trained; to convert a model."""

    features: int | None = None  # twice the head's width where it is not given
    kind: str = field(default="learned", init=False)

    def build(self, *, heads: int, width: int, generator: torch.Generator | None = None) -> "LearnedMap":
        return LearnedMap(heads, width, _even("learned", 2 * width if self.features is None else self.features), generator)


class LearnedMap(FeatureMap):
    """Queries and keys have a W of their own. At the start it is the identity, so that phi sees x as it is."""

    def __init__(self, heads: int, width: int, features: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.queries = LearnedSide(heads, width, features, generator)
        self.keys = LearnedSide(heads, width, features, generator)

    def sides(self) -> tuple[FeatureFunction, FeatureFunction]:
        return self.queries, self.keys

    def width(self, d: int) -> int:
        return self.keys.width(d)


class LearnedSide(FeatureMap):
    """[softmax(Wy + b), softmax(-Wy - b)] with y = x / d^(1/4)."""

    def __init__(self, heads: int, width: int, features: int, generator: torch.Generator | None) -> None:
        super().__init__()
        half = features // 2
        start = torch.eye(width, half)
        start[:, width:] = torch.randn(width, max(0, half - width), generator=generator) / math.sqrt(width)
        self.weight = nn.Parameter(start.repeat(heads, 1, 1))
        self.bias = nn.Parameter(torch.zeros(heads, 1, half))

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        logits = (x * x.shape[-1] ** -0.25) @ self.weight.to(x.dtype) + self.bias.to(x.dtype)
        return Features(torch.cat([logits.softmax(-1), (-logits).softmax(-1)], dim=-1), None)

    def width(self, d: int) -> int:
        return 2 * self.weight.shape[-1]


Kernel = Literal["positive", "hyperbolic", "trigonometric", "relu"]


@dataclass(frozen=True)
class Random:
    """FAVOR+ (Choromanski et al. 2021): approximates exp without bias; to stand in for a trained softmax as it is."""

    features: int = (
        256  # the length of phi(x), which is what is paid for; hyperbolic and trigonometric take two for each direction
    )
    kernel: Kernel = "positive"
    projection: projections.Projection = "orthogonal"
    norms: projections.Norms = "chi"  # chi: as long as Gaussian vectors, unbiased; fixed: all sqrt(width) long
    per_head: bool = False  # whether every head draws its own directions
    relu_offset: float = 1e-3  # part of the ReLU kernel as published, so that its features are never all zero
    kind: str = field(default="random", init=False)

    def build(self, *, heads: int, width: int, generator: torch.Generator | None = None) -> "RandomMap":
        return _RANDOM[self.kernel](self, heads, width, generator)


class RandomMap(FeatureMap):
    """Features along random directions omega of y = x / d^(1/4). They are a buffer, which `redraw` alone changes."""

    omega: Float[Tensor, "*h d r"]
    paired = False  # whether a direction gives two features

    def __init__(self, options: Random, heads: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        if options.features < 1:
            raise SubquadError(f"features must be at least 1, but is {options.features}")
        self.options, self.heads = options, heads
        self.directions = _even(options.kernel, options.features) // 2 if self.paired else options.features
        self.register_buffer("omega", torch.empty(*([heads] if options.per_head else []), width, self.directions))
        self.redraw(generator)

    def redraw(self, generator: torch.Generator | None) -> None:
        """New directions. Give every process a generator of the same seed, and they agree."""
        draws = [
            projections.draw(self.omega.shape[-2], self.directions, self.options.projection, self.options.norms, generator)
            for _ in range(self.heads if self.options.per_head else 1)
        ]
        self.omega.copy_(torch.stack(draws).view_as(self.omega))

    def width(self, d: int) -> int:
        return self.options.features

    def _project(self, x: Tensor, scale: float, room: Room | None) -> Tensor:
        """scale omega . y, the scale folded into the small matrix."""
        omega = (self.omega * (scale * x.shape[-1] ** -0.25)).to(x.dtype)
        if room is None:
            return x @ omega
        b, h, n, d = x.shape
        omega = omega.expand(b, h, d, self.directions).flatten(0, 1)
        return torch.bmm(x.flatten(0, 1), omega, out=room.take(b * h, n, self.directions)).unflatten(0, (b, h))

    def _unproject(self, gradient: Tensor, d: int) -> Tensor:
        """The gradient for x from the one for omega . y."""
        return gradient @ (self.omega * d**-0.25).mT.to(gradient.dtype)

    def _squared(self, x: Tensor) -> Tensor:
        """log2 of e^(|y|^2 / 2)."""
        return torch.linalg.vecdot(x, x)[..., None] * (LOG2_E / 2 * x.shape[-1] ** -0.5)


class PositiveMap(RandomMap):
    """e^(omega . y - |y|^2/2) / sqrt m: weights never negative, and small where exp(q . k) is."""

    has_exponent = True

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        logits = self._project(x, LOG2_E, room)
        largest = logits.detach().amax(-1, keepdim=True)
        exponent = largest - self._squared(x) - math.log2(self.directions) / 2
        return Features(logits.sub_(largest).exp2_(), exponent)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The slope of e^f is e^f times that of f, and f = omega . y - |y|^2/2."""
        slopes = gradient.mul_(features.values)
        total = slopes.sum(-1, keepdim=True)
        return (self._unproject(slopes, x.shape[-1]).addcmul_(x, total, value=-(x.shape[-1] ** -0.5)),)


class HyperbolicMap(RandomMap):
    """e^(-|y|^2/2) [e^(omega . y), e^(-omega . y)] / sqrt 2r: less than half of positive's variance for each direction."""

    has_exponent = True
    paired = True

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        logits = self._project(x, LOG2_E, room)
        largest = logits.detach().abs().amax(-1, keepdim=True)
        exponent = largest - self._squared(x) - math.log2(2 * self.directions) / 2
        return Features(torch.cat([logits - largest, -logits - largest], dim=-1).exp2_(), exponent)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """As for positive features, with -omega beside omega."""
        slopes = gradient.mul_(features.values)
        total = slopes.sum(-1, keepdim=True)
        there, back = slopes.chunk(2, dim=-1)
        return (self._unproject(there - back, x.shape[-1]).addcmul_(x, total, value=-(x.shape[-1] ** -0.5)),)


class TrigonometricMap(RandomMap):
    """e^(|y|^2/2) [sin(omega . y), cos(omega . y)] / sqrt r: precise for long vectors alike, negative for unlike ones."""

    has_exponent = True
    paired = True

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        angle = self._project(x, 1.0, room)
        exponent = self._squared(x) - math.log2(self.directions) / 2
        return Features(torch.cat([angle.sin(), angle.cos()], dim=-1), exponent)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """sin turns into cos, cos into -sin, and the exponent adds y times the whole."""
        sine, cosine = features.values.chunk(2, dim=-1)
        for_sine, for_cosine = gradient.chunk(2, dim=-1)
        total = (gradient * features.values).sum(-1, keepdim=True)
        slopes = for_sine * cosine - for_cosine * sine
        return (self._unproject(slopes, x.shape[-1]).addcmul_(x, total, value=x.shape[-1] ** -0.5),)


class ReluKernelMap(RandomMap):
    """(max(omega . y, 0) + offset) / sqrt m: the generalised kernel, which approximates no softmax and trains fast."""

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        scale = 1 / math.sqrt(self.directions)
        return Features(self._project(x, scale, room).clamp(min=0) + self.options.relu_offset * scale, None)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The slope is 1 where the feature exceeds the offset."""
        scale = 1 / math.sqrt(self.directions)
        slopes = gradient.mul_(features.values > self.options.relu_offset * scale)
        return (self._unproject(slopes, x.shape[-1]).mul_(scale),)


_RANDOM: dict[str, type[RandomMap]] = {
    "positive": PositiveMap,
    "hyperbolic": HyperbolicMap,
    "trigonometric": TrigonometricMap,
    "relu": ReluKernelMap,
}


FEATURE_MAPS: dict[str, type[FeatureMapOptions]] = {
    "elu": Elu,
    "relu": Relu,
    "random": Random,
    "learned": Learned,
    "taylor": Taylor,
}


def _even(name: str, features: int) -> int:
    if features < 2 or features % 2:
        raise SubquadError(f"features must be even and at least 2 for {name} features, but is {features}")
    return features
