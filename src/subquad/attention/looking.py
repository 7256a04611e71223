"""Attention matrices of mechanisms, alone or inside a model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.errors import SubquadError
from subquad.types import Keep, Keys, Queries, Values


class Call(NamedTuple):
    """The arguments of one call of a mechanism."""

    attend: nn.Module
    q: Queries
    k: Keys
    v: Values
    keep: Keep | None
    causal: bool

    def matrix(self) -> Float[Tensor, "b h n s"]:
        """Returns the attention matrix of the call."""
        return attention_matrix(self.attend, self.q, self.k, self.keep, causal=self.causal)


class LayerOutputs(NamedTuple):
    """What the layers of a model compute for one input, in order."""

    attention: Sequence[Tensor]
    """Output of each attention module."""
    hidden: Sequence[Float[Tensor, "b n w"]]
    """Hidden state after each layer."""


@torch.no_grad()
def attention_matrix(
    attend: Any, q: Queries, k: Keys, keep: Keep | None = None, *, causal: bool = False
) -> Float[Tensor, "b h n s"]:
    """Returns the matrix A with attend(q, k, v) = A v for all values v.

    For a mechanism without `weights`, A is its output for the identity matrix as values.
    """
    traits = attend.traits
    if traits.has_weights:
        weights: Tensor = attend.weights(q, k, keep=keep, causal=causal)
        return weights
    if traits.no_matrix is not None:
        raise SubquadError(traits.no_matrix)
    b, h, s, _ = k.shape
    values = torch.eye(s, dtype=k.dtype, device=k.device).expand(b, h, s, s).contiguous()
    mixed: Tensor = attend.causal(q, k, values, keep=keep)[0] if causal else attend(q, k, values, keep=keep)
    return mixed


@contextmanager
def watched(mechanisms: Sequence[Any]) -> Iterator[list[Call]]:
    """Within the `with` block, records the calls of these mechanisms in order."""
    calls: list[Call] = []
    inside: list[nn.Module] = []  # running mechanisms: their own nested calls are not recorded

    def noting(attend: nn.Module, method: str) -> Callable[..., Any]:
        original = getattr(attend, method)

        def noted(q: Tensor, k: Tensor, v: Tensor, state: Any = None, *, keep: Tensor | None = None) -> Any:
            if state is None and not inside:
                calls.append(Call(attend, q.detach(), k.detach(), v.detach(), keep, method == "causal"))
            inside.append(attend)
            try:
                return original(q, k, v, keep=keep) if method == "forward" else original(q, k, v, state, keep=keep)
            finally:
                inside.pop()

        return noted

    methods = product(dict.fromkeys(mechanisms), ("forward", "causal"))
    changed = [(attend, name) for attend, name in methods if name == "forward" or attend.traits.causal]
    try:
        for attend, name in changed:
            setattr(attend, name, noting(attend, name))
        yield calls
    finally:
        for attend, name in changed:
            vars(attend).pop(name, None)
