"""FAVOR+ (Choromanski et al. 2021, *Rethinking Attention with Performers*): linear attention with random features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from subquad.attention.linear import LinearAttention, feature_operations, feature_rank
from subquad.errors import SubquadError
from subquad.feature_maps import Random, RandomFeatures, RandomMap
from subquad.feature_maps.random import PAIRED
from subquad.types import AttentionOptions, MechanismSize, RankBound, Traits


@dataclass(frozen=True)
class Favor(RandomFeatures, AttentionOptions):
    """Unbiased estimate of softmax attention in linear time. The error of a weight falls with the number of features."""

    kind: str = field(default="favor", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L m d",
            space="m d",
            gives_up="its weights are softmax's with a random error, less with more features, more with large queries and "
            "keys",
            has_weights=True,
            starting_gain=self.feature_map.starting_gain,
            redraws=True,
            calibrates=self.feature_map.calibrates,
        )

    @property
    def feature_map(self) -> Random:
        """Options of the feature map, which has the same fields."""
        return Random(**{shared.name: getattr(self, shared.name) for shared in fields(RandomFeatures)})

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"features": (32, 64, 128, 256)}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return self.feature_map.size(heads=heads, head_dim=head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "FavorAttention":
        feature_map = self.feature_map.build(heads=heads, head_dim=head_dim, generator=generator)
        return FavorAttention(self, feature_map, heads, head_dim)

    def operations(self, length: int, head_dim: int) -> int:
        """Adds to linear attention's operations the products of queries and keys with the random directions."""
        directions = self.features // 2 if self.kernel in PAIRED else self.features
        return feature_operations(self.feature_map, length, head_dim) + 4 * length * directions * head_dim

    def rank_bound(self, head_dim: int) -> RankBound:
        return feature_rank(self.feature_map, head_dim)


class FavorAttention(LinearAttention):
    """Linear attention with random features whose directions can be redrawn."""

    feature_map: RandomMap

    def redraw(self, generator: torch.Generator) -> None:
        """Redraws the random directions. Generators with the same seed give the same directions on every process."""
        if not self.training:
            raise SubquadError("favor does not redraw in eval mode, where its directions stay: call .train() first")
        if self.feature_map.options.projections == "learned":
            raise SubquadError("favor does not redraw directions that are learned: leave redrawing out, or take calibrated")
        self.feature_map.redraw(generator)
