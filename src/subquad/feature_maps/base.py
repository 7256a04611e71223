"""Base classes of feature maps and their options."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.checking import Checked
from subquad.errors import SubquadError
from subquad.types import Features, Fused, Maps, MechanismSize, Scratch

LOG2_E = math.log2(math.e)


class FeatureMap(nn.Module):
    """A feature map phi as a module."""

    has_exponent = False

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        """Computes the features of each position independently."""
        raise NotImplementedError

    def feature_count(self, d: int) -> int:
        """Returns the number of features for inputs of dimension d."""
        raise NotImplementedError

    def fused(self) -> Fused | None:
        """Returns what native kernels need to compute the features themselves; None if they cannot."""
        return None

    def sides(self) -> Maps:
        """Returns phi for queries and phi for keys, which are the same by default."""
        return Maps(self, self)

    def calibrate(
        self,
        q_mean: Float[Tensor, "h d"],
        k_mean: Float[Tensor, "h d"],
        q_cov: Float[Tensor, "h d d"],
        k_cov: Float[Tensor, "h d d"],
    ) -> None:
        """Fits the map to the means and covariances of queries and keys. Does nothing by default."""

    def weights(self) -> Sequence[Tensor]:
        """Returns the parameters that are trained."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """Returns the gradients of x and of each weight. For every map, d phi / d exponent is ln 2 phi."""
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


class FeatureMapOptions(Checked):
    """Base class of the options of a feature map: frozen dataclasses that build a module."""

    kind: str
    """Name of the feature map in the registry, a field with `init=False`."""
    starting_gain: ClassVar[float] = 1.0
    """Factor of the initial weights of the query and key projections with which training starts well."""

    @property
    def calibrates(self) -> bool:
        """Whether `FeatureMap.calibrate` fits the built map to means and covariances of queries and keys."""
        return False

    def feature_count(self, head_dim: int) -> int:
        """Returns m, the number of features of a query or key of dimension head_dim."""
        raise NotImplementedError

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        """Returns the size of the built map, and of the state of linear attention with it."""
        raise NotImplementedError

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> FeatureMap:
        """Builds the map as a module."""
        raise NotImplementedError


def even(name: str, features: int) -> int:
    """Returns `features`; raises `SubquadError` if it is not even, for maps whose features come in pairs."""
    if features < 2 or features % 2:
        raise SubquadError(f"features must be even and at least 2 for {name} features, but is {features}")
    return features


def project(x: Float[Tensor, "b h n d"], weight: Float[Tensor, "*h d r"], scratch: Scratch) -> Float[Tensor, "b h n r"]:
    """Multiplies x by a matrix, one for each head or shared, in memory from `scratch`."""
    (b, h, n, d), r = x.shape, weight.shape[-1]
    out = scratch.take(b * h, n, r)
    return torch.bmm(x.flatten(0, 1), weight.expand(b, h, d, r).flatten(0, 1), out=out).unflatten(0, (b, h))
