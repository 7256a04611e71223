"""The projections around a mechanism."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention import require_causal
from subquad.errors import SubquadError
from subquad.types import Attention


class MultiheadAttention(nn.Module):
    """Projects, splits heads, lets a mechanism mix, merges heads and projects back. Batch first.

    Keys and values may have fewer heads than queries (`kv_heads`): each then serves a group of neighbouring query heads.
    """

    def __init__(
        self,
        attend: nn.Module,
        *,
        model_width: int,
        heads: int,
        kv_heads: int | None = None,
        context_width: int | None = None,
        bias: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        """`attend` is a mechanism built for `heads` heads of the width model_width / heads."""
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or model_width % heads:
            raise SubquadError(f"model_width must be a multiple of heads, but is {model_width} for {heads} heads")
        if kv_heads < 1 or heads % kv_heads:
            raise SubquadError(f"kv_heads must divide the {heads} heads, but is {kv_heads}")
        self.attend: Any = attend
        self.model_width, self.context_width = model_width, context_width or model_width
        self.heads, self.kv_heads, self.width = heads, kv_heads, model_width // heads
        self.to_q = nn.Linear(model_width, model_width, bias=bias)
        self.to_k = nn.Linear(self.context_width, kv_heads * self.width, bias=bias)
        self.to_v = nn.Linear(self.context_width, kv_heads * self.width, bias=bias)
        self.to_out = nn.Linear(model_width, model_width, bias=bias)
        for layer in (self.to_q, self.to_k, self.to_v, self.to_out):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Float[Tensor, "b n w"],
        context: Float[Tensor, "b s c"] | None = None,
        *,
        keep: Bool[Tensor, "b s"] | None = None,
    ) -> Float[Tensor, "b n w"]:
        """Every position of x sees every kept position of the context, which is x itself if none is given."""
        _check("x", x, self.model_width)
        _check("context", x if context is None else context, self.context_width)
        mixed: Tensor = self.attend(*self._split(x, x if context is None else context), keep=keep)
        return self._merge(mixed)

    def causal(
        self, x: Float[Tensor, "b n w"], state: Any = None, *, keep: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n w"], Any]:
        """Position i sees positions up to i, and what `state` remembers."""
        _check("x", x, self.model_width)
        mixed, state = self._causal().causal(*self._split(x, x), state, keep=keep)
        return self._merge(mixed), state

    def step(
        self, x: Float[Tensor, "b 1 w"], state: Any = None, *, reuse: bool = False
    ) -> tuple[Float[Tensor, "b 1 w"], Any]:
        """One position: the fast path of `causal`. With `reuse` the old state is given up."""
        _check("x", x, self.model_width)
        mixed, state = self._causal().step(*self._split(x, x), state, reuse=reuse)
        return self._merge(mixed), state

    def _causal(self) -> Any:
        attend: Attention = self.attend
        return require_causal(attend, type(attend).__name__.removesuffix("Attention").lower())

    def _split(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as b h n d."""
        q = self.to_q(x).unflatten(-1, (self.heads, self.width)).transpose(1, 2)
        k, v = (
            project(context).unflatten(-1, (self.kv_heads, self.width)).transpose(1, 2) for project in (self.to_k, self.to_v)
        )
        if self.kv_heads != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        return q, k, v

    def _merge(self, mixed: Tensor) -> Tensor:
        merged: Tensor = self.to_out(mixed.transpose(1, 2).flatten(2))
        return merged


def _check(name: str, x: Tensor, width: int) -> None:
    if x.ndim != 3 or x.shape[-1] != width:
        raise SubquadError(f"{name} must be (batch, positions, {width}), but its shape is {tuple(x.shape)}")
