"""Attaches mechanisms to the attention modules of a transformers model, and describes them in its config."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from subquad.attention import MECHANISMS, joined, options_from, require_causal
from subquad.checking import Checked, Whole, read
from subquad.errors import OptionError, SubquadError
from subquad.hub._compat import can_swap, changes_mask, looks_up
from subquad.types import AttentionOptions
from subquad.words import names_by_layer

ATTRIBUTE = "subquad"
"""Attribute name of a mechanism on its attention module, and of its description in the config."""

SWAPPED = "subquad"
"""Attention implementation of a swapped model, in which each module uses the mechanism attached to it."""

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_WIDTHS = ("qk_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim")


def attention_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Returns the modules that use the AttentionInterface, by name. Raises `SubquadError` for a model without any."""
    if not isinstance(model, PreTrainedModel):
        raise SubquadError(f"a model of transformers is needed, but this is a {type(model).__name__}")
    kinds: dict[str, Any] = {name: type(module) for name, module in model.named_modules()}
    modules = {name: module for name, module in model.named_modules() if looks_up(kinds[name])}
    require_swappable(type(model), kinds.values())
    if not modules:
        raise SubquadError(_refusal(type(model)))
    return modules


def require_swappable(kind: type[PreTrainedModel], modules: Iterable[Any]) -> None:
    """Raises `SubquadError` for a model class that bypasses the AttentionInterface or modifies the attention mask."""
    if not can_swap(kind):
        raise SubquadError(_refusal(kind))
    if (changer := next((module for module in modules if changes_mask(module)), None)) is not None:
        raise SubquadError(
            f"{kind.__name__} cannot be swapped: its {changer.__name__} chooses the keys of each query by a mask that it "
            "makes of the model's, which no other mechanism can follow"
        )


def _refusal(kind: type[PreTrainedModel]) -> str:
    return (
        f"{kind.__name__} cannot be swapped: its attention is built in and does not go through transformers' "
        "AttentionInterface, as that of BERT, DistilBERT, RoBERTa, GPT-2, Llama and BART does"
    )


def attached(module: nn.Module) -> Any:
    """Returns the mechanism attached to a module, or None."""
    return module._modules.get(ATTRIBUTE)


def options_of(module: nn.Module) -> AttentionOptions | None:
    """Returns the options of the mechanism attached to a module; None if the module keeps the model's own attention."""
    options: AttentionOptions | None = getattr(attached(module), "hub_options", None)
    return options


def hang(module: nn.Module, options: AttentionOptions, seed: int, *, original: bool = False, like: Any = None) -> nn.Module:
    """Builds a mechanism and attaches it to a module.

    The mechanism takes its shape, device and dtype from the module, or from the queries `like`. `original` marks softmax
    that stands for the model's own attention.
    """
    if options.traits.shares_layers:
        raise SubquadError("in a model of transformers each layer keeps its own projection: choose sharing='keys-values'")
    heads, head_dim = shape_of(module) if like is None else (like.shape[1], like.shape[3])
    with torch.device("cpu"):
        attend = options.build(heads=heads, head_dim=head_dim, generator=torch.Generator().manual_seed(seed))
    if getattr(module, "is_causal", False) and getattr(getattr(module, "config", None), "is_causal", True):
        require_causal(options)
    weight = next((parameter for parameter in module.parameters() if parameter.is_floating_point()), like)
    if weight is not None:
        attend = attend.to(device=weight.device, dtype=weight.dtype)
    attend.hub_options = None if original else options  # type: ignore[assignment]
    attend.train(module.training)
    setattr(module, ATTRIBUTE, attend)
    return attend


def find_options(name: str, config: PreTrainedConfig | None = None) -> AttentionOptions:
    """Returns the default options of a mechanism by its name, with the maximum length taken from the model's config.

    Names by layer, such as ``linear*3,softmax``, give the options of all layers.
    """
    kinds = [each.removeprefix("subquad_") for each in names_by_layer(name)]
    if unknown := [kind for kind in kinds if kind not in MECHANISMS]:
        raise SubquadError(f"there is no mechanism {unknown[0]!r}: choose from {', '.join(MECHANISMS)}")
    options = joined([MECHANISMS[kind]() for kind in kinds])
    longest = getattr_int(config, "max_position_embeddings")
    return options.for_length(longest) if longest else options


