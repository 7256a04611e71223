"""One layer of a transformer."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.models.multihead import MultiheadAttention, Projected
from subquad.models.options import Norm
from subquad.models.positions import Rotation
from subquad.types import AttentionOptions


class Block(nn.Module):
    """Attention, attention to a context if it has one, and a feed-forward part, each around a residual. Batch first.

    Normalised before each part, x + part(norm(x)), so that deep stacks train; or after it, norm(x + part(x)), as in 2017.
    """

    def __init__(
        self,
        model_dim: int,
        *,
        heads: int,
        attention: AttentionOptions | nn.Module,
        cross: AttentionOptions | nn.Module | None = None,
        feed_dim: int | None = None,
        norm: Norm = "pre",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the parts.

        Args:
            model_dim: numbers of each position.
            heads: heads of each attention.
            attention: options of a mechanism, or a mechanism built for these heads.
            cross: the same for the attention to a context; None for a block without one.
            feed_dim: numbers of each position inside the feed-forward part; 4 * model_dim unless told.
            norm: whether each part is normalised before it or after it.
            dropout: share of each part's results that is set to zero in training.
            generator: random numbers that weights are drawn from.
        """
        super().__init__()
        feed_dim = feed_dim or 4 * model_dim
        self.norm: Norm = norm
        self.attention = MultiheadAttention(model_dim, heads=heads, attention=attention, generator=generator)
        self.norm_attention = nn.LayerNorm(model_dim)
        self.cross: MultiheadAttention | None = None
        if cross is not None:
            self.cross = MultiheadAttention(model_dim, heads=heads, attention=cross, generator=generator)
            self.norm_cross = nn.LayerNorm(model_dim)
        self.feed = nn.Sequential(nn.Linear(model_dim, feed_dim), nn.GELU(), nn.Linear(feed_dim, model_dim))
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
        """Every position sees every kept position."""
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
        """Position i sees positions up to i, and what `state` remembers. All come out, or only the `last` ones."""
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
        """One position: the fast path of `causal`. With `reuse` the old state is given up."""
        x, state = self._remembering(x, lambda y: self.attention.step(y, state, rotation=rotation, reuse=reuse))
        return self._rest(x, context, context_keep), state

    def _remembering(self, x: Tensor, attend: Callable[[Tensor], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        """The first part where it has a state, and the state after it."""
        after: list[Any] = []

        def mixed(y: Tensor) -> Tensor:
            out, state = attend(y)
            after.append(state)
            return out

        return self._around(x, self.norm_attention, mixed), after[0]

    def _rest(self, x: Tensor, context: Tensor | Projected | None, keep: Tensor | None) -> Tensor:
        """The parts after the first."""
        cross = self.cross
        if cross is not None and context is not None:
            x = self._around(x, self.norm_cross, lambda y: cross(y, context, keep=keep))
        return self._around(x, self.norm_feed, self.feed)

    def _around(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm == "pre":
            return x + self.dropout(part(norm(x)))
        normed: Tensor = norm(x + self.dropout(part(x)))
        return normed
