"""The base class of built mechanisms, and of the terms that one may add to a training's loss."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.types import AttentionOptions, Keep, Keys, Values


class Mechanism(nn.Module):
    """A built mechanism. Its `options` are those that built it, and `options.traits` says what it can do.

    A subclass defines `forward(q, k, v, *, keep)` and, if its traits say that it is causal, `causal` and `step` (see
    `subquad.types.CausalAttention`). The methods below have defaults that fit most mechanisms.
    """

    options: AttentionOptions

    def __init__(self, options: AttentionOptions, heads: int, head_dim: int) -> None:
        super().__init__()
        self.options, self.heads, self.head_dim = options, heads, head_dim

    def redraw(self, generator: torch.Generator) -> None:
        """Draws random parts anew, for a training loop that asks for it between steps. Does nothing where there are none."""

    def calibrate(
        self,
        q_mean: Float[Tensor, "h d"],
        k_mean: Float[Tensor, "h d"],
        q_cov: Float[Tensor, "h d d"],
        k_cov: Float[Tensor, "h d d"],
    ) -> None:
        """Fits the mechanism to the means and covariances of queries and keys. Does nothing where nothing can be fitted."""

    def remember(self, k: Keys, v: Values, *, keep: Keep | None = None) -> Any:
        """The state of the causal form after some keys and values, whatever the queries at their places were."""
        attend: Any = self
        return attend.causal(k, k, v, keep=keep)[1]


class LossTerm(nn.Module):
    """A module whose results are added to a training's loss, times `weight_in_loss`, each time that the model runs."""

    def __init__(self, weight_in_loss: float) -> None:
        super().__init__()
        self.weight_in_loss = weight_in_loss
