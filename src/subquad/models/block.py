"""A transformer layer."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.models.activations import ACTIVATIONS, Activation
from subquad.models.multihead import MultiheadAttention, Projected
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
        cross: AttentionOptions | nn.Module | None = None,
        feed_dim: int | None = None,
        activation: Activation = "gelu",
        norm: Norm = "pre",
        dropout: float = 0.0,
        starting_gain: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the block.

        Args:
            model_dim: dimension of each position's vector.
            heads: number of heads of each attention.
            attention: options of a mechanism, or a mechanism built for these heads.
            cross: options of a mechanism, or a mechanism, for cross-attention to a context; None for a block without it.
            feed_dim: hidden dimension of the feed-forward part; 4 * model_dim by default.
            activation: activation of the feed-forward part.
            norm: whether layer normalisation comes before or after each part.
            dropout: dropout probability of each part's output.
            starting_gain: factor on the initial query and key projections; that of the attention by default.
            generator: random generator for the initial weights.
        """
        super().__init__()
        feed_dim = feed_dim or 4 * model_dim
        self.norm: Norm = norm
        self.attention = MultiheadAttention(
            model_dim, heads=heads, attention=attention, starting_gain=starting_gain, generator=generator
        )
        self.norm_attention = nn.LayerNorm(model_dim)
        self.cross: MultiheadAttention | None = None
        if cross is not None:
            self.cross = MultiheadAttention(
                model_dim, heads=heads, attention=cross, starting_gain=starting_gain, generator=generator
            )
            self.norm_cross = nn.LayerNorm(model_dim)
        self.feed = nn.Sequential(nn.Linear(model_dim, feed_dim), ACTIVATIONS[activation](), nn.Linear(feed_dim, model_dim))
        self.norm_feed = nn.LayerNorm(model_dim)
        self.dropout = nn.Dropout(dropout)
        for layer in self.feed:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Float[Tensor, "b n w"],
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        context: Float[Tensor, "b s w"] | Projected | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        rotation: Rotation | None = None,
    ) -> Float[Tensor, "b n w"]:
        """Applies the block; every position sees every kept position."""
        x = self._around(x, self.norm_attention, lambda y: self.attention(y, keep=keep, rotation=rotation))
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
        last: int | None = None,
    ) -> tuple[Float[Tensor, "b m w"], Any]:
        """Applies the block; position i sees the state and positions up to i. Returns all positions or the `last` ones."""
        x, state = self._remembering(x, lambda y: self.attention.causal(y, state, keep=keep, rotation=rotation))
        return self._rest(x if last is None else x[:, -last:], context, context_keep), state

    def step(
        self,
        x: Float[Tensor, "b 1 w"],
        state: Any = None,
        *,
        context: Float[Tensor, "b s w"] | Projected | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        rotation: Rotation | None = None,
        reuse: bool = False,
    ) -> tuple[Float[Tensor, "b 1 w"], Any]:
        """Applies the block to one position; the fast path of `causal`. With `reuse`, the old state is overwritten."""
        x, state = self._remembering(x, lambda y: self.attention.step(y, state, rotation=rotation, reuse=reuse))
        return self._rest(x, context, context_keep), state

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
        if self.norm == "pre":
            return x + self.dropout(part(norm(x)))
        normed: Tensor = norm(x + self.dropout(part(x)))
        return normed
