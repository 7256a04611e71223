"""Softmax attention: the baseline, through PyTorch's fused kernels."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from subquad.attention.base import Mechanism
from subquad.attention.checks import FLAGS, Part, as_state, check_inputs, check_result, check_state, held_like, reusable
from subquad.ops import exact, reference
from subquad.ops.autocast import precise
from subquad.types import AttentionOptions, Keep, Keys, MechanismSize, Mixed, Queries, Traits, Values


@dataclass(frozen=True)
class Softmax(AttentionOptions):
    """Exact attention; time is quadratic in the length, and the state of a decoder grows linearly."""

    materialised: bool = False  # whether to compute the whole attention matrix, for comparison
    kind: str = field(default="softmax", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=True,
            time="L^2 d",
            space="L^2" if self.materialised else "L d",
            gives_up="nothing but time: it is the exact one, and its decoding state grows with the length",
            constant_state=False,
            has_weights=True,
        )

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, 0)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "SoftmaxAttention":
        return SoftmaxAttention(self, heads, head_dim)


class SoftmaxState(NamedTuple):
    """All keys and values so far; it grows with every position."""

    keys: Tensor  # b h s d
    values: Tensor  # b h s e
    keep: Tensor  # b s, True for real keys


class SoftmaxAttention(Mechanism):
    """softmax(q k^T / sqrt d) v."""

    options: Softmax

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        if keep is not None:
            k, v = _blanked(k, keep), _blanked(v, keep)
        return check_result(self._mix(q, k, v, keep, causal=False), q, k, v, q, k, v)

    def causal(
        self, q: Queries, k: Keys, v: Values, state: SoftmaxState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, SoftmaxState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        mask = keep
        if keep is None:
            keep = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        else:
            k, v = _blanked(k, keep), _blanked(v, keep)
        new, before = (q, k, v), None
        if state is not None:
            before = self._checked(state, v)
            k, v = torch.cat([before.keys.to(k.dtype), k], dim=2), torch.cat([before.values.to(v.dtype), v], dim=2)
            mask = keep = torch.cat([before.keep, keep], dim=1)
        mixed = self._mix(q, k, v, mask, causal=True)
        return check_result(mixed, *new, *new, state=before), SoftmaxState(k, v, keep)

    def step(
        self, q: Queries, k: Keys, v: Values, state: SoftmaxState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, SoftmaxState]:
        """Attends from one position. The state grows, so `reuse` has no effect."""
        if reuse:
            reusable(self, None if state is None else as_state(SoftmaxState, state), q, k, v)
        return self.causal(q, k, v, state)

    def remember(self, k: Keys, v: Values, *, keep: Keep | None = None) -> SoftmaxState:
        """Returns the keys and values as a state, without computing attention."""
        return SoftmaxState(k, v, k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if keep is None else keep)

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """Returns the attention matrix for analysis, or only the rows of the queries at `places`."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        return reference.softmax_weights(q, k if keep is None else _blanked(k, keep), keep, causal, places)

    def _checked(self, state: SoftmaxState, v: Tensor) -> SoftmaxState:
        state = as_state(SoftmaxState, state)
        b, h, s, types = len(v), self.heads, state.keep.shape[-1] if state.keep.ndim else 0, held_like(v)
        held = {"keys": Part((b, h, s, self.head_dim), types), "values": Part((b, h, s, v.shape[3]), types)}
        check_state(state, v, {**held, "keep": Part((b, s), FLAGS)})
        return state

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
        """Computes attention; if causal, the last query is aligned with the last key."""
        if self.options.materialised:
            q, k = q.to(precise(q.dtype)), k.to(precise(k.dtype))
            return reference.attend(reference.softmax_weights(q, k, keep, causal).to(v.dtype), v)
        if keep is None:
            return exact.attend(q, k, v, causal=causal)
        if causal and q.shape[2] > 1:
            mask = reference.visible(q.shape[2], k.shape[2], keep, causal, q.device)
        else:
            mask = keep[:, None, None, :]
        return exact.attend(q, k, v, mask)


def _blanked(x: Tensor, keep: Tensor) -> Tensor:
    """Sets padding to zero, since NaN times a weight of zero would still be NaN."""
    return x.masked_fill(~keep[:, None, :, None], 0.0)
