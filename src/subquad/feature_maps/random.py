"""FAVOR+ (Choromanski et al. 2021): features along random directions, which can be calibrated to data or learned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.checking import Checked, Count, NonNegative
from subquad.errors import SubquadError
from subquad.feature_maps.base import LOG2_E, FeatureMap, FeatureMapOptions, even, project
from subquad.ops import calibration, projections
from subquad.ops.autocast import product
from subquad.types import Features, Fused, Maps, MechanismSize, Scratch

Kernel = Literal["positive", "hyperbolic", "trigonometric", "relu"]
Projections = Literal["fixed", "calibrated", "learned"]
PAIRED: tuple[Kernel, ...] = ("hyperbolic", "trigonometric")
"""Kernels with two features for each direction."""


@dataclass(frozen=True)
class RandomFeatures(Checked):
    """Options of FAVOR+'s features, shared by the feature map `Random` and the mechanism `Favor`."""

    features: Count = 256  # number of features; time and memory grow with it
    kernel: Kernel = "positive"  # hyperbolic and trigonometric use two features per direction; relu is not softmax
    projection: projections.Projection = "orthogonal"  # how directions are drawn: (nearly) orthogonal or independent
    norms: projections.Norms = "chi"  # norms of the directions: chi as of Gaussian vectors, unbiased; fixed sqrt(head_dim)
    per_head: bool = False  # whether every head has its own directions
    relu_offset: NonNegative = 1e-3  # constant added to the ReLU features, as published, so that they are never all zero
    projections: Projections = "fixed"  # calibrated: fitted to the data by `subquad convert`; learned: also trained


