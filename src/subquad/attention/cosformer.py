"""cosFormer (Qin et al. 2022): linear attention with ReLU features, and weights that fall with the distance as a cosine."""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.attention.base import Mechanism
from subquad.attention.checks import COUNTS, Part, as_state, check_inputs, check_result, check_state, reusable, sums_like
from subquad.checking import Count
from subquad.errors import SubquadError
from subquad.feature_maps.plain import ReluMap
from subquad.ops import linear
from subquad.ops.autocast import precise, prefers_parallel, without_autocast
from subquad.ops.linear import LinearState, native, reference, turned
from subquad.ops.linear.turned import Turns, turn
from subquad.types import (
    AttentionOptions,
    Keep,
    Keys,
    MechanismSize,
    Mixed,
    Queries,
    RankBound,
    Traits,
    Values,
)


@dataclass(frozen=True)
class Cosformer(AttentionOptions):
    """Linear attention that prefers near keys: relu(q) . relu(k) cos(pi/2 (i - j) / max_length)."""

    max_length: Count = 16384  # longest sequence; at this distance weights reach zero
    kind: str = field(default="cosformer", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L m d",
            space="m d",
            gives_up="it weighs keys in a way of its own, so a model is to be trained with it or converted to it, and takes "
            "no sequence longer than it was built for",
            max_length=self.max_length,
            aligned=True,
            has_weights=True,
        )

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, 2 * heads * head_dim * head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "CosformerAttention":
        return CosformerAttention(self, heads, head_dim)

    def rank_bound(self, head_dim: int) -> RankBound:
        return RankBound(2 * head_dim, f"{2 * head_dim} features")

    def for_length(self, length: int) -> "Cosformer":
        return replace(self, max_length=length)


class CosformerState(NamedTuple):
    """The sums of linear attention, and the number of positions so far, which tells the next one's angle."""

    sums: Tensor  # b h m e
    norms: Tensor  # b h m
    peak: Tensor  # b h
    seen: Tensor  # b


