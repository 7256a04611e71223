"""Exact attention in a sliding window, with global tokens and dilation (after Beltagy et al. 2020, Longformer)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

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
)
from subquad.checking import Count, Whole
from subquad.ops import exact, reference, window
from subquad.ops.autocast import without_autocast
from subquad.ops.packing import Packed, pack, unpack
from subquad.ops.window import WindowState
from subquad.ops.window import reference as window_reference
from subquad.types import AttentionOptions, Keep, Keys, MechanismSize, Mixed, Queries, Traits, Values, up_to
from subquad.types import Window as ExactKeys


@dataclass(frozen=True)
class Window(AttentionOptions):
    """Exact attention to near keys and to the first tokens, in linear time and with a state of constant size."""

    reach: Count = 128  # keys that a query sees on each side of itself; the causal form has those before it
    dilation: Count = 1  # distance of neighbouring keys in the window: 2 sees every second position, twice as far
    global_tokens: Whole = 0  # the first positions, which all others see and which see all others
    kind: str = field(default="window", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L (2 r + g) d",
            space="L d",
            gives_up="what is farther than its reach is not seen at all, except through global tokens and further layers",
            window=ExactKeys(1, before=self.reach, after=self.reach) if self.dilation == 1 else None,
            aligned=True,
            has_weights=True,
        )

    @property
    def slots(self) -> int:
        """Number of positions that the state holds: global tokens and a ring of all within reach of the next one."""
        return self.global_tokens + self.reach * self.dilation + 1

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"reach": up_to(length // 2, (8, 16, 32, 64, 128, 256))}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, 2 * heads * head_dim * self.slots)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "WindowAttention":
        return WindowAttention(self, heads, head_dim)


class WindowAttention(Mechanism):
    """softmax(q k^T / sqrt d) v over the keys within reach."""

    options: Window

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. With as many queries as keys, positions correspond; otherwise every key is seen."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        with without_autocast(q):
            if q.shape[2] != k.shape[2]:
                return attend_everywhere(q, k, v, keep)
            packed = pack(q, k, v, keep)
            mixed, normaliser = self._attend(packed, causal=False)
            mixed = unpack(packed, mixed)
        return check_result(mixed.to(v.dtype), q, k, v, *checked_as_well(normaliser, q))

    def causal(
        self, q: Queries, k: Keys, v: Values, state: WindowState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, WindowState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        with without_autocast(q):
            before = None if state is None else self._checked(state, v)
            if before is None:
                packed, skipped = pack(q, k, v, keep), 0
            else:
                packed = window.continue_state(q, k, v, before, keep, self.options.global_tokens)
                skipped = self.options.slots
            mixed, normaliser = self._attend(packed, causal=True)
            mixed = unpack(packed, mixed)[:, :, skipped:]
            last = self._last(packed, before, q, keep)
        return check_result(mixed.to(v.dtype), q, k, v, *checked_as_well(normaliser, q, before), state=before), last

    def step(
        self, q: Queries, k: Keys, v: Values, state: WindowState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, WindowState]:
        """Attends from one position, in time that does not depend on the number of positions before it."""
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        state = None if state is None else self._checked(state, v)
        state = reusable(self, state, q, k, v) if reuse else state
        if state is None or q.shape[2] != 1:
            return self.causal(q, k, v, state)
        with without_autocast(q):
            dilation, global_tokens = self.options.dilation, self.options.global_tokens
            mixed, after = window.step(q, k, v, state, dilation, global_tokens, reuse=reuse)
        return check_result(mixed.to(v.dtype), q, k, v, *checked_as_well(None, q, after), state=state), after

    def remember(self, k: Keys, v: Values, *, keep: Keep | None = None) -> WindowState:
        """Returns the state after these keys and values, without computing attention."""
        return self._last(pack(k, k, v, keep), None, k, keep)

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """Returns the attention matrix for analysis, or only the rows of the queries at `places`."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        if keep is not None:
            k = k.masked_fill(~keep[:, None, :, None], 0.0)
        if q.shape[2] != k.shape[2]:
            return reference.softmax_weights(q, k, keep, causal, places)
        kept = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if keep is None else keep
        options = self.options
        seen = window_reference.visible(kept, options.reach, options.dilation, options.global_tokens, causal)
        return reference.masked_weights(q, k, seen, places)

    def _attend(self, packed: Packed, *, causal: bool) -> tuple[Tensor, Tensor | None]:
        options = self.options
        return window.attend(packed, options.reach, options.dilation, options.global_tokens, causal=causal)

    def _last(self, packed: Packed, before: WindowState | None, q: Tensor, keep: Tensor | None) -> WindowState:
        """Returns the state after packed positions, of which those of `q` are new."""
        new = torch.full((len(q),), q.shape[2], device=q.device) if keep is None else keep.sum(1)
        seen = new if before is None else before.seen + new
        return window.last_state(packed, seen, self.options.slots, self.options.global_tokens)

    def _checked(self, state: WindowState, v: Tensor) -> WindowState:
        state = as_state(WindowState, state)
        shape, types = (len(v), self.heads, self.options.slots), held_like(v)
        held = {"keys": Part((*shape, self.head_dim), types), "values": Part((*shape, v.shape[3]), types)}
        check_state(state, v, {**held, "seen": Part((len(v),), COUNTS)})
        return state


def attend_everywhere(q: Queries, k: Keys, v: Values, keep: Keep | None) -> Mixed:
    """Softmax attention to all keys, for queries that have no places among them."""
    if keep is None:
        mixed = exact.attend(q, k, v)
    else:
        k, v = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (k, v))
        mixed = exact.attend(q, k, v, keep[:, None, None, :])
    return check_result(mixed, q, k, v, q, k, v)


def checked_as_well(normaliser: Tensor | None, q: Tensor, state: tuple[Tensor, ...] | None = None) -> list[Tensor]:
    """Returns what has to be finite besides the result: fused attention may turn NaN into zeros, and hide unseen keys."""
    return [q, *([] if normaliser is None else [normaliser]), *([] if state is None else state[:2])]
