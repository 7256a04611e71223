"""The attention mechanisms: each is a frozen dataclass of options that builds a module.

A mechanism is called as ``attend(q, k, v, keep=keep)``. One with a causal form also has ``attend.causal(q, k, v, state)``
and ``attend.step(q, k, v, state)``. See `subquad.types` for the shapes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from subquad.attention.base import LossTerm, Mechanism
from subquad.attention.cosformer import Cosformer, CosformerAttention, CosformerState
from subquad.attention.favor import Favor, FavorAttention
from subquad.attention.hybrid import Hybrid, HybridAttention
from subquad.attention.infinity import Infinity, InfinityAttention
from subquad.attention.layers import Layers, joined
from subquad.attention.linear import Linear, LinearAttention
from subquad.attention.linformer import Linformer, LinformerAttention
from subquad.attention.lsh import Lsh, LshAttention, LshState
from subquad.attention.nystrom import Nystrom, NystromAttention
from subquad.attention.outside.mechanism import Outside
from subquad.attention.outside.trust import require_trust
from subquad.attention.softmax import Softmax, SoftmaxAttention, SoftmaxState
from subquad.attention.sparse import Sparse, SparseAttention, SparseState
from subquad.attention.window import Window, WindowAttention
from subquad.checking import read_as, read_kind
from subquad.errors import OptionError, SubquadError
from subquad.feature_maps import FEATURE_MAPS
from subquad.ops.hybrid import HybridState
from subquad.ops.linear import LinearState
from subquad.ops.streams import InfinityState
from subquad.ops.window import WindowState
from subquad.types import AttentionOptions, CausalAttention, MechanismSize, Traits

MECHANISMS: dict[str, type[AttentionOptions]] = {
    "softmax": Softmax,
    "linear": Linear,
    "favor": Favor,
    "linformer": Linformer,
    "infinity": Infinity,
    "hybrid": Hybrid,
    "window": Window,
    "sparse": Sparse,
    "nystrom": Nystrom,
    "lsh": Lsh,
    "cosformer": Cosformer,
}
COMMON = ("linear", "favor", "linformer")
"""Mechanisms that most people choose among, which `subquad compare` measures unless others are named."""


def options_from(values: object, where: str = "the attention") -> AttentionOptions:
    """Reads options from the values that `dataclasses.asdict` gave; `where` names their place in error messages.

    The values may come from a file of somebody else: an attention that is imported by name is read only if its module is
    trusted (see `subquad.attention.outside.trust`).
    """
    if isinstance(values, Mapping) and values.get("kind") == Layers.kind:
        listed = read_as(list[dict[str, Any]], values.get("mechanisms"), f"{where}: mechanisms")
        mechanisms = [options_from(each, f"{where}: mechanisms[{at}]") for at, each in enumerate(listed)]
        try:
            return Layers(tuple(mechanisms))
        except OptionError as error:
            raise SubquadError(f"{where}: {error}") from None
    if isinstance(values, Mapping) and values.get("kind") == Outside.kind:
        outside: Outside = read_kind({Outside.kind: Outside}, values, where)
        require_trust(outside.target, where)
        return outside
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
    built_ones = [
        (part.size(heads=heads, head_dim=head_dim), min(count, 1) if part.traits.shares_layers else count)
        for part, count in options.counts(layers)
    ]
    return MechanismSize(
        numbers=sum(count * size.numbers for size, count in built_ones),
        state=max((size.state for size, _ in built_ones), default=0),
        derived=sum(count * size.derived for size, count in built_ones),
    )


def traits_of(attend: nn.Module) -> Traits | None:
    """Returns the traits of a built mechanism; None for any other module."""
    return attend.traits if isinstance(attend, Mechanism) else None


def require_causal(attention: AttentionOptions | nn.Module) -> None:
    """Raises `SubquadError` for a mechanism (built, or its options) without a causal form."""
    if isinstance(attention, Mechanism):
        has_causal, name = attention.traits.causal, attention.options.name
    elif isinstance(attention, nn.Module):
        has_causal, name = isinstance(attention, CausalAttention), type(attention).__name__
    else:
        without = [part for part in attention.parts if not part.traits.causal]
        has_causal, name = not without, without[0].name if without else attention.name
    if has_causal:
        return
    causal = [other for other, options_class in MECHANISMS.items() if options_class().traits.causal]
    raise SubquadError(f"{name} has no causal form: it mixes positions; choose {', '.join(causal[:-1])} or {causal[-1]}")


def require_length(options: AttentionOptions, length: int) -> None:
    """Raises `SubquadError` for sequences longer than a mechanism with these options takes."""
    for part in options.parts:
        longest = part.traits.max_length
        if longest is not None and length > longest:
            raise SubquadError(
                f"k has {length} positions, but {part.name} was built for max_length={longest}: build it with a larger one"
            )


__all__ = [
    "COMMON",
    "MECHANISMS",
    "Cosformer",
    "CosformerAttention",
    "CosformerState",
    "Favor",
    "FavorAttention",
    "Hybrid",
    "HybridAttention",
    "HybridState",
    "Infinity",
    "InfinityAttention",
    "InfinityState",
    "Layers",
    "Linear",
    "LinearAttention",
    "LinearState",
    "Linformer",
    "LinformerAttention",
    "LossTerm",
    "Lsh",
    "LshAttention",
    "LshState",
    "Mechanism",
    "Nystrom",
    "NystromAttention",
    "Outside",
    "Softmax",
    "SoftmaxAttention",
    "SoftmaxState",
    "Sparse",
    "SparseAttention",
    "SparseState",
    "Window",
    "WindowAttention",
    "WindowState",
    "built",
    "joined",
    "layers_size",
    "options_from",
    "require_causal",
    "require_length",
    "traits_of",
]
