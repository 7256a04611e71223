"""Exact attention in a sliding window of blocks and linear attention to all other keys, with one normaliser.

Attention to near keys needs a matrix of high rank, which few features cannot give; attention to far keys hardly does. A
trained model therefore keeps its quality when its attention is replaced by this one (after Arora et al. 2024 and Zhang et
al. 2024, LoLCATs, where it is for decoders; here it is also bidirectional).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.attention.base import Mechanism
from subquad.attention.checks import (
    COUNTS,
    Part,
    as_state,
    check_inputs,
    check_result,
    check_state,
    held_like,
    reusable,
    sums_like,
)
from subquad.checking import Count, Exponent
from subquad.feature_maps import FeatureMap, FeatureMapOptions, Learned
from subquad.ops import hybrid, linear
from subquad.ops.autocast import precise, without_autocast
from subquad.ops.hybrid import HybridState, reference
from subquad.ops.linear import LinearState
from subquad.ops.linear import reference as linear_reference
from subquad.ops.packing import Packed, pack, unpack
from subquad.types import (
    AttentionOptions,
    Features,
    Keep,
    Keys,
    MechanismSize,
    Mixed,
    Queries,
    Scratch,
    Traits,
    Values,
    Window,
    up_to,
)

Rest = FeatureMapOptions | Literal["none"]


@dataclass(frozen=True)
class Hybrid(AttentionOptions):
    """Exact attention to near keys and linear attention to far keys, in linear time and with a state of constant size."""

    block: Count = 64  # block length; a position attends exactly to its own and the neighbouring blocks
    rest: Rest = field(default_factory=Learned)  # feature map for far keys; none: far keys are ignored
    log_gain: Exponent = -5.0  # initial log factor of the far keys' weights; learned for each head
    kind: str = field(default="hybrid", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L (3 B + m) d",
            space="L (3 B + m d / B)",
            gives_up="what is farther than a block or two is weighed by features, not exactly",
            window=Window(self.block, before=1, after=1),
            aligned=True,
            has_weights=True,
            calibrates=not isinstance(self.rest, str) and self.rest.calibrates,
            has_gain=not isinstance(self.rest, str),
        )

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"block": up_to(length // 2, (8, 16, 32, 64, 128))}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        rest = MechanismSize(0, 0) if isinstance(self.rest, str) else self.rest.size(heads=heads, head_dim=head_dim)
        return MechanismSize(heads + rest.numbers, rest.state + 2 * heads * self.block * head_dim, rest.derived)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "HybridAttention":
        if isinstance(self.rest, str):
            return HybridAttention(self, NoFeatures(), heads, head_dim)
        return HybridAttention(self, self.rest.build(heads=heads, head_dim=head_dim, generator=generator), heads, head_dim)

    def without_far_keys(self) -> "Hybrid":
        return replace(self, rest="none")


class NoFeatures(FeatureMap):
    """A map to zero features, with which far keys have no weight and only the window remains."""

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        return Features(x[..., :0], None)

    def feature_count(self, d: int) -> int:
        return 0


class HybridAttention(Mechanism):
    """Softmax weights for near keys and feature products for far keys, normalised together."""

    options: Hybrid

    def __init__(self, options: Hybrid, feature_map: FeatureMap, heads: int, head_dim: int) -> None:
        super().__init__(options, heads, head_dim)
        self.feature_map = feature_map
        self.log_gain = nn.Parameter(torch.full((heads,), options.log_gain))

    def calibrate(self, q_mean: Tensor, k_mean: Tensor, q_cov: Tensor, k_cov: Tensor) -> None:
        self.feature_map.calibrate(q_mean, k_mean, q_cov, k_cov)

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. With as many queries as keys, positions correspond; otherwise all keys are far."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        if q.shape[2] != k.shape[2]:
            return check_result(linear.attend(q, k, v, self.feature_map.sides(), keep), q, k, v)
        with without_autocast(q):
            packed = pack(q, k, v, keep)
            mixed = unpack(packed, self._attend(packed, None)[0])
        return check_result(mixed.to(v.dtype), q, k, v)

    def causal(
        self, q: Queries, k: Keys, v: Values, state: HybridState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, HybridState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        with without_autocast(q):
            before = None if state is None else self._checked(state, v)
            if before is None:
                packed, skipped = pack(q, k, v, keep), 0
                rest = linear.empty_state(k, v, self.feature_map.sides().keys)
            else:
                packed, skipped = hybrid.continue_state(q, k, v, before, keep), 2 * self.options.block
                rest = hybrid.far_state(before)
            mixed, after = self._attend(packed, rest)
            assert after is not None
            mixed = unpack(packed, mixed)[:, :, skipped:]
            last = hybrid.last_state(packed, after, self.options.block)
        return check_result(mixed.to(v.dtype), q, k, v, state=before), last

    def step(
        self, q: Queries, k: Keys, v: Values, state: HybridState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, HybridState]:
        """Attends from one position, in time that does not depend on the number of positions before it."""
        if reuse and state is not None and q.shape[1:] == (self.heads, 1, self.head_dim):
            maps, block = self.feature_map.sides(), self.options.block
            quick = hybrid.quick_step(q, k, v, maps, state, self.log_gain, block)
            if quick is not None:
                mixed, after, is_finite = quick
                return mixed if is_finite else check_result(mixed, q, k, v, state=after), after
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        state = None if state is None else self._checked(state, v)
        state = reusable(self, state, q, k, v) if reuse else state
        if state is None or q.shape[2] != 1:
            return self.causal(q, k, v, state)
        with without_autocast(q):
            maps, block = self.feature_map.sides(), self.options.block
            mixed, after = hybrid.step(q, k, v, maps, state, self.log_gain, block, reuse=reuse)
        return check_result(mixed.to(v.dtype), q, k, v, state=state), after

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """Returns the attention matrix for analysis, or only the rows of the queries at `places`."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        phi_q, phi_k = self.feature_map.sides()
        if q.shape[2] != k.shape[2]:
            return linear_reference.weights(phi_q(q), phi_k(k), keep, causal)
        chosen = q if places is None else q[:, :, places]
        gain = self.log_gain.to(q.dtype)
        return reference.weights(q, k, phi_q(chosen), phi_k(k), gain, self.options.block, keep, causal, places)

    def shares(
        self, weights: Float[Tensor, "b h r n"], keep: Keep | None, places: Int[Tensor, "r"]
    ) -> tuple[Float[Tensor, "b h r"], Float[Tensor, "b h r"]]:
        """Returns the weight of each row of an attention matrix within the window, and beyond it."""
        kept = torch.ones(1, weights.shape[3], dtype=torch.bool, device=weights.device) if keep is None else keep
        near = reference.neighbours(kept, self.options.block)[:, :, places]
        return (weights * near).sum(-1), (weights * ~near).sum(-1)

    def _attend(self, packed: Packed, rest: LinearState | None) -> tuple[Tensor, LinearState | None]:
        gain = self.log_gain.to(precise(packed.k.dtype))
        maps = self.feature_map.sides()
        return hybrid.attend(packed.q, packed.k, packed.v, maps, rest, packed.total, gain, self.options.block)

    def _checked(self, state: HybridState, v: Tensor) -> HybridState:
        state = as_state(HybridState, state)
        b, h, d, e = len(v), self.heads, self.head_dim, v.shape[3]
        m, size = self.feature_map.feature_count(d), 2 * self.options.block
        held, sums = held_like(v), sums_like(v)
        parts = {
            "keys": Part((b, h, size, d), held),
            "values": Part((b, h, size, e), held),
            "sums": Part((b, h, m, e), sums),
            "norms": Part((b, h, m), sums),
            "peak": Part((b, h), sums),
            "filled": Part((b,), COUNTS),
        }
        check_state(state, v, parts)
        return state
