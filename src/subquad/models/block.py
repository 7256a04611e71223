"""One layer of a transformer."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.models.multihead import MultiheadAttention


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed(norm(x)): normalised before, so that deep stacks train. Batch first."""

    def __init__(
        self,
        attend: nn.Module,
        *,
        model_width: int,
        heads: int,
        feed_width: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """`attend` is a mechanism built for `heads` heads. The inner layer is 4 * model_width wide unless told."""
        super().__init__()
        feed_width = feed_width or 4 * model_width
        self.attention = MultiheadAttention(attend, model_width=model_width, heads=heads, generator=generator)
        self.norm_attention, self.norm_feed = nn.LayerNorm(model_width), nn.LayerNorm(model_width)
        self.feed = nn.Sequential(nn.Linear(model_width, feed_width), nn.GELU(), nn.Linear(feed_width, model_width))
        for layer in self.feed:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "b n w"], *, keep: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n w"]:
        """Every position sees every kept position."""
        return self._feed(x + self.attention(self.norm_attention(x), keep=keep))

    def causal(
        self, x: Float[Tensor, "b n w"], state: Any = None, *, keep: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n w"], Any]:
        """Position i sees positions up to i, and what `state` remembers."""
        mixed, state = self.attention.causal(self.norm_attention(x), state, keep=keep)
        return self._feed(x + mixed), state

    def step(
        self, x: Float[Tensor, "b 1 w"], state: Any = None, *, reuse: bool = False
    ) -> tuple[Float[Tensor, "b 1 w"], Any]:
        """One position: the fast path of `causal`. With `reuse` the old state is given up."""
        mixed, state = self.attention.step(self.norm_attention(x), state, reuse=reuse)
        return self._feed(x + mixed), state

    def _feed(self, x: Tensor) -> Tensor:
        fed: Tensor = x + self.feed(self.norm_feed(x))
        return fed
