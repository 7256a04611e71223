"""Looking at what mechanisms do inside a model: the attention matrix of each layer, and the rank that one can have."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.linear import LinearAttention
from subquad.attention.linformer import ConvolutionSlots, LinformerAttention
from subquad.errors import SubquadError
from subquad.types import Keep, Keys, Queries, Values


class Call(NamedTuple):
    """What a mechanism was asked."""

    attend: nn.Module
    q: Queries
    k: Keys
    v: Values
    keep: Keep | None
    causal: bool

    def matrix(self) -> Float[Tensor, "b h n s"]:
        """What it answered, as a matrix."""
        return attention_matrix(self.attend, self.q, self.k, self.keep, causal=self.causal)


@torch.no_grad()
def attention_matrix(
    attend: Any, q: Queries, k: Keys, keep: Keep | None = None, *, causal: bool = False
) -> Float[Tensor, "b h n s"]:
    """A, with attend(q, k, v) = A v for any values.

    Where a mechanism has no `weights`, its answer to the identity as values is A: every mechanism here is linear in them.
    """
    if hasattr(attend, "weights"):
        weights: Tensor = attend.weights(q, k, keep=keep, causal=causal)
        return weights
    if isinstance(attend, LinformerAttention) and isinstance(attend.projection, ConvolutionSlots):
        raise SubquadError("linformer by convolution has no attention matrix: its slots mix the coordinates of values")
    b, h, s, _ = k.shape
    values = torch.eye(s, dtype=k.dtype, device=k.device).expand(b, h, s, s).contiguous()
    mixed: Tensor = attend.causal(q, k, values, keep=keep)[0] if causal else attend(q, k, values, keep=keep)
    return mixed


@contextmanager
def watched(mechanisms: Sequence[nn.Module]) -> Iterator[list[Call]]:
    """While it lasts, notes what these mechanisms are asked, in the order in which it happens."""
    calls: list[Call] = []
    inside: list[nn.Module] = []  # what a mechanism asks of itself is no call of its own

    def noting(attend: nn.Module, method: str) -> Callable[..., Any]:
        own = getattr(attend, method)

        def noted(q: Tensor, k: Tensor, v: Tensor, state: Any = None, *, keep: Tensor | None = None) -> Any:
            if state is None and not inside:
                calls.append(Call(attend, q.detach(), k.detach(), v.detach(), keep, method == "causal"))
            inside.append(attend)
            try:
                return own(q, k, v, keep=keep) if method == "forward" else own(q, k, v, state, keep=keep)
            finally:
                inside.pop()

        return noted

    each = product(dict.fromkeys(mechanisms), ("forward", "causal"))
    changed = [(attend, name) for attend, name in each if hasattr(attend, name)]
    try:
        for attend, name in changed:
            setattr(attend, name, noting(attend, name))
        yield calls
    finally:
        for attend, name in changed:
            vars(attend).pop(name, None)


class RankBound(NamedTuple):
    """How many independent rows an attention matrix can have, however long the sequence."""

    rank: int
    words: str  # what sets it


def rank_bound(attend: nn.Module) -> RankBound | None:
    """Of the bidirectional form; None where the rank can grow with the length.

    phi(q) phi(k)^T is a product through m features, softmax(q (E k)^T) F one through k slots: neither has a higher rank.
    """
    if isinstance(attend, LinformerAttention):
        slots = attend.projection.options.k
        return RankBound(slots, f"{slots} slots")
    if isinstance(attend, LinearAttention):
        features = attend.feature_map.feature_count(attend.head_dim)
        return RankBound(features, f"{features} features")
    return None
