"""Base classes of built mechanisms, and of terms that a mechanism adds to the training loss."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.types import AttentionOptions, Keep, Keys, Values


class Mechanism(nn.Module):
    """A mechanism built from its `options`; `traits` describes its capabilities.

    A subclass defines `forward(q, k, v, *, keep)` and, if it has the trait causal, `causal` and `step` (see
    `subquad.types.CausalAttention`). The methods below have defaults that fit most mechanisms.
    """

    options: AttentionOptions

    def __init__(self, options: AttentionOptions, heads: int, head_dim: int) -> None:
        super().__init__()
        self.options, self.heads, self.head_dim = options, heads, head_dim
        self.traits = options.traits  # computed once: decoding asks for them at every position

    def redraw(self, generator: torch.Generator) -> None:
        """Redraws random projections; called by training loops between steps. Does nothing by default."""

    def calibrate(
        self,
        q_mean: Float[Tensor, "h d"],
        k_mean: Float[Tensor, "h d"],
        q_cov: Float[Tensor, "h d d"],
        k_cov: Float[Tensor, "h d d"],
    ) -> None:
        """Fits the mechanism to the means and covariances of queries and keys. Does nothing by default."""

    def remember(self, k: Keys, v: Values, *, keep: Keep | None = None) -> Any:
        """Returns the state of the causal form after these keys and values, which does not depend on the queries."""
        attend: Any = self
        return attend.causal(k, k, v, keep=keep)[1]


class LossTerm(nn.Module):
    """A module whose outputs, times `weight_in_loss`, are added to the training loss."""

    def __init__(self, weight_in_loss: float) -> None:
        super().__init__()
        self.weight_in_loss = weight_in_loss
