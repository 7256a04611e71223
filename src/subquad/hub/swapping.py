"""Replaces the attention of a model by a mechanism, and restores it."""

from collections.abc import Mapping, Sequence
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
    by_module,
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
    """Replaces the attention of a model by a mechanism in place, and returns the model.

    `attention` may be the options or the name of a mechanism, or different ones by layer: ``Layers((Linear(), Softmax()))``
    or ``"linear*3,softmax"``, repeated where there are more layers, in each stack of layers of the model.

    `layers` are indices into `attention_modules`, counted from 0, or from the end if negative; other layers are unchanged.
    The mechanism's tensors are drawn from `seed` and become parameters and buffers of the model.

    With `check`, the model is then checked on a few synthetic tokens, which takes about ten calls with nine tokens: softmax
    through subquad equals the model's own attention, no attention is computed elsewhere, and later tokens, padding, other
    rows and caching do not change the output. If a check fails, the model is restored and `SubquadError` is raised.
    `subquad.hub.check` returns the results of these checks.
    """
    modules = attention_modules(model)
    before = {module: attached(module) for module in modules.values()}
    described, names = getattr(model.config, ATTRIBUTE, None), implementations(model)
    original_names = names
    if implementation_of(model).startswith(ATTRIBUTE):
        model.set_attn_implementation(own_implementation(model))
        original_names = implementations(model)
    try:
        _hang(modules, attention, layers, seed, model)
        if check:
            prove(model, original_names)
    except BaseException:
        _take_back(model, before, described)
        set_implementations(names)
        raise
    return model


def restore(model: Model, implementation: str | None = None) -> Model:
    """Removes all mechanisms from a model and its config, so that it uses its own attention again, and returns it."""
    for module in attention_modules(model).values():
        if attached(module) is not None:
            delattr(module, ATTRIBUTE)
    for config in configs_in(model.config):
        for name in (ATTRIBUTE, "attn_implementation"):
            config.__dict__.pop(name, None)
    model.set_attn_implementation(implementation or own_implementation(model))
    return model


def _hang(
    named_modules: Mapping[str, nn.Module],
    attention: AttentionOptions | str,
    layers: Sequence[int] | None,
    seed: int,
    model: PreTrainedModel,
) -> None:
    options = find_options(attention, model.config) if isinstance(attention, str) else attention
    if layers is not None and len(options.parts) > 1:
        raise SubquadError(
            f"{options.name} says for every layer what it has, so that no layers can be chosen: leave out `layers`, and "
            "name softmax for those that keep it"
        )
    modules, mechanisms = list(named_modules.values()), by_module(options, list(named_modules))
    for place in range(len(modules)) if layers is None else _places(layers, len(modules)):
        hang(modules[place], mechanisms[place], seed + getattr_int(modules[place], "layer_idx", place))
    for module in modules:
        if attached(module) is None:
            hang(module, Softmax(), seed, original=True)
    model.set_attn_implementation(SWAPPED)
    write_down(model.config, [options_of(module) for module in modules])


def _take_back(model: PreTrainedModel, before: dict[nn.Module, nn.Module | None], described: object) -> None:
    """Restores the mechanisms that were attached before, and their description in the config."""
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
