"""The mechanisms: each a frozen dataclass of options that builds a module.

A mechanism is called as ``attend(q, k, v, keep=keep)``. One with a causal form also has ``attend.causal(q, k, v, state)``
and ``attend.step(q, k, v, state)``. See `subquad.types` for the shapes.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from subquad.attention.favor import Favor, FavorAttention
from subquad.attention.hybrid import Hybrid, HybridAttention, HybridState
from subquad.attention.infinity import Infinity, InfinityAttention, InfinityState
from subquad.attention.linear import Linear, LinearAttention
from subquad.attention.linformer import Linformer, LinformerAttention
from subquad.attention.softmax import Softmax, SoftmaxAttention, SoftmaxState
from subquad.checking import read_kind
from subquad.errors import SubquadError
from subquad.feature_maps import FEATURE_MAPS
from subquad.ops.sums import LinearState
from subquad.types import Attention, AttentionOptions, CausalAttention, MechanismSize

MECHANISMS: dict[str, type[AttentionOptions]] = {
    "softmax": Softmax,
    "linear": Linear,
    "favor": Favor,
    "linformer": Linformer,
    "infinity": Infinity,
    "hybrid": Hybrid,
}


def options_from(values: object, where: str = "the attention") -> AttentionOptions:
    """The options that `dataclasses.asdict` made these values of, as they stand in a file; `where` is their place in it."""
    if isinstance(values, Mapping):
        values = {
            name: read_kind(FEATURE_MAPS, value, f"{where}: {name}") if isinstance(value, Mapping) else value
            for name, value in values.items()
        }
    options: AttentionOptions = read_kind(MECHANISMS, values, where)
    return options


def layer_builder(
    options: AttentionOptions, *, heads: int, head_dim: int, generator: torch.Generator | None = None
) -> Callable[[], torch.nn.Module]:
    """Gives a mechanism for one layer of a stack after the other. Layers that share a projection hold the same one."""
    build: Callable[..., torch.nn.Module] = partial(options.build, heads=heads, head_dim=head_dim, generator=generator)
    if isinstance(options, Linformer) and options.sharing == "layerwise":
        return partial(build, projection=options.build_projection(heads=heads, head_dim=head_dim, generator=generator))
    return build


def built(
    attention: AttentionOptions | torch.nn.Module, *, heads: int, head_dim: int, generator: torch.Generator | None = None
) -> torch.nn.Module:
    """A mechanism: built from its options, or as it is where it is built already."""
    if isinstance(attention, torch.nn.Module):
        return attention
    return attention.build(heads=heads, head_dim=head_dim, generator=generator)


def layers_size(options: AttentionOptions, *, heads: int, head_dim: int, layers: int) -> MechanismSize:
    """The mechanisms of so many layers of a stack together, as `layer_builder` gives them."""
    size = options.size(heads=heads, head_dim=head_dim)
    copies = 1 if isinstance(options, Linformer) and options.sharing == "layerwise" else layers
    return MechanismSize(copies * size.numbers, size.state, copies * size.derived)


def require_causal(attend: Attention, name: str) -> CausalAttention:
    """The mechanism, if it has a causal form; the refusal in words, if not."""
    if isinstance(attend, CausalAttention):
        return attend
    causal = [other for other, options in MECHANISMS.items() if _has_causal(options)]
    raise SubquadError(f"{name} has no causal form: it mixes positions; choose {', '.join(causal[:-1])} or {causal[-1]}")


def _has_causal(options: type[AttentionOptions]) -> bool:
    return isinstance(options().build(heads=1, head_dim=2), CausalAttention)


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
    "Softmax",
    "SoftmaxAttention",
    "SoftmaxState",
    "built",
    "layer_builder",
    "layers_size",
    "options_from",
    "require_causal",
]
