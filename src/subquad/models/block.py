"""A transformer layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.models.activations import ACTIVATIONS, Activation
from subquad.models.dense import Dense
from subquad.models.initialising import initialise
from subquad.models.multihead import MultiheadAttention, Projected, Weighing
from subquad.models.options import Norm
from subquad.models.positions import Rotation
from subquad.types import AttentionOptions


class Block(nn.Module):
    """Self-attention, optional cross-attention and a feed-forward part, each with a residual connection. Batch first.

    Layer normalisation comes before each part, x + part(norm(x)), which trains well when deep, or after it,
    norm(x + part(x)), as in Vaswani et al. 2017.
    """

    def __init__(
        self,
        model_dim: int,
        *,
        heads: int,
        attention: AttentionOptions | nn.Module,
        head_dim: int | None = None,
        cross: AttentionOptions | nn.Module | None = None,
        feed_dim: int | None = None,
        activation: Activation = "gelu",
        norm: Norm = "pre",
        dropout: float = 0.0,
        weighs: bool = True,
        starting_gain: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the block.

        Args:
            model_dim: dimension of each position's vector.
            heads: number of heads of each attention.
            attention: options of a mechanism, or a mechanism built for these heads.
            head_dim: dimension of one head's queries, keys and values; model_dim / heads by default.
            cross: options of a mechanism, or a mechanism, for cross-attention to a context; None for a block without it.
            feed_dim: hidden dimension of the feed-forward part; 4 * model_dim by default.
            activation: activation of the feed-forward part.
            norm: whether layer normalisation comes before or after each part.
            dropout: dropout probability of each part's output.
            weighs: whether self-attention has queries and keys of its own; without them, every call needs `weighing`.
            starting_gain: factor on the initial query and key projections; that of the attention by default.
            generator: random generator for the initial weights.
        """
        super().__init__()
        self.norm: Norm = norm
        attend = partial(
            MultiheadAttention, model_dim, heads=heads, head_dim=head_dim, starting_gain=starting_gain, generator=generator
        )
        self.attention = attend(attention=attention, weighs=weighs)
        self.norm_attention = nn.LayerNorm(model_dim)
        self.cross: MultiheadAttention | None = None
        if cross is not None:
            self.cross = attend(attention=cross)
            self.norm_cross = nn.LayerNorm(model_dim)
        self.feed = _feed(model_dim, feed_dim or 4 * model_dim, activation, generator)
        self.norm_feed, self.dropout = nn.LayerNorm(model_dim), nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b n w"],
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        context: Float[Tensor, "b s w"] | Projected | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        rotation: Rotation | None = None,
        weighing: Weighing | None = None,
    ) -> Float[Tensor, "b n w"]:
        """Applies the block; every position sees every kept position. `weighing` is that of another block, if given."""
        about: dict[str, Any] = {"rotation": rotation, "weighing": weighing}
        x = self._around(x, self.norm_attention, lambda y: self.attention(y, keep=keep, **about))
        return self._rest(x, context, context_keep)

    def causal(
        self,
        x: Float[Tensor, "b n w"],
        state: Any = None,
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        context: Float[Tensor, "b s w"] | Projected | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        rotation: Rotation | None = None,
        weighing: Weighing | None = None,
        last: int | None = None,
    ) -> tuple[Float[Tensor, "b m w"], Any]:
        """Applies the block; position i sees the state and positions up to i. Returns all positions or the `last` ones."""
        about: dict[str, Any] = {"rotation": rotation, "weighing": weighing}
        x, state = self._remembering(x, lambda y: self.attention.causal(y, state, keep=keep, **about))
        return self._rest(x if last is None else x[:, -last:], context, context_keep), state

    def step(
        self,
        x: Float[Tensor, "b 1 w"],
        state: Any = None,
        *,
        context: Float[Tensor, "b s w"] | Projected | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        rotation: Rotation | None = None,
        weighing: Weighing | None = None,
        reuse: bool = False,
    ) -> tuple[Float[Tensor, "b 1 w"], Any]:
        """Applies the block to one position; the fast path of `causal`. With `reuse`, the old state is overwritten."""
        about: dict[str, Any] = {"rotation": rotation, "weighing": weighing}
        x, state = self._remembering(x, lambda y: self.attention.step(y, state, reuse=reuse, **about))
        return self._rest(x, context, context_keep), state

    def weigh(self, x: Float[Tensor, "b n w"], rotation: Rotation | None = None) -> Weighing:
        """Computes the queries and keys of self-attention, to be passed to this block and others as `weighing`."""
        return self.attention.weigh(self.norm_attention(x) if self.norm == "pre" else x, rotation)

    def _remembering(self, x: Tensor, attend: Callable[[Tensor], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        """Applies self-attention with a state; returns the output and the new state."""
        after: list[Any] = []

        def mixed(y: Tensor) -> Tensor:
            out, state = attend(y)
            after.append(state)
            return out

        return self._around(x, self.norm_attention, mixed), after[0]

    def _rest(self, x: Tensor, context: Tensor | Projected | None, keep: Tensor | None) -> Tensor:
        """Applies cross-attention, if there is a context, and the feed-forward part."""
        cross = self.cross
        if cross is not None and context is not None:
            x = self._around(x, self.norm_cross, lambda y: cross(y, context, keep=keep))
        return self._around(x, self.norm_feed, self.feed)

    def _around(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        drop = self.dropout if self.training else _as_it_is  # a layer that does nothing takes microseconds of a step
        if self.norm == "pre":
            return x + drop(part(norm(x)))
        normed: Tensor = norm(x + drop(part(x)))
        return normed


def _feed(model_dim: int, feed_dim: int, activation: Activation, generator: torch.Generator | None) -> nn.Sequential:
    """Builds the feed-forward part."""
    into, out_of = Dense(model_dim, feed_dim), Dense(feed_dim, model_dim)
    initialise(into, out_of, generator=generator)
    return nn.Sequential(into, ACTIVATIONS[activation](), out_of)


def _as_it_is(x: Tensor) -> Tensor:
    return x