@dataclass(frozen=True)
class Random(RandomFeatures, FeatureMapOptions):
    """FAVOR+ (Choromanski et al. 2021): approximates exp without bias; replaces a trained softmax without training."""

    kind: str = field(default="random", init=False)

    @property
    def calibrates(self) -> bool:
        return self.projections != "fixed"

    def feature_count(self, head_dim: int) -> int:
        return self.features

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        directions = self.features // 2 if self.kernel in PAIRED else self.features
        drawn = (heads if self.per_head or self.projections == "learned" else 1) * head_dim * directions
        moved = 0 if self.projections == "fixed" else 2 * heads * (head_dim + 1) ** 2
        biases = 2 * heads * directions if self.projections == "learned" else 0
        return MechanismSize(drawn + moved + biases, heads * self.features * head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "RandomMap":
        if self.projections == "fixed":
            return _RANDOM[self.kernel](self, heads, head_dim, generator)
        if self.kernel != "positive":
            raise SubquadError(
                f"{self.projections} projections are for the positive kernel, but the kernel is {self.kernel}: "
                "leave it out, or take fixed projections"
            )
        return CalibratedMap(self, heads, head_dim, generator)


class RandomMap(FeatureMap):
    """Features of y = x / d^(1/4) along random directions omega, a buffer that only `redraw` changes."""

    omega: Float[Tensor, "*h d r"]
    paired = False  # whether a direction gives two features

    def __init__(self, options: Random, heads: int, head_dim: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.options, self.heads = options, heads
        self.directions = even(options.kernel, options.features) // 2 if self.paired else options.features
        self.register_buffer("omega", torch.empty(*([heads] if options.per_head else []), head_dim, self.directions))
        self.factors: projections.Directions | None = None  # of omega, where they multiply faster
        self.redraw(generator)

    def redraw(self, generator: torch.Generator | None) -> None:
        """Redraws the directions. Generators with the same seed give the same directions on every process."""
        projection, norms, head_dim = self.options.projection, self.options.norms, self.omega.shape[-2]
        if projections.pays(projection, head_dim) and not self.options.per_head:
            self.factors = projections.draw_directions(head_dim, self.directions, projection, norms, generator)
            self.omega.copy_(self.factors.matrix())
            return
        draws = [
            projections.draw(head_dim, self.directions, projection, norms, generator)
            for _ in range(self.heads if self.options.per_head else 1)
        ]
        self.omega.copy_(torch.stack(draws).view_as(self.omega))

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Loads directions, whose factors are not known."""
        self.factors = None
        super()._load_from_state_dict(*arguments)

    def weights(self) -> Sequence[Tensor]:
        return ()

    def feature_count(self, d: int) -> int:
        return self.options.features

    def _project(self, x: Tensor, scale: float, scratch: Scratch | None) -> Tensor:
        """Returns scale omega . y, with the scale folded into the matrix omega, or into x where omega has factors."""
        if self.factors is not None:
            return self.factors.multiply(x * (scale * x.shape[-1] ** -0.25))
        omega = (self.omega * (scale * x.shape[-1] ** -0.25)).to(x.dtype)
        return product(x, omega) if scratch is None else project(x, omega, scratch)

    def _unproject(self, gradient: Tensor, d: int) -> Tensor:
        """Returns the gradient of x from the gradient of omega . y."""
        return gradient @ (self.omega * d**-0.25).mT.to(gradient.dtype)

    def _squared(self, x: Tensor) -> Tensor:
        """Returns log2 of e^(|y|^2 / 2)."""
        return torch.linalg.vecdot(x, x)[..., None] * (LOG2_E / 2 * x.shape[-1] ** -0.5)


class PositiveMap(RandomMap):
    """e^(omega . y - |y|^2/2) / sqrt m: positive weights, small where exp(q . k) is small."""

    has_exponent = True

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        logits = self._project(x, LOG2_E, scratch)
        largest = logits.detach().amax(-1, keepdim=True)
        exponent = largest - self._squared(x) - math.log2(self.directions) / 2
        return Features(logits.sub_(largest).exp2_(), exponent)

    def fused(self) -> Fused | None:
        return None if self.factors is not None else Fused("positive", self.omega)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivative of e^f is e^f f', with f = omega . y - |y|^2/2."""
        slopes = gradient.mul_(features.values)
        total = slopes.sum(-1, keepdim=True)
        return (self._unproject(slopes, x.shape[-1]).addcmul_(x, total, value=-(x.shape[-1] ** -0.5)),)


class HyperbolicMap(RandomMap):
    """e^(-|y|^2/2) [e^(omega . y), e^(-omega . y)] / sqrt 2r: less than half the variance of `PositiveMap` per direction."""

    has_exponent = True
    paired = True

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        logits = self._project(x, LOG2_E, scratch)
        largest = logits.detach().abs().amax(-1, keepdim=True)
        exponent = largest - self._squared(x) - math.log2(2 * self.directions) / 2
        return Features(torch.cat([logits - largest, -logits - largest], dim=-1).exp2_(), exponent)

    def fused(self) -> Fused | None:
        return None if self.factors is not None else Fused("hyperbolic", self.omega)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivative of e^f is e^f f', with f = +-omega . y - |y|^2/2."""
        slopes = gradient.mul_(features.values)
        total = slopes.sum(-1, keepdim=True)
        for_positive, for_negative = slopes.chunk(2, dim=-1)
        return (self._unproject(for_positive - for_negative, x.shape[-1]).addcmul_(x, total, value=-(x.shape[-1] ** -0.5)),)


class TrigonometricMap(RandomMap):
    """e^(|y|^2/2) [sin(omega . y), cos(omega . y)] / sqrt r: precise for similar vectors; weights may be negative."""

    has_exponent = True
    paired = True

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        angle = self._project(x, 1.0, scratch)
        exponent = self._squared(x) - math.log2(self.directions) / 2
        return Features(torch.cat([angle.sin(), angle.cos()], dim=-1), exponent)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivatives of sin and cos are cos and -sin, and that of the exponent is y."""
        sine, cosine = features.values.chunk(2, dim=-1)
        for_sine, for_cosine = gradient.chunk(2, dim=-1)
        total = (gradient * features.values).sum(-1, keepdim=True)
        slopes = for_sine * cosine - for_cosine * sine
        return (self._unproject(slopes, x.shape[-1]).addcmul_(x, total, value=x.shape[-1] ** -0.5),)


class ReluKernelMap(RandomMap):
    """(max(omega . y, 0) + offset) / sqrt m: the generalised kernel, which does not approximate softmax."""

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        scale = 1 / math.sqrt(self.directions)
        return Features(self._project(x, scale, scratch).clamp(min=0) + self.options.relu_offset * scale, None)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivative is 1 where the feature exceeds the offset, else 0."""
        scale = 1 / math.sqrt(self.directions)
        slopes = gradient.mul_(features.values > self.options.relu_offset * scale)
        return (self._unproject(slopes, x.shape[-1]).mul_(scale),)


class CalibratedMap(RandomMap):
    """Positive features of centred and rebalanced queries and keys, which leaves softmax unchanged.

    Before `calibrate`, queries and keys are used as they are. With learned projections, each head's directions are
    parameters, with separate biases for queries and keys.
    """

    has_exponent = True

    def __init__(self, options: Random, heads: int, head_dim: int, generator: torch.Generator | None) -> None:
        super().__init__(options, heads, head_dim, generator)
        learned = options.projections == "learned"
        if learned:
            start = self.omega.expand(heads, head_dim, self.directions).clone()
            del self.omega
            self.omega = nn.Parameter(start)
        self.queries, self.keys = (CalibratedSide(self, heads, head_dim, biased=learned) for _ in range(2))

    def sides(self) -> Maps:
        return Maps(self.queries, self.keys)

    @torch.no_grad()
    def calibrate(
        self,
        q_mean: Float[Tensor, "h d"],
        k_mean: Float[Tensor, "h d"],
        q_cov: Float[Tensor, "h d d"],
        k_cov: Float[Tensor, "h d d"],
    ) -> None:
        """Fits the map to the means and covariances of the attention's queries and keys."""
        a, c, *covariances = (part.double() for part in (q_mean, k_mean, q_cov, k_cov))
        if not all(bool(part.isfinite().all()) for part in (a, c, *covariances)):
            raise SubquadError("means and covariances to calibrate to must be finite: look at the model and its text")
        scale = a.shape[1] ** -0.25
        turn, back = calibration.balance(*covariances)
        self.queries.turn(turn * scale, a, c * scale**2, -torch.linalg.vecdot(a, c) * scale**2)
        self.keys.turn(back * scale, c, a * scale**2, torch.zeros_like(a[:, 0]))


class CalibratedSide(FeatureMap):
    """e^(omega . y + b + t - |y|^2/2) / sqrt m, where [y, t] = x affine + offset; initially y = x / d^(1/4)."""

    has_exponent = True
    affine: Float[Tensor, "h d c"]
    offset: Float[Tensor, "h 1 c"]

    def __init__(self, owner: CalibratedMap, heads: int, head_dim: int, *, biased: bool) -> None:
        super().__init__()
        self._whole = (owner,)  # a tuple hides the map from nn.Module, since both sides share its directions
        self.register_buffer("affine", (torch.eye(head_dim, head_dim + 1) * head_dim**-0.25).repeat(heads, 1, 1))
        self.register_buffer("offset", torch.zeros(heads, 1, head_dim + 1))
        self.bias = nn.Parameter(torch.zeros(heads, 1, owner.directions)) if biased else None

    def turn(
        self, by: Float[Tensor, "h d d"], mean: Float[Tensor, "h d"], tilt: Float[Tensor, "h d"], level: Float[Tensor, "h"]
    ) -> None:
        """Sets y = (x - mean) by and t = x . tilt + level."""
        self.affine.copy_(torch.cat([by, tilt[:, :, None]], dim=-1))
        self.offset.copy_(torch.cat([-mean[:, None] @ by, level[:, None, None]], dim=-1))

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        y, t = self._turned(x)
        logits = self._project(y, scratch)
        largest = logits.detach().amax(-1, keepdim=True)
        squared = torch.linalg.vecdot(y, y)[..., None] * (0.5 / LOG2_E)
        return Features(logits.sub_(largest).exp2_(), largest + t - squared - math.log2(logits.shape[-1]) / 2)

    def feature_count(self, d: int) -> int:
        return self._omega.shape[-1]

    def weights(self) -> Sequence[Tensor]:
        return [weight for weight in (self._omega, self.bias) if weight is not None and weight.requires_grad]

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivative of e^f is e^f f', with f = omega . y + b + t - |y|^2/2."""
        slopes, y = gradient.mul_(features.values), self._turned(x)[0] / LOG2_E
        total = slopes.sum(-1, keepdim=True)
        for_y = (slopes @ self._omega.mT.to(x.dtype)).addcmul_(y, total, value=-1)
        for_x = torch.cat([for_y, total], dim=-1) @ self.affine.mT.to(x.dtype)
        trained = [(y.mT @ slopes).sum(0)] if self._omega.requires_grad else []
        return for_x, *trained, *([slopes.sum((0, 2))[:, None]] if self.bias is not None and self.bias.requires_grad else [])

    @property
    def _omega(self) -> Float[Tensor, "*h d r"]:
        return self._whole[0].omega

    def _turned(self, x: Float[Tensor, "b h n d"]) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n 1"]]:
        """Returns y and t times log2 e, for powers of 2."""
        turned = product(x, (LOG2_E * self.affine).to(x.dtype)) + (LOG2_E * self.offset).to(x.dtype)
        return turned[..., :-1], turned[..., -1:]

    def _project(self, y: Float[Tensor, "b h n d"], scratch: Scratch | None) -> Float[Tensor, "b h n r"]:
        omega = self._omega.to(y.dtype)
        logits = product(y, omega) if scratch is None else project(y, omega, scratch)
        return logits if self.bias is None else logits.add_((LOG2_E * self.bias).to(y.dtype))


_RANDOM: dict[str, type[RandomMap]] = {
    "positive": PositiveMap,
    "hyperbolic": HyperbolicMap,
    "trigonometric": TrigonometricMap,
    "relu": ReluKernelMap,
}
