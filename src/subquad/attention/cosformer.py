"""cosFormer (Qin et al. 2022): linear attention with ReLU features, and weights that fall with the distance as a cosine."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.attention.base import Mechanism
from subquad.attention.checks import COUNTS, Part, as_state, check_inputs, check_result, check_state, reusable, sums_like
from subquad.checking import Count
from subquad.errors import SubquadError
from subquad.feature_maps import FeatureMap
from subquad.ops import linear, pages
from subquad.ops.autocast import needs_gradient, precise, prefers_parallel, without_autocast
from subquad.ops.linear import LinearState, native, reference
from subquad.ops.linear.sums import blocks
from subquad.types import (
    AttentionOptions,
    Features,
    Keep,
    Keys,
    MechanismSize,
    Mixed,
    Queries,
    RankBound,
    Scratch,
    Traits,
    Values,
)

BLOCK = 2048
"""Positions whose angles are joined to their vectors together if no gradient is needed: so many stay in the cache."""


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


class CosineMap(FeatureMap):
    """[relu(x) cos a, relu(x) sin a], for vectors that end with cos a and sin a of their position's angle a.

    The product of two of them is relu(q) . relu(k) cos(a_q - a_k). A feature function gets vectors only, block by block, so
    the angle travels with the vector, as two numbers more, instead of through all forms of linear attention.
    """

    def forward(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        y, cosine, sine = x.split([x.shape[-1] - 2, 1, 1], dim=-1)
        if scratch is None:
            y = y.clamp(min=0)
            return Features(torch.cat([y * cosine, y * sine], dim=-1), None)
        out = scratch.take(*y.shape[:-1], 2 * y.shape[-1])
        first, second = out.chunk(2, dim=-1)
        torch.clamp(y, min=0, out=first)
        torch.mul(first, sine, out=second)
        first.mul_(cosine)
        return Features(out, None)

    def feature_count(self, d: int) -> int:
        return 2 * (d - 2)

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The derivative is the cosine and the sine where x is above zero; positions have none."""
        y, cosine, sine = x.split([x.shape[-1] - 2, 1, 1], dim=-1)
        first, second = gradient.chunk(2, dim=-1)
        for_x = torch.zeros_like(x)
        torch.mul(first, cosine, out=for_x[..., :-2]).addcmul_(second, sine).mul_(y > 0)
        return (for_x,)


class _Joined(torch.autograd.Function):
    """Vectors with numbers behind them that have no gradient, in large pages where `torch.cat` would take small ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, more: Tensor) -> Tensor:
        joined = pages.new_empty(x, *x.shape[:-1], x.shape[-1] + more.shape[-1])
        joined[..., : x.shape[-1]], joined[..., x.shape[-1] :] = x, more
        ctx.width = x.shape[-1]
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[..., : ctx.width], None


class CosformerState(NamedTuple):
    """The sums of linear attention, and the number of positions so far, which tells the next one's angle."""

    sums: Tensor  # b h m e
    norms: Tensor  # b h m
    peak: Tensor  # b h
    seen: Tensor  # b


