"""Multi-head attention: projections around a mechanism."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention import built, require_causal, traits_of
from subquad.errors import SubquadError
from subquad.models.positions import Rotation, rotate
from subquad.types import AttentionOptions


class Projected(NamedTuple):
    """Keys and values of a context, which a decoder computes once and uses in every step."""

    k: Float[Tensor, "b h s d"]
    v: Float[Tensor, "b h s d"]


class MultiheadAttention(nn.Module):
    """Multi-head attention with any mechanism. Inputs are batch first.

    Keys and values may have fewer heads than queries (`kv_heads`), each shared by a group of neighbouring query heads.
    A `rotation` rotates queries and keys by their positions (rotary position embedding).
    """

    def __init__(
        self,
        model_dim: int,
        *,
        heads: int,
        attention: AttentionOptions | nn.Module,
        kv_heads: int | None = None,
        context_dim: int | None = None,
        bias: bool = True,
        starting_gain: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the projections, and the mechanism if its options are given.

        Args:
            model_dim: dimension of each position's vector.
            heads: number of query heads, each of dimension model_dim / heads.
            attention: options of a mechanism, such as ``Favor()``, or a mechanism built for these heads.
            kv_heads: number of heads of keys and values; equal to heads by default.
            context_dim: dimension of a context's vectors; model_dim by default.
            bias: whether the projections have biases.
            starting_gain: factor on the initial query and key projections; that of the attention by default.
            generator: random generator for the initial weights.
        """
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or model_dim % heads:
            raise SubquadError(f"model_dim must be a multiple of heads, but is {model_dim} for {heads} heads")
        if kv_heads < 1 or heads % kv_heads:
            raise SubquadError(f"kv_heads must divide the {heads} heads, but is {kv_heads}")
        head_dim = model_dim // heads
        attend = built(attention, heads=heads, head_dim=head_dim, generator=generator)
        self.attend: Any = attend
        self.model_dim, self.context_dim = model_dim, context_dim or model_dim
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.to_q = nn.Linear(model_dim, model_dim, bias=bias)
        self.to_k = nn.Linear(self.context_dim, kv_heads * self.head_dim, bias=bias)
        self.to_v = nn.Linear(self.context_dim, kv_heads * self.head_dim, bias=bias)
        self.to_out = nn.Linear(model_dim, model_dim, bias=bias)
        gain = starting_gain
        if gain is None:
            traits = traits_of(attend)
            gain = 1.0 if traits is None else traits.starting_gain
        for layer, scale in ((self.to_q, gain), (self.to_k, gain), (self.to_v, 1.0), (self.to_out, 1.0)):
            nn.init.xavier_uniform_(layer.weight, gain=scale, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Float[Tensor, "b n w"],
        context: Float[Tensor, "b s c"] | Projected | None = None,
        *,
        keep: Bool[Tensor, "b s"] | None = None,
        rotation: Rotation | None = None,
    ) -> Float[Tensor, "b n w"]:
        """Attends from every position of x to every kept position of the context, by default x itself."""
        _check("x", x, self.model_dim)
        projected = context if isinstance(context, Projected) else self.project(x if context is None else context)
        q, k = self._queries(x), projected.k
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        mixed: Tensor = self.attend(q, k, projected.v, keep=keep)
        return self._merge(mixed)

    def causal(
        self,
        x: Float[Tensor, "b n w"],
        state: Any = None,
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        rotation: Rotation | None = None,
    ) -> tuple[Float[Tensor, "b n w"], Any]:
        """Attends causally: position i sees the state and positions up to i. Returns the output and the new state."""
        mixed, state = self._causal().causal(*self._turned(x, rotation), state, keep=keep)
        return self._merge(mixed), state

    def step(
        self, x: Float[Tensor, "b 1 w"], state: Any = None, *, rotation: Rotation | None = None, reuse: bool = False
    ) -> tuple[Float[Tensor, "b 1 w"], Any]:
        """Attends from one position; the fast path of `causal`. With `reuse`, the old state is overwritten."""
        mixed, state = self._causal().step(*self._turned(x, rotation), state, reuse=reuse)
        return self._merge(mixed), state

    def project(self, context: Float[Tensor, "b s c"]) -> Projected:
        """Computes the keys and values of a context, to be passed to `forward` repeatedly."""
        _check("context", context, self.context_dim)
        k, v = (
            project(context).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
            for project in (self.to_k, self.to_v)
        )
        if self.kv_heads != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        return Projected(k, v)

    def _causal(self) -> Any:
        require_causal(self.attend)
        return self.attend

    def _turned(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q, k and v of self-attention, with q and k rotated if there is a rotation."""
        _check("x", x, self.model_dim)
        q, (k, v) = self._queries(x), self.project(x)
        return (q, k, v) if rotation is None else (rotate(q, rotation), rotate(k, rotation), v)

    def _queries(self, x: Tensor) -> Tensor:
        split: Tensor = self.to_q(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        return split

    def _merge(self, mixed: Tensor) -> Tensor:
        merged: Tensor = self.to_out(mixed.transpose(1, 2).flatten(2))
        return merged


def _check(name: str, x: Tensor, dim: int) -> None:
    if x.ndim != 3 or x.shape[-1] != dim:
        raise SubquadError(f"{name} must be (batch, positions, {dim}), but its shape is {tuple(x.shape)}")
