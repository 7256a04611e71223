"""The attention mechanisms: each is a frozen dataclass of options that builds a module.

A mechanism is called as ``attend(q, k, v, keep=keep)``. One with a causal form also has ``attend.causal(q, k, v, state)``
and ``attend.step(q, k, v, state)``. See `subquad.types` for the shapes.
"""

from collections.abc import Mapping

import torch
from torch import nn

from subquad.attention.base import LossTerm, Mechanism
from subquad.attention.favor import Favor, FavorAttention
from subquad.attention.hybrid import Hybrid, HybridAttention
from subquad.attention.infinity import Infinity, InfinityAttention
from subquad.attention.linear import Linear, LinearAttention
from subquad.attention.linformer import Linformer, LinformerAttention
from subquad.attention.softmax import Softmax, SoftmaxAttention, SoftmaxState
from subquad.checking import read_kind
from subquad.errors import SubquadError
from subquad.feature_maps import FEATURE_MAPS
from subquad.ops.hybrid import HybridState
from subquad.ops.linear import LinearState
from subquad.ops.streams import InfinityState
from subquad.types import AttentionOptions, CausalAttention, MechanismSize, Traits

MECHANISMS: dict[str, type[AttentionOptions]] = {
    "softmax": Softmax,
    "linear": Linear,
    "favor": Favor,
    "linformer": Linformer,
    "infinity": Infinity,
    "hybrid": Hybrid,
}


def options_from(values: object, where: str = "the attention") -> AttentionOptions:
    """Reads options from the values that `dataclasses.asdict` gave; `where` names their place in error messages."""
    if isinstance(values, Mapping):
        values = {
            name: read_kind(FEATURE_MAPS, value, f"{where}: {name}") if isinstance(value, Mapping) else value
            for name, value in values.items()
        }
    options: AttentionOptions = read_kind(MECHANISMS, values, where)
    return options


def built(
    attention: AttentionOptions | nn.Module, *, heads: int, head_dim: int, generator: torch.Generator | None = None
) -> nn.Module:
    """Builds a mechanism from its options, or returns it if it is a module already."""
    if isinstance(attention, nn.Module):
        return attention
    return attention.build(heads=heads, head_dim=head_dim, generator=generator)


def layers_size(options: AttentionOptions, *, heads: int, head_dim: int, layers: int) -> MechanismSize:
    """Returns the total size of the mechanisms of `layers` layers, some of which may share parameters."""
    size = options.size(heads=heads, head_dim=head_dim)
    copies = 1 if options.traits.shares_layers else layers
    return MechanismSize(copies * size.numbers, size.state, copies * size.derived)


def traits_of(attend: nn.Module) -> Traits | None:
    """Returns the traits of a built mechanism; None for any other module."""
    return attend.traits if isinstance(attend, Mechanism) else None


def require_causal(attention: AttentionOptions | nn.Module) -> None:
    """Raises `SubquadError` for a mechanism (built, or its options) without a causal form."""
    if isinstance(attention, Mechanism):
        has_causal, name = attention.traits.causal, attention.options.kind
    elif isinstance(attention, nn.Module):
        has_causal, name = isinstance(attention, CausalAttention), type(attention).__name__
    else:
        has_causal, name = attention.traits.causal, attention.kind
    if has_causal:
        return
    causal = [other for other, options_class in MECHANISMS.items() if options_class().traits.causal]
    raise SubquadError(f"{name} has no causal form: it mixes positions; choose {', '.join(causal[:-1])} or {causal[-1]}")


def require_length(options: AttentionOptions, length: int) -> None:
    """Raises `SubquadError` for sequences longer than a mechanism with these options takes."""
    longest = options.traits.max_length
    if longest is not None and length > longest:
        raise SubquadError(
            f"k has {length} positions, but {options.kind} was built for max_length={longest}: build it with a larger one"
        )


__all__ = [
    "MECHANISMS",
    "Favor",
    "FavorAttention",
    "Hybrid",
    "HybridAttention",
    "HybridState",
    "Infinity",
    "InfinityAttention",
    "InfinityState",
    "Linear",
    "LinearAttention",
    "LinearState",
    "Linformer",
    "LinformerAttention",
    "LossTerm",
    "Mechanism",
    "Softmax",
    "SoftmaxAttention",
    "SoftmaxState",
    "built",
    "layers_size",
    "options_from",
    "require_causal",
    "require_length",
    "traits_of",
]
