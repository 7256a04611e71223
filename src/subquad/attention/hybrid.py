"""Exact attention in a sliding window of blocks and linear attention to all the rest, under one normaliser.

What is near needs a matrix of full rank, which no small number of features can give; what is far hardly does. So a trained
model keeps its quality when its attention is swapped for this (after Arora et al. 2024 and Zhang et al. 2024, LoLCATs; there
for decoders, here for both directions).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

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
from subquad.ops import hybrid, linear, reference
from subquad.ops.autocast import product, without_autocast
from subquad.ops.packing import Packed, pack, pick, put, unpack
from subquad.ops.sums import LinearState, empty_state, precise
from subquad.types import AttentionOptions, Features, Keep, Keys, MechanismSize, Mixed, Queries, Room, Traits, Values, Window

Rest = FeatureMapOptions | Literal["none"]


@dataclass(frozen=True)
class Hybrid(AttentionOptions):
    """Exact for neighbours, linear for the rest: in linear time and memory, with a state of constant size."""

    block: Count = 64  # positions; each sees its own block and the neighbouring ones exactly
    rest: Rest = field(default_factory=Learned)  # the feature map through which others are seen; none: not at all
    log_gain: Exponent = -5.0  # at the start, of the rest's weights beside exp(q . k / sqrt d), for each head; it is learned
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
    """Of length zero: all weights are zero, and a window is left alone."""

    def forward(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        return Features(x[..., :0], None)

    def feature_count(self, d: int) -> int:
        return 0


class HybridState(NamedTuple):
    """Of constant size: the last block or two as they are, and the sums of all before them."""

    keys: Tensor  # b h 2c d, then zeros
    values: Tensor  # b h 2c e
    sums: Tensor  # b h m e, as in LinearState
    norms: Tensor  # b h m
    peak: Tensor  # b h
    filled: Tensor  # b, how many keys there are

    @property
    def rest(self) -> LinearState:
        """What is seen through features."""
        return LinearState(self.sums, self.norms, self.peak.detach())


class HybridAttention(Mechanism):
    """Softmax over the near keys, and features for the others in the same sum."""

    options: Hybrid

    def __init__(self, options: Hybrid, feature_map: FeatureMap, heads: int, head_dim: int) -> None:
        super().__init__(options, heads, head_dim)
        self.feature_map = feature_map
        self.log_gain = nn.Parameter(torch.full((heads,), options.log_gain))

    def calibrate(self, q_mean: Tensor, k_mean: Tensor, q_cov: Tensor, k_cov: Tensor) -> None:
        self.feature_map.calibrate(q_mean, k_mean, q_cov, k_cov)

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Queries that are as many as keys are taken to be at their places; others have no neighbours among the keys."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        if q.shape[2] != k.shape[2]:
            return check_result(linear.attend(q, k, v, *self.feature_map.sides(), keep), q, k, v)
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
                rest = empty_state(k, v, self.feature_map.sides()[1])
            else:
                packed, skipped, rest = self._continued(q, k, v, before, keep), 2 * self.options.block, before.rest
            mixed, after = self._attend(packed, rest)
            assert after is not None
            mixed = unpack(packed, mixed)[:, :, skipped:]
            last = self._last(packed, after)
        return check_result(mixed.to(v.dtype), q, k, v, state=before), last

    def step(
        self, q: Queries, k: Keys, v: Values, state: HybridState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, HybridState]:
        """One position, in time that does not depend on how many came before."""
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        state = None if state is None else self._checked(state, v)
        state = reusable(self, state, q, k, v) if reuse else state
        if state is None or q.shape[2] != 1:
            return self.causal(q, k, v, state)
        phi_q, phi_k = self.feature_map.sides()
        with without_autocast(q):
            keys, values = (
                put(held, new.to(held.dtype), state.filled, reuse=reuse)
                for held, new in ((state.keys, k), (state.values, v))
            )
            dtype, block, rest = state.sums.dtype, self.options.block, state.rest
            scores = product(q.to(dtype) * (hybrid.LOG2_E / math.sqrt(self.head_dim)), keys.to(dtype).mT)
            seen = torch.arange(2 * block, device=q.device) <= state.filled[:, None]
            scores = scores.masked_fill(~seen[:, None, None, :], -math.inf)
            near = hybrid.Near(scores[:, :, None], values.to(dtype)[:, :, None])
            sums = torch.cat([state.sums, state.norms[..., None]], dim=-1)[:, :, None]
            queries = hybrid.cut_features(phi_q(q.to(dtype)), 1)
            mixed = hybrid.mix(queries, sums, rest.peak[..., None], near, self.log_gain.to(dtype))[:, :, 0]
            filled = state.filled + 1
            full = filled == 2 * block
            if torch.compiler.is_compiling() or bool(full.any()):
                folded = hybrid.fold(rest, keys[:, :, :block], values[:, :, :block], phi_k)
                rest = LinearState(*(_where(full, new, old) for new, old in zip(folded, rest, strict=True)))
                keys, values = (_where(full, _moved(x, block), x) for x in (keys, values))
                filled = torch.where(full, filled - block, filled)
        after = HybridState(keys, values, *rest, filled)
        return check_result(mixed.to(v.dtype), q, k, v, state=state), after

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """The attention matrix that this would be, for analysis; or its rows at some of the queries' places."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        phi_q, phi_k = self.feature_map.sides()
        if q.shape[2] != k.shape[2]:
            return reference.linear_weights(phi_q(q), phi_k(k), keep, causal)
        some = q if places is None else q[:, :, places]
        gain = self.log_gain.to(q.dtype)
        return reference.hybrid_weights(q, k, phi_q(some), phi_k(k), gain, self.options.block, keep, causal, places)

    def shares(
        self, weights: Float[Tensor, "b h r n"], keep: Keep | None, places: Int[Tensor, "r"]
    ) -> tuple[Float[Tensor, "b h r"], Float[Tensor, "b h r"]]:
        """How much of each row of a matrix lies within the window, and how much beyond it."""
        kept = torch.ones(1, weights.shape[3], dtype=torch.bool, device=weights.device) if keep is None else keep
        near = reference.neighbours(kept, self.options.block)[:, :, places]
        return (weights * near).sum(-1), (weights * ~near).sum(-1)

    def _attend(self, packed: Packed, rest: LinearState | None) -> tuple[Tensor, LinearState | None]:
        gain = self.log_gain.to(precise(packed.k.dtype))
        sides = self.feature_map.sides()
        return hybrid.attend(packed.q, packed.k, packed.v, *sides, gain, packed.total, self.options.block, rest)

    def _continued(self, q: Tensor, k: Tensor, v: Tensor, state: HybridState, keep: Tensor | None) -> Packed:
        """The last blocks and what is new, one behind the other."""
        room = 2 * self.options.block
        held = torch.arange(room, device=q.device) < state.filled[:, None]
        new = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device) if keep is None else keep
        k, v = torch.cat([state.keys.to(k.dtype), k], dim=2), torch.cat([state.values.to(v.dtype), v], dim=2)
        return pack(nn.functional.pad(q, (0, 0, room, 0)), k, v, torch.cat([held, new], dim=1))

    def _last(self, packed: Packed, rest: LinearState) -> HybridState:
        """The state after the last position: the block under way and the one before it stay as they are."""
        block = self.options.block
        start = (packed.total // block - 1).clamp_min(0) * block
        places = start[:, None] + torch.arange(2 * block, device=start.device)
        held = (places < packed.total[:, None])[:, None, :, None]
        k, v = (nn.functional.pad(x, (0, 0, 0, 1)) if x.shape[2] == 0 else x for x in (packed.k, packed.v))
        keys, values = (torch.where(held, pick(x, places.clamp(max=x.shape[2] - 1)), 0.0) for x in (k, v))
        return HybridState(keys, values, *rest, packed.total - start)

    def _checked(self, state: HybridState, v: Tensor) -> HybridState:
        state = as_state(HybridState, state)
        b, h, d, e = len(v), self.heads, self.head_dim, v.shape[3]
        m, room = self.feature_map.feature_count(d), 2 * self.options.block
        held, sums = held_like(v), sums_like(v)
        parts = {
            "keys": Part((b, h, room, d), held),
            "values": Part((b, h, room, e), held),
            "sums": Part((b, h, m, e), sums),
            "norms": Part((b, h, m), sums),
            "peak": Part((b, h), sums),
            "filled": Part((b,), COUNTS),
        }
        check_state(state, v, parts)
        return state


def _where(full: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """By sequence."""
    return torch.where(full.view(-1, *[1] * (old.ndim - 1)), new, old)


def _moved(x: Tensor, block: int) -> Tensor:
    """Without its first block."""
    return nn.functional.pad(x[:, :, block:], (0, 0, 0, block))
