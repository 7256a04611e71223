"""Multi-head attention: projections around a mechanism."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention import built, require_causal, traits_of
from subquad.errors import SubquadError
from subquad.models.dense import Dense
from subquad.models.initialising import initialise
from subquad.models.positions import Rotation, rotate
from subquad.types import AttentionOptions


class Projected(NamedTuple):
    """Keys and values of a context, which a decoder computes once and uses in every step."""

    k: Float[Tensor, "b h s d"]
    v: Float[Tensor, "b h s d"]


class Weighing(NamedTuple):
    """Queries and keys of a layer, rotated if there is a rotation. They determine its attention weights."""

    q: Float[Tensor, "b h n d"]
    k: Float[Tensor, "b h n d"]


class MultiheadAttention(nn.Module):
    """Multi-head attention with any mechanism. Inputs are batch first.

    Keys and values may have fewer heads than queries (`kv_heads`), each shared by a group of neighbouring query heads.
    A `rotation` rotates queries and keys by their positions (rotary position embedding). With `weighing`, the queries and
    keys of another layer are used instead, and thus its attention weights (Xiao et al. 2019).
    """

    def __init__(
        self,
        model_dim: int,
        *,
        heads: int,
        attention: AttentionOptions | nn.Module,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        context_dim: int | None = None,
        bias: bool = True,
        weighs: bool = True,
        starting_gain: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the projections, and the mechanism if its options are given.

        Args:
            model_dim: dimension of each position's vector.
            heads: number of query heads.
            attention: options of a mechanism, such as ``Favor()``, or a mechanism built for these heads.
            head_dim: dimension of one head's queries, keys and values; model_dim / heads by default.
            kv_heads: number of heads of keys and values; equal to heads by default.
            context_dim: dimension of a context's vectors; model_dim by default.
            bias: whether the projections have biases.
            weighs: whether it has projections to queries and keys; without them, every call needs `weighing`.
            starting_gain: factor on the initial query and key projections; that of the attention by default.
            generator: random generator for the initial weights.
        """
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or (head_dim is None and model_dim % heads):
            raise SubquadError(f"model_dim must be a multiple of heads, but is {model_dim} for {heads} heads")
        if kv_heads < 1 or heads % kv_heads:
            raise SubquadError(f"kv_heads must divide the {heads} heads, but is {kv_heads}")
        head_dim = head_dim or model_dim // heads
        self.attend: Any = built(attention, heads=heads, head_dim=head_dim, generator=generator)
        self.model_dim, self.context_dim = model_dim, context_dim or model_dim
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.weighs = weighs
        self.across: Callable[..., Tensor] | None = None
        """Mixes a sequence that is cut over processes, in place of the mechanism (see `subquad.parallel`); else None."""
        if weighs:
            self.to_q = Dense(model_dim, heads * head_dim, bias=bias)
            self.to_k = Dense(self.context_dim, kv_heads * self.head_dim, bias=bias)
        self.to_v = Dense(self.context_dim, kv_heads * self.head_dim, bias=bias)
        self.to_out = Dense(heads * head_dim, model_dim, bias=bias)
        self._start(starting_gain, generator)

    def _start(self, starting_gain: float | None, generator: torch.Generator | None) -> None:
        """Draws the initial weights. Those of queries and keys have the given gain, or that of the attention."""
        if self.weighs:
            traits = traits_of(self.attend)
            usual = 1.0 if traits is None else traits.starting_gain
            initialise(self.to_q, self.to_k, gain=usual if starting_gain is None else starting_gain, generator=generator)
        initialise(self.to_v, self.to_out, generator=generator)

    def forward(
        self,
        x: Float[Tensor, "b n w"],
        context: Float[Tensor, "b s c"] | Projected | None = None,
        *,
        keep: Bool[Tensor, "b s"] | None = None,
        rotation: Rotation | None = None,
        weighing: Weighing | None = None,
    ) -> Float[Tensor, "b n w"]:
        """Attends from every position of x to every kept position of the context, by default x itself."""
        if context is None or context is x:
            if self.across is not None:
                return self._merge(self._mixed_across(x, keep, rotation, weighing, causal=False))
            mixed: Tensor = self.attend(*self._inputs(x, rotation, weighing), keep=keep)
            return self._merge(mixed)
        _check("x", x, self.model_dim)
        projected = context if isinstance(context, Projected) else self.project(context)
        q, k = self._queries(x), projected.k
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        traits = traits_of(self.attend)
        if traits is not None and traits.aligned and q.shape[2] == k.shape[2] > 1:
            # as many queries as keys would be taken to stand at the keys' places: here all queries come after the context
            parts = [self.attend(part, k, projected.v, keep=keep) for part in (q[:, :, :1], q[:, :, 1:])]
            return self._merge(torch.cat(parts, dim=2))
        return self._merge(self.attend(q, k, projected.v, keep=keep))

    def causal(
        self,
        x: Float[Tensor, "b n w"],
        state: Any = None,
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        rotation: Rotation | None = None,
        weighing: Weighing | None = None,
    ) -> tuple[Float[Tensor, "b n w"], Any]:
        """Attends causally: position i sees the state and positions up to i. Returns the output and the new state."""
        if self.across is not None:
            return self._merge(self._mixed_across(x, keep, rotation, weighing, causal=True)), None
        mixed, state = self._causal().causal(*self._inputs(x, rotation, weighing), state, keep=keep)
        return self._merge(mixed), state

    def step(
        self,
        x: Float[Tensor, "b 1 w"],
        state: Any = None,
        *,
        rotation: Rotation | None = None,
        weighing: Weighing | None = None,
        reuse: bool = False,
    ) -> tuple[Float[Tensor, "b 1 w"], Any]:
        """Attends from one position; the fast path of `causal`. With `reuse`, the old state is overwritten."""
        if x.shape[1] == 1 and rotation is None and weighing is None and self.kv_heads == self.heads:
            _check("x", x, self.model_dim)
            split = (len(x), self.heads, 1, self.head_dim)  # a view, where longer sequences need a transposition
            q, k, v = (part(x).view(split) for part in (self.to_q, self.to_k, self.to_v))
        else:
            q, k, v = self._inputs(x, rotation, weighing)
        mixed, state = self._causal().step(q, k, v, state, reuse=reuse)
        return self._merge(mixed), state

    def weigh(self, x: Float[Tensor, "b n w"], rotation: Rotation | None = None) -> Weighing:
        """Computes the queries and keys of self-attention, to be passed to other layers as `weighing`."""
        _check("x", x, self.model_dim)
        q, k = self._queries(x), self._heads(self.to_k, x)
        return Weighing(q, k) if rotation is None else Weighing(rotate(q, rotation), rotate(k, rotation))

    def project(self, context: Float[Tensor, "b s c"]) -> Projected:
        """Computes the keys and values of a context, to be passed to `forward` repeatedly."""
        _check("context", context, self.context_dim)
        return Projected(self._heads(self.to_k, context), self._heads(self.to_v, context))

    def _inputs(self, x: Tensor, rotation: Rotation | None, weighing: Weighing | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q, k and v of self-attention; q and k are those of another layer if they are given."""
        _check("x", x, self.model_dim)
        _check("context", x, self.context_dim)
        q, k = self.weigh(x, rotation) if weighing is None else weighing
        return q, k, self._heads(self.to_v, x)

    def _mixed_across(
        self, x: Tensor, keep: Tensor | None, rotation: Rotation | None, weighing: Weighing | None, *, causal: bool
    ) -> Tensor:
        """Mixes a stretch of a sequence whose other stretches are held by other processes.

        Queries are computed last, while keys and values, or sums over them, travel.
        """
        assert self.across is not None
        _check("x", x, self.model_dim)
        if weighing is None:
            k = self._heads(self.to_k, x)
            k = k if rotation is None else rotate(k, rotation)
        else:
            k = weighing.k

        def make_q() -> Tensor:
            if weighing is not None:
                return weighing.q
            return self._queries(x) if rotation is None else rotate(self._queries(x), rotation)

        return self.across(self.attend, make_q, k, self._heads(self.to_v, x), keep, causal=causal)

    def _heads(self, projection: nn.Module, context: Tensor) -> Tensor:
        """Projects a context to keys or values, one for each query head."""
        split: Tensor = projection(context).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
        return split if self.kv_heads == self.heads else split.repeat_interleave(self.heads // self.kv_heads, dim=1)

    def _causal(self) -> Any:
        require_causal(self.attend)
        return self.attend

    def _queries(self, x: Tensor) -> Tensor:
        split: Tensor = self.to_q(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        return split

    def _merge(self, mixed: Tensor) -> Tensor:
        merged: Tensor = self.to_out(mixed.transpose(1, 2).flatten(2))
        return merged


def attentions_of(model: nn.Module) -> list[MultiheadAttention]:
    """Returns the attention layers of a model in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, MultiheadAttention)]


def mechanisms_of(model: nn.Module) -> list[Any]:
    """Returns the built mechanisms of a model's attention layers in the order of its modules."""
    return [layer.attend for layer in attentions_of(model)]


def _check(name: str, x: Tensor, dim: int) -> None:
    if x.ndim != 3 or x.shape[-1] != dim:
        raise SubquadError(f"{name} must be (batch, positions, {dim}), but its shape is {tuple(x.shape)}")