class CosformerAttention(Mechanism):
    """Weights relu(q_i) . relu(k_j) cos(pi/2 (i - j) / max_length), divided by their sum."""

    options: Cosformer

    def __init__(self, options: Cosformer, heads: int, head_dim: int) -> None:
        super().__init__(options, heads, head_dim)
        self.feature_map = CosineMap()

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. Queries that are as many as the keys stand at their places, others after them."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        with without_autocast(q):
            if self._goes_in_blocks(q, k, v):
                mixed = self._mix_in_blocks(q, k, v, keep)
            else:
                placed_q, placed_k = self._placed(q, k, keep)
                mixed = linear.attend(placed_q, placed_k, v.to(placed_k.dtype), self.feature_map.sides(), keep)
        return check_result(mixed.to(v.dtype), q, k, v)

    def causal(
        self, q: Queries, k: Keys, v: Values, state: CosformerState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, CosformerState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = None if state is None else self._checked(state, v)
        with without_autocast(q):
            if self._goes_in_blocks(q, k, v, *(before or ())[:3]):
                mixed, after = self._continue_in_blocks(q, k, v, before, keep)
            else:
                mixed, after = self._continue(q, k, v, before, keep)
        return check_result(mixed.to(v.dtype), q, k, v, state=before), after

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
            placed_q, placed_k = self._placed(q, k, None, before.seen)
            values, maps = v.to(placed_k.dtype), self.feature_map.sides()
            mixed, after = linear.step(placed_q, placed_k, values, maps, LinearState(*before[:3]), reuse)
        return check_result(mixed.to(v.dtype), q, k, v, state=before), CosformerState(*after, before.seen + 1)

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """Returns the attention matrix for analysis, or only the rows of the queries at `places`."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        placed_q, placed_k = self._placed(q, k, keep)
        chosen = placed_q if places is None else placed_q[:, :, places]
        return reference.weights(self.feature_map(chosen), self.feature_map(placed_k), keep, causal, places)

    def _continue(
        self, q: Tensor, k: Tensor, v: Tensor, before: CosformerState | None, keep: Tensor | None
    ) -> tuple[Tensor, CosformerState]:
        """Returns the mixed values of some positions, and the state after them."""
        seen = torch.zeros(len(k), dtype=torch.int64, device=k.device) if before is None else before.seen
        placed_q, placed_k = self._placed(q, k, keep, seen)
        held = None if before is None else LinearState(*before[:3])
        values, maps = v.to(placed_k.dtype), self.feature_map.sides()
        mixed, after = linear.attend_causal(placed_q, placed_k, values, maps, held, keep)
        return mixed, CosformerState(*after, seen + (k.shape[2] if keep is None else keep.sum(1)))

    def _continue_in_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, before: CosformerState | None, keep: Tensor | None
    ) -> tuple[Tensor, CosformerState]:
        """Returns what `_continue` returns, with as little memory as a block needs."""
        state, mixed = before, new_values(q, v)
        self._require_length(torch.zeros(len(k), dtype=torch.int64) if before is None else before.seen, k.shape[2])
        for block in blocks(q.shape[2], BLOCK):
            keep_block = None if keep is None else keep[:, block]
            mixed[:, :, block], state = self._continue(q[:, :, block], k[:, :, block], v[:, :, block], state, keep_block)
        assert state is not None
        return mixed, state

    def _goes_in_blocks(self, q: Tensor, *others: Tensor) -> bool:
        """Whether vectors are joined with their angles a block at a time: by native kernels, and without gradients."""
        if prefers_parallel(q) or needs_gradient(q, *others) or not native.serves(q):
            return False
        return max(q.shape[2], others[0].shape[2]) > BLOCK and others[0].shape[2] > 0

    def _mix_in_blocks(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """Returns the mixed values of the bidirectional form, from sums over blocks of keys."""
        maps, dtype = self.feature_map.sides(), precise(q.dtype)
        query_places, key_places = self._places(q, k, keep)
        state: LinearState | None = None
        for block in blocks(k.shape[2], BLOCK):
            placed = self.with_angles(k[:, :, block], key_places[:, block])
            part = native.sum_keys(placed, v[:, :, block].to(dtype), maps, None if keep is None else keep[:, block])
            state = part if state is None else LinearState(state.sums + part.sums, state.norms + part.norms, part.peak)
        assert state is not None
        mixed, empty = new_values(q, v), v[:, :, :0].to(dtype)
        for block in blocks(q.shape[2], BLOCK):
            placed = self.with_angles(q[:, :, block], query_places[:, block])
            mixed[:, :, block] = native.read_sums(placed, empty, state, maps)
        return mixed

    def _placed(
        self, q: Tensor, k: Tensor, keep: Tensor | None, seen: Int[Tensor, "b"] | None = None
    ) -> tuple[Float[Tensor, "b h n d2"], Float[Tensor, "b h s d2"]]:
        """Returns queries and keys with the cosine and sine of their angles; real positions count from `seen`."""
        query_places, key_places = self._places(q, k, keep, seen)
        return self.with_angles(q, query_places), self.with_angles(k, key_places)

    def _places(
        self, q: Tensor, k: Tensor, keep: Tensor | None, seen: Int[Tensor, "b"] | None = None
    ) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b s"]]:
        """Returns the places of queries and keys; real positions count from `seen`."""
        b, n, s = len(k), q.shape[2], k.shape[2]
        start = torch.zeros(b, dtype=torch.int64, device=k.device) if seen is None else seen
        self._require_length(start, s)
        counted = torch.arange(s, device=k.device).expand(b, s) if keep is None else keep.cumsum(1) - 1
        key_places = (start[:, None] + counted).clamp(min=0)  # padding stands where the real position before it does
        total = torch.full((b, 1), s, device=k.device) if keep is None else keep.sum(1, keepdim=True)
        return key_places if n == s else (start[:, None] + total).expand(b, n), key_places

    def with_angles(self, x: Tensor, places: Int[Tensor, "b n"]) -> Float[Tensor, "b h n d2"]:
        """Returns queries or keys with the cosine and sine of the angles of their places."""
        b, h, n, _ = x.shape
        dtype = precise(x.dtype)
        angle = places.clamp(max=self.options.max_length).to(dtype) * (math.pi / 2 / self.options.max_length)
        turned = torch.stack([angle.cos(), angle.sin()], dim=-1)[:, :, None].expand(b, n, h, 2)
        # the heads of a position are next to each other in memory, so that merging heads is free
        vectors = x.transpose(1, 2).to(dtype)
        if prefers_parallel(x):
            return torch.cat([vectors, turned], dim=-1).transpose(1, 2)
        joined: Tensor = _Joined.apply(vectors, turned)  # type: ignore[no-untyped-call]
        return joined.transpose(1, 2)

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


def new_values(q: Float[Tensor, "b h n d"], v: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h n e"]:
    """Allocates mixed values, with the heads of a position next to each other in memory, so that merging heads is free."""
    b, h, n, _ = q.shape
    return pages.new_empty(v, b, n, h, v.shape[3]).transpose(1, 2)