class CosformerAttention(Mechanism):
    """Weights relu(q_i) . relu(k_j) cos(pi/2 (i - j) / max_length), divided by their sum.

    That is linear attention with ReLU features of vectors that are turned by the angles of their positions.
    """

    options: Cosformer

    def __init__(self, options: Cosformer, heads: int, head_dim: int) -> None:
        super().__init__(options, heads, head_dim)
        self.feature_map = ReluMap()

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. Queries that are as many as the keys stand at their places, others after them."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        with without_autocast(q):
            turns = self._turns(q, k, keep)
            if self._goes_in_blocks(k):
                mixed = turned.attend(q, k, v, turns, keep)
            else:
                turned_q, turned_k = turn(q, turns.queries), turn(k, turns.keys)
                mixed = linear.attend(turned_q, turned_k, v.to(turned_k.dtype), self.feature_map.sides(), keep)
        return check_result(mixed.to(v.dtype), q, k, v)

    def causal(
        self, q: Queries, k: Keys, v: Values, state: CosformerState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, CosformerState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = None if state is None else self._checked(state, v)
        seen = torch.zeros(len(k), dtype=torch.int64, device=k.device) if before is None else before.seen
        held = None if before is None else LinearState(*before[:3])
        with without_autocast(q):
            turns = self._turns(q, k, keep, seen)
            if self._goes_in_blocks(k):
                mixed, after = turned.attend_causal(q, k, v, turns, held, keep)
            else:
                turned_q, turned_k = turn(q, turns.queries), turn(k, turns.keys)
                values, maps = v.to(turned_k.dtype), self.feature_map.sides()
                mixed, after = linear.attend_causal(turned_q, turned_k, values, maps, held, keep)
        seen = seen + (k.shape[2] if keep is None else keep.sum(1))
        return check_result(mixed.to(v.dtype), q, k, v, state=before), CosformerState(*after, seen)

    def step(
        self, q: Queries, k: Keys, v: Values, state: CosformerState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, CosformerState]:
        """Attends from one position; the fast path of `causal`. With `reuse`, the old state is overwritten."""
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = None if state is None else self._checked(state, v)
        before = reusable(self, before, q, k, v) if reuse else before
        if q.shape[2] != 1 or before is None:
            return self.causal(q, k, v, before)
        with without_autocast(q):
            turns = self._turns(q, k, None, before.seen)
            turned_q, turned_k = turn(q, turns.queries), turn(k, turns.keys)
            values, maps = v.to(turned_k.dtype), self.feature_map.sides()
            mixed, after = linear.step(turned_q, turned_k, values, maps, LinearState(*before[:3]), reuse)
        return check_result(mixed.to(v.dtype), q, k, v, state=before), CosformerState(*after, before.seen + 1)

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """Returns the attention matrix for analysis, or only the rows of the queries at `places`."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        turns = self._turns(q, k, keep)
        turned_q, turned_k = turn(q, turns.queries), turn(k, turns.keys)
        chosen = turned_q if places is None else turned_q[:, :, places]
        return reference.weights(self.feature_map(chosen), self.feature_map(turned_k), keep, causal, places)

    def _goes_in_blocks(self, k: Tensor) -> bool:
        """Whether native kernels take vectors that are turned a block at a time."""
        return not prefers_parallel(k) and native.serves(k) and k.shape[2] > 0

    def _turns(self, q: Tensor, k: Tensor, keep: Tensor | None, seen: Int[Tensor, "b"] | None = None) -> Turns:
        """Returns the turns of queries and keys; real positions count from `seen`."""
        b, n, s = len(k), q.shape[2], k.shape[2]
        start = torch.zeros(b, dtype=torch.int64, device=k.device) if seen is None else seen
        self._require_length(start, s)
        counted = torch.arange(s, device=k.device).expand(b, s) if keep is None else keep.cumsum(1) - 1
        key_places = (start[:, None] + counted).clamp(min=0)  # padding stands where the real position before it does
        of_keys = self.turns_at(key_places, k.dtype)
        if n == s:
            return Turns(of_keys, of_keys)
        total = torch.full((b, 1), s, device=k.device) if keep is None else keep.sum(1, keepdim=True)
        return Turns(self.turns_at((start[:, None] + total).expand(b, n), q.dtype), of_keys)

    def turns_at(self, places: Int[Tensor, "b n"], dtype: torch.dtype) -> Float[Tensor, "b n 2"]:
        """Returns cosine and sine of the angles of places, for vectors of a dtype."""
        longest = self.options.max_length
        angle = places.clamp(max=longest).to(precise(dtype)) * (math.pi / 2 / longest)
        cosine = angle.cos().clamp(min=0)  # pi/2 in float32 is more than pi/2, and its cosine below zero
        return torch.stack([cosine, angle.sin()], dim=-1)

    def with_angles(self, x: Tensor, places: Int[Tensor, "b n"]) -> Float[Tensor, "b h n d2"]:
        """Returns queries or keys, turned by the angles of their places."""
        return turn(x, self.turns_at(places, x.dtype))

    def _require_length(self, start: Int[Tensor, "b"], more: int) -> None:
        """Raises `SubquadError` for too long a sequence; positions in a state are looked at on a CPU only."""
        longest, known = self.options.max_length, start.device.type == "cpu" and not torch.compiler.is_compiling()
        before = int(start.max()) if known and len(start) else 0
        if before + more > longest:
            raise SubquadError(
                f"k has {before + more} positions, but cosformer was built for max_length={longest}: build it with a larger "
                "one"
            )

    def _checked(self, state: CosformerState, v: Tensor) -> CosformerState:
        state = as_state(CosformerState, state)
        b, h, m, types = len(v), self.heads, 2 * self.head_dim, sums_like(v)
        sums = {"sums": Part((b, h, m, v.shape[3]), types), "norms": Part((b, h, m), types), "peak": Part((b, h), types)}
        check_state(state, v, {**sums, "seen": Part((b,), COUNTS)})
        return state
