"""Linear attention (Katharopoulos et al. 2020, *Transformers are RNNs*): a feature map instead of the exponential."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from subquad.attention.base import Mechanism
from subquad.attention.checks import Part, as_state, check_inputs, check_result, check_state, reusable, sums_like
from subquad.feature_maps import Elu, FeatureMap, FeatureMapOptions, Learned, Relu
from subquad.ops import linear
from subquad.ops.linear import LinearState, reference
from subquad.types import AttentionOptions, Keep, Keys, Maps, MechanismSize, Mixed, Queries, RankBound, Traits, Values


@dataclass(frozen=True)
class Linear(AttentionOptions):
    """Attention with its own kernel, in linear time and with a state of constant size; no approximation of softmax."""

    feature_map: FeatureMapOptions = field(default_factory=Elu)  # feature map of queries and keys
    kind: str = field(default="linear", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L m d",
            space="m d",
            gives_up="it weighs keys in a way of its own, so a model is to be trained with it or converted to it, not just "
            "switched",
            has_weights=True,
            starting_gain=self.feature_map.starting_gain,
            calibrates=self.feature_map.calibrates,
        )

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"feature_map": (Elu(), Relu(), Learned())}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return self.feature_map.size(heads=heads, head_dim=head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "LinearAttention":
        feature_map = self.feature_map.build(heads=heads, head_dim=head_dim, generator=generator)
        return LinearAttention(self, feature_map, heads, head_dim)

    def operations(self, length: int, head_dim: int) -> int:
        return feature_operations(self.feature_map, length, head_dim)

    def rank_bound(self, head_dim: int) -> RankBound:
        return feature_rank(self.feature_map, head_dim)


def feature_operations(feature_map: FeatureMapOptions, length: int, head_dim: int) -> int:
    """Operations of linear attention: a key is added to the sums, and a query reads them. Those of features are left out."""
    return 4 * length * feature_map.feature_count(head_dim) * head_dim


def feature_rank(feature_map: FeatureMapOptions, head_dim: int) -> RankBound:
    """Rank bound of linear attention: phi(q) phi(k)^T is a product through m features, so its rank is at most m."""
    features = feature_map.feature_count(head_dim)
    return RankBound(features, f"{features} features")


class LinearAttention(Mechanism):
    """phi(q) (phi(k)^T v) over phi(q) (phi(k)^T 1)."""

    def __init__(self, options: AttentionOptions, feature_map: FeatureMap, heads: int, head_dim: int) -> None:
        super().__init__(options, heads, head_dim)
        self.feature_map = feature_map

    def calibrate(self, q_mean: Tensor, k_mean: Tensor, q_cov: Tensor, k_cov: Tensor) -> None:
        self.feature_map.calibrate(q_mean, k_mean, q_cov, k_cov)

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        maps = self._maps()
        quick = linear.quick_attend(q, k, v, maps, keep)
        return check_result(linear.attend(q, k, v, maps, keep), q, k, v) if quick is None else quick

    def causal(
        self, q: Queries, k: Keys, v: Values, state: LinearState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, LinearState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        before, maps = self._checked(state, v), self._maps()
        quick = linear.quick_causal(q, k, v, maps, before, keep)
        if quick is not None:
            return quick
        mixed, after = linear.attend_causal(q, k, v, maps, before, keep)
        return check_result(mixed, q, k, v, state=before), after

    def step(
        self, q: Queries, k: Keys, v: Values, state: LinearState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, LinearState]:
        """Attends from one position; the fast path of `causal`. With `reuse`, the old state is overwritten."""
        shape = q.shape
        if state is not None and len(shape) == 4 and shape[1] == self.heads and shape[3] == self.head_dim:
            quick = linear.quick_step(q, k, v, self._maps(), state, reuse)
            if quick is not None:
                return quick
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = self._checked(state, v)
        before = reusable(self, before, q, k, v) if reuse else before
        if q.shape[2] != 1:
            return self.causal(q, k, v, before)
        mixed, after = linear.step(q, k, v, self._maps(), before, reuse)
        return check_result(mixed, q, k, v, state=before), after

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """Returns the attention matrix for analysis, or only the rows of the queries at `places`."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        phi_q, phi_k = self.feature_map.sides()
        chosen = q if places is None else q[:, :, places]
        return reference.weights(phi_q(chosen), phi_k(k), keep, causal, places)

    def _maps(self) -> Maps:
        """Returns phi of queries and of keys. The dictionary is asked directly: `self.feature_map` takes a microsecond."""
        feature_map: FeatureMap = self._modules["feature_map"]  # type: ignore[assignment]
        return feature_map.sides()

    def _checked(self, state: LinearState | None, v: Tensor) -> LinearState | None:
        if state is None:
            return None
        state = as_state(LinearState, state)
        b, h, m = len(v), self.heads, self.feature_map.feature_count(self.head_dim)
        types = sums_like(v)
        parts = {"sums": Part((b, h, m, v.shape[3]), types), "norms": Part((b, h, m), types), "peak": Part((b, h), types)}
        check_state(state, v, parts)
        return state
