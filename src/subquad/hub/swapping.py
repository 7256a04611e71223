"""Mechanisms put in the place of a model's attention, and taken off again."""

from collections.abc import Sequence
from typing import TypeVar

from torch import nn
from transformers import PreTrainedModel

from subquad.attention import Softmax
from subquad.errors import SubquadError
from subquad.hub._compat import implementation_of, implementations, own_implementation, set_implementations
from subquad.hub.attach import (
    ATTRIBUTE,
    SWAPPED,
    attached,
    attention_modules,
    configs_in,
    find_options,
    getattr_int,
    hang,
    options_of,
    write_down,
)
from subquad.hub.proof import prove
from subquad.types import AttentionOptions

Model = TypeVar("Model", bound=PreTrainedModel)


def swap(
    model: Model,
    attention: AttentionOptions | str,
    *,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    check: bool = True,
) -> Model:
    """Puts a mechanism in the place of the model's attention, and gives back the same model.

    `layers` are places among `attention_modules`, counted from 0, or from the end if negative; the others stay as they are.
    The mechanism's tensors are drawn from `seed`, and are parameters and buffers of the model from now on.

    With `check` the model then proves itself on a few made-up tokens, which takes as long as about ten calls with nine
    tokens: softmax in the mechanism's place gives what the model's own attention gives, no attention is computed elsewhere,
    and what is later, padding, or in other rows changes nothing, nor does a cache. A model for which something does not hold
    is refused, and left as it was. `subquad.hub.check` gives the same checks with their numbers.
    """
    modules = attention_modules(model)
    before = {module: attached(module) for module in modules.values()}
    described, names = getattr(model.config, ATTRIBUTE, None), implementations(model)
    own = names
    if implementation_of(model).startswith(ATTRIBUTE):
        model.set_attn_implementation(own_implementation(model))
        own = implementations(model)
    try:
        _hang(list(modules.values()), attention, layers, seed, model)
        if check:
            prove(model, own)
    except BaseException:
        _take_back(model, before, described)
        set_implementations(names)
        raise
    return model


def restore(model: Model, implementation: str | None = None) -> Model:
    """Takes all mechanisms off again: the model has its own attention, and is saved without a word of them."""
    for module in attention_modules(model).values():
        if attached(module) is not None:
            delattr(module, ATTRIBUTE)
    for config in configs_in(model.config):
        for name in (ATTRIBUTE, "attn_implementation"):
            config.__dict__.pop(name, None)
    model.set_attn_implementation(implementation or own_implementation(model))
    return model


def _hang(
    modules: list[nn.Module],
    attention: AttentionOptions | str,
    layers: Sequence[int] | None,
    seed: int,
    model: PreTrainedModel,
) -> None:
    options = find_options(attention, model.config) if isinstance(attention, str) else attention
    for place in range(len(modules)) if layers is None else _places(layers, len(modules)):
        hang(modules[place], options, seed + getattr_int(modules[place], "layer_idx", place))
    for module in modules:
        if attached(module) is None:
            hang(module, Softmax(), seed, own=True)
    model.set_attn_implementation(SWAPPED)
    write_down(model.config, [options_of(module) for module in modules])


def _take_back(model: PreTrainedModel, before: dict[nn.Module, nn.Module | None], described: object) -> None:
    """The mechanisms that hung on modules before, and what the config said of them."""
    for module, attend in before.items():
        if attend is not None:
            setattr(module, ATTRIBUTE, attend)
        elif attached(module) is not None:
            delattr(module, ATTRIBUTE)
    for name in (ATTRIBUTE, "attn_implementation"):
        model.config.__dict__.pop(name, None)
    if described is not None:
        model.config.subquad, model.config.attn_implementation = described, SWAPPED


def _places(layers: Sequence[int], count: int) -> list[int]:
    for layer in layers:
        if not -count <= layer < count:
            raise SubquadError(f"there is no layer {layer}: the model has {count} attention modules, 0 to {count - 1}")
    return sorted({layer % count for layer in layers})
