"""FAVOR+ (Choromanski et al. 2021, *Rethinking Attention with Performers*): linear attention with random features."""

from dataclasses import dataclass, field

import torch

from subquad.attention.linear import LinearAttention
from subquad.checking import Checked, Count, NonNegative
from subquad.errors import SubquadError
from subquad.feature_maps import Kernel, Projections, Random, RandomMap
from subquad.ops.projections import Norms, Projection
from subquad.types import MechanismSize, Traits


@dataclass(frozen=True)
class Favor(Checked):
    """An unbiased estimate of softmax attention, in linear time. The error of a weight falls with the number of features."""

    features: Count = 256  # the length of phi(x): what is paid for
    kernel: Kernel = "positive"  # hyperbolic and trigonometric take two features for each direction; relu is no softmax
    projection: Projection = "orthogonal"
    norms: Norms = "chi"  # chi: as long as Gaussian vectors, unbiased; fixed: all sqrt(head_dim) long
    per_head: bool = False  # whether every head draws its own directions
    relu_offset: NonNegative = 1e-3  # part of the ReLU kernel as published, so that its features are never all zero
    projections: Projections = "fixed"  # calibrated: to the data, by `subquad convert`; learned: and trained from there
    kind: str = field(default="favor", init=False)

    @property
    def traits(self) -> Traits:
        price = "its weights are softmax's with a random error, less with more features, more with large queries and keys"
        return Traits(False, "L m d", "m d", price)

    @property
    def feature_map(self) -> Random:
        """The options of its features."""
        drawn = self.features, self.kernel, self.projection, self.norms, self.per_head, self.relu_offset, self.projections
        return Random(*drawn)

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return self.feature_map.size(heads=heads, head_dim=head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "FavorAttention":
        return FavorAttention(self.feature_map.build(heads=heads, head_dim=head_dim, generator=generator), heads, head_dim)


class FavorAttention(LinearAttention):
    """Linear attention whose random directions can be drawn anew."""

    feature_map: RandomMap

    def redraw(self, generator: torch.Generator) -> None:
        """New directions, for a training loop that asks for them. Generators of one seed agree on every process."""
        if not self.training:
            raise SubquadError("favor does not redraw in eval mode, where its directions stay: call .train() first")
        if self.feature_map.options.projections == "learned":
            raise SubquadError("favor does not redraw directions that are learned: leave redrawing out, or take calibrated")
        self.feature_map.redraw(generator)
