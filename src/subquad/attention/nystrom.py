"""Nyströmformer (Xiong et al. 2021): softmax attention by way of landmarks, which are means of runs of positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from subquad.attention.base import Mechanism
from subquad.attention.checks import check_inputs, check_result
from subquad.checking import Count
from subquad.ops import nystrom
from subquad.ops.autocast import without_autocast
from subquad.types import AttentionOptions, Keep, Keys, MechanismSize, Mixed, Queries, RankBound, Traits, Values, up_to


@dataclass(frozen=True)
class Nystrom(AttentionOptions):
    """Approximates softmax attention through landmarks, in linear time and without weights. Bidirectional only."""

    landmarks: Count = 64  # number of landmarks; a sequence of at most so many positions is attended to exactly
    iterations: Count = 6  # steps of the iteration towards the pseudo-inverse
    kind: str = field(default="nystrom", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L m d + m^3",
            space="m d + m^2",
            gives_up="what differs between the positions of one run is lost where their queries or keys are averaged, and "
            "it has no causal form",
            causal=False,
            constant_state=False,
            aligned=True,
            mixes_queries=True,
        )

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"landmarks": up_to(length // 2, (8, 16, 32, 64, 128))}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, heads * self.landmarks * (self.landmarks + 2 * head_dim))

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "NystromAttention":
        return NystromAttention(self, heads, head_dim)

    def rank_bound(self, head_dim: int) -> RankBound:
        """The matrix is a product through the landmarks, so its rank is at most their number."""
        return RankBound(self.landmarks, f"{self.landmarks} landmarks")


class NystromAttention(Mechanism):
    """softmax(q k~^T) (softmax(q~ k~^T))^+ softmax(q~ k^T) v, with landmarks q~ and k~."""

    options: Nystrom

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. With as many queries as keys, padding is not part of the queries' landmarks either."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        with without_autocast(q):
            mixed = nystrom.attend(q, k, v, keep, self.options.landmarks, self.options.iterations)
        return check_result(mixed.to(v.dtype), q, k, v, q, k if keep is None else q, v if keep is None else q)