def by_module(options: AttentionOptions, names: Sequence[str]) -> list[AttentionOptions]:
    """Returns the mechanism of each attention module. Mechanisms by layer are counted in each stack of layers by itself.

    The numbers in a module's name say which layer it belongs to: the encoder, the decoder and the image tower of a model are
    stacks, and self-attention and cross-attention of one layer have the same mechanism. Raises `SubquadError` for a stack
    whose number of layers does not fit.
    """
    if len(options.parts) == 1:
        return [options.parts[0]] * len(names)
    places = [_layer_of(name) for name in names]
    layers: dict[str, list[tuple[int, ...]]] = {}
    for stack, layer in places:
        if layer not in layers.setdefault(stack, []):
            layers[stack].append(layer)
    mechanisms = {stack: options.for_layers(len(numbers)) for stack, numbers in layers.items()}
    return [mechanisms[stack][layers[stack].index(layer)] for stack, layer in places]


def _layer_of(name: str) -> tuple[str, tuple[int, ...]]:
    """Returns the stack that a module belongs to, and the layer in it: ``decoder.layers.3.self_attn`` is layer 3."""
    path = name.split(".")
    last = max((at for at, part in enumerate(path) if part.isdecimal()), default=-1)
    inside = path[: last + 1]
    stack = ".".join("*" if part.isdecimal() else part for part in inside)
    return stack, tuple(int(part) for part in inside if part.isdecimal())


def shape_of(module: nn.Module) -> tuple[int, int]:
    """Returns the number of query heads of an attention module, and the dimension of each."""
    config = getattr(module, "config", None)
    heads = next((n for at in (module, config) for name in _HEADS if (n := getattr_int(at, name))), 0)
    head_dim = next((n for at in (module, config) for name in _WIDTHS if (n := getattr_int(at, name))), 0)
    if heads and not head_dim:
        head_dim = getattr_int(config, "hidden_size") // heads
    if not heads or not head_dim:
        raise SubquadError(
            f"{type(module).__name__} does not say how many heads it has and how wide they are: use "
            "model.set_attn_implementation('subquad_favor'), which finds out when it is first called"
        )
    return heads, head_dim


def getattr_int(holder: object, name: str, otherwise: int = 0) -> int:
    """Returns an attribute if it is an integer, else `otherwise`."""
    value = getattr(holder, name, None)
    return value if isinstance(value, int) else otherwise


def write_down(config: PreTrainedConfig, layers: Sequence[AttentionOptions | None] | None, all_layers: Any = None) -> None:
    """Describes the mechanisms in the config that `save_pretrained` writes: one for each layer, or one for `all_layers`."""
    described = [] if all_layers is None else [_values(all_layers)]
    places: list[int | None] = []
    for options in layers or []:
        values = None if options is None else _values(options)
        if values is not None and values not in described:
            described.append(values)
        places.append(None if values is None else described.index(values))
    config.subquad = {"mechanisms": described, "layers": None if layers is None else places}
    config.attn_implementation = SWAPPED  # transformers reads this field, but does not save its private one


@dataclass(frozen=True)
class Written(Checked):
    """The config entry that describes a model's mechanisms."""

    mechanisms: tuple[dict[str, Any], ...]
    layers: tuple[Whole | None, ...] | None
    """Index into `mechanisms` for each attention module, None for the model's own attention; None if all use the first."""

    def check(self) -> None:
        if beyond := [place for place in self.layers or (0,) if place is not None and place >= len(self.mechanisms)]:
            raise OptionError("layers", f"names mechanism {beyond[0]}, but there are {len(self.mechanisms)}")


def read_back(config: PreTrainedConfig, modules: int | None = None) -> list[AttentionOptions | None] | None:
    """Reads the options that `write_down` wrote, one for each module; returns None if the config has none.

    `modules` is the expected number of modules; None accepts any number.
    """
    entries = [getattr(part, ATTRIBUTE, None) for part in configs_in(config)]
    entry = next((entry for entry in entries if entry is not None), None)
    if entry is None:
        return None
    written = read(Written, entry, f"config.json: {ATTRIBUTE}")
    options = [
        options_from(values, f"config.json: {ATTRIBUTE}: mechanisms[{place}]")
        for place, values in enumerate(written.mechanisms)
    ]
    places = (0,) * (modules or 1) if written.layers is None else written.layers
    if modules is not None and len(places) != modules:
        raise SubquadError(
            f"config.json names mechanisms for {len(places)} attention modules, but the model has {modules}: the "
            "config.json belongs to another model"
        )
    return [None if place is None else options[place] for place in places]


def _values(options: Any) -> dict[str, Any]:
    """Returns options as the JSON values that a file would hold."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(options)))
    return values


def configs_in(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """Returns a config and all configs nested in it."""
    parts: Mapping[str, Any] = getattr(config, "sub_configs", {})
    inner = [getattr(config, name, None) for name in parts]
    return [config, *(deeper for part in inner if part is not None for deeper in configs_in(part))]
