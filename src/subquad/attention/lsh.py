"""Reformer's attention (Kitaev et al. 2020): exact weights for the keys that fall into a query's bucket of a hash."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Mechanism
from subquad.attention.checks import (
    COUNTS,
    FLAGS,
    Part,
    as_state,
    check_inputs,
    check_result,
    check_state,
    held_like,
    reusable,
)
from subquad.checking import AtLeastTwo, Count
from subquad.errors import SubquadError
from subquad.ops import lsh
from subquad.ops.autocast import without_autocast
from subquad.types import AttentionOptions, Keep, Keys, MechanismSize, Mixed, Queries, Traits, Values, up_to


@dataclass(frozen=True)
class Lsh(AttentionOptions):
    """Attention to keys in the same bucket of a locality-sensitive hash, in linear time and memory."""

    rounds: Count = 2  # number of hashes; a query sees the keys that any of them puts into its bucket
    buckets: AtLeastTwo = 32  # number of buckets of a hash, an even number
    chunk: Count = 32  # keys of a bucket that are seen together; a query sees its own chunk and the one before
    shared: bool = True  # whether a position asks with its key, as in the paper; if not, queries are hashed by themselves
    kind: str = field(default="lsh", init=False)

    def check(self) -> None:
        if self.buckets % 2:
            raise SubquadError(f"buckets must be even, as they are directions and their opposites, but is {self.buckets}")

    @property
    def traits(self) -> Traits:
        asks = "a position asks with its key and its query is not read, " if self.shared else ""
        return Traits(
            exact=False,
            time="L r c d",
            space="L r d",
            gives_up=f"{asks}keys that no hash puts into the query's bucket are not seen, nor those far back in a bucket, "
            "and its decoding state grows with the length",
            constant_state=False,
            aligned=True,
            redraws=True,
        )

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"rounds": (1, 2, 4), "chunk": up_to(length // 2, (8, 16, 32, 64))}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(heads * self.rounds * head_dim * (self.buckets // 2), 0)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "LshAttention":
        return LshAttention(self, heads, head_dim, generator)


class LshState(NamedTuple):
    """All keys and values so far, and their buckets; it grows with every position."""

    keys: Tensor  # b h s d
    values: Tensor  # b h s e
    keep: Tensor  # b s, True for real keys
    buckets: Tensor  # b h rounds s


class LshAttention(Mechanism):
    """softmax(q k^T / sqrt d) v over the keys that share a bucket with the query in at least one round."""

    options: Lsh
    rotations: Float[Tensor, "h r d half"]

    def __init__(self, options: Lsh, heads: int, head_dim: int, generator: torch.Generator | None) -> None:
        super().__init__(options, heads, head_dim)
        shape = (heads, options.rounds, head_dim, options.buckets // 2)
        self.register_buffer("rotations", torch.randn(shape, generator=generator))

    def redraw(self, generator: torch.Generator) -> None:
        """Draws the directions of the hashes anew. States that were made before do not fit afterwards."""
        drawn = torch.randn(self.rotations.shape, generator=generator, device=generator.device)
        self.rotations.copy_(drawn)

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. Queries that are as many as the keys stand at their places, others after them."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        if keep is not None:
            k, v = _blanked(k, keep), _blanked(v, keep)
        with without_autocast(q):
            seen = self._extended(k, v, keep, None)
            mixed = self._mix(q, seen, keep, causal=False, aligned=q.shape[2] == k.shape[2])
        return check_result(mixed.to(v.dtype), q, k, v, q, k, v)

    def causal(
        self, q: Queries, k: Keys, v: Values, state: LshState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, LshState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = None if state is None else self._checked(state, v)
        if keep is not None:
            k, v = _blanked(k, keep), _blanked(v, keep)
        with without_autocast(q):
            after = self._extended(k, v, keep, before)
            mask = None if keep is None and before is None else after.keep
            mixed = self._mix(q, after, mask, causal=True, aligned=True)
        return check_result(mixed.to(v.dtype), q, k, v, q, k, v, state=before), after

    def step(
        self, q: Queries, k: Keys, v: Values, state: LshState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, LshState]:
        """Attends from one position, which reads the keys of its buckets only. The state grows: `reuse` has no effect."""
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = None if state is None else self._checked(state, v)
        if reuse:
            reusable(self, before, q, k, v)
        return self.causal(q, k, v, before)

    def remember(self, k: Keys, v: Values, *, keep: Keep | None = None) -> LshState:
        """Returns the keys and values as a state, without computing attention."""
        if keep is not None:
            k, v = _blanked(k, keep), _blanked(v, keep)
        with without_autocast(k):
            return self._extended(k, v, keep, None)

    def _extended(self, k: Tensor, v: Tensor, keep: Tensor | None, before: LshState | None) -> LshState:
        """Returns the state with these keys and values, which are zero at padding, after those in `before`."""
        if keep is None:
            keep = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        new = LshState(k, v, keep, lsh.buckets_of(k, self.rotations))
        if before is None:
            return new
        before = before._replace(keys=before.keys.to(k.dtype), values=before.values.to(v.dtype))
        keys, values = (torch.cat(parts, dim=2) for parts in ((before.keys, k), (before.values, v)))
        mask = torch.cat([before.keep, keep], dim=1)
        return LshState(keys, values, mask, torch.cat([before.buckets, new.buckets], dim=3))

    def _mix(self, q: Tensor, seen: LshState, keep: Tensor | None, *, causal: bool, aligned: bool) -> Tensor:
        """Computes attention to a state; aligned queries stand at the places of its last keys.

        Without `keep`, all keys are real.
        """
        options, k = self.options, seen.keys
        asks_with_keys = options.shared and aligned
        if asks_with_keys:
            first = k.shape[2] - q.shape[2]
            q, query_buckets = k[:, :, first:], seen.buckets[..., first:]
        else:
            query_buckets = lsh.buckets_of(q, self.rotations)
        if causal and q.shape[2] == 1:
            held = (q, k, seen.values, query_buckets, seen.buckets, seen.keep)
            return lsh.attend_last(*held, chunk=options.chunk, shared=options.shared)
        return lsh.attend(
            None if asks_with_keys and q.shape[2] == k.shape[2] else q,
            k,
            seen.values,
            query_buckets,
            seen.buckets,
            keep,
            buckets=options.buckets,
            chunk=options.chunk,
            causal=causal,
            aligned=aligned,
            shared=options.shared,
        )

    def _checked(self, state: LshState, v: Tensor) -> LshState:
        state = as_state(LshState, state)
        b, h, s, types = len(v), self.heads, state.keep.shape[-1] if state.keep.ndim else 0, held_like(v)
        held = {"keys": Part((b, h, s, self.head_dim), types), "values": Part((b, h, s, v.shape[3]), types)}
        buckets = Part((b, h, self.options.rounds, s), COUNTS)
        check_state(state, v, {**held, "keep": Part((b, s), FLAGS), "buckets": buckets})
        return state


def _blanked(x: Tensor, keep: Tensor) -> Tensor:
    """Sets padding to zero, since NaN times a weight of zero would still be NaN."""
    return x.masked_fill(~keep[:, None, :, None], 0.0)
