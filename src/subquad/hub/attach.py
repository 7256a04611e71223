"""Mechanisms on the attention modules of a transformers model: found, hung on, and written down in its config."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from subquad.attention import MECHANISMS, options_from, require_causal
from subquad.checking import Checked, Whole, read
from subquad.errors import OptionError, SubquadError
from subquad.hub._compat import can_swap, changes_mask, looks_up
from subquad.types import AttentionOptions

ATTRIBUTE = "subquad"
"""Under which a mechanism hangs on its attention module, and its description stands in the config."""

SWAPPED = "subquad"
"""The implementation of a model that was swapped: each module does what hangs on it."""

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_WIDTHS = ("qk_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim")


def attention_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules that look up their attention, by name and in the model's order. Refuses a model that has none in words."""
    if not isinstance(model, PreTrainedModel):
        raise SubquadError(f"a model of transformers is needed, but this is a {type(model).__name__}")
    kinds: dict[str, Any] = {name: type(module) for name, module in model.named_modules()}
    found = {name: module for name, module in model.named_modules() if looks_up(kinds[name])}
    require_swappable(type(model), kinds.values())
    if not found:
        raise SubquadError(_refusal(type(model)))
    return found


def require_swappable(kind: type[PreTrainedModel], modules: Iterable[Any]) -> None:
    """Refuses a class of models that never looks up its attention, or that does more with the mask than to pass it on."""
    if not can_swap(kind):
        raise SubquadError(_refusal(kind))
    if (changer := next((each for each in modules if changes_mask(each)), None)) is not None:
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
    """The mechanism that hangs on a module, or None."""
    return module._modules.get(ATTRIBUTE)


def options_of(module: nn.Module) -> AttentionOptions | None:
    """Those of the mechanism that hangs on a module; None where it keeps its own attention."""
    options: AttentionOptions | None = getattr(attached(module), "hub_options", None)
    return options


def hang(module: nn.Module, options: AttentionOptions, seed: int, *, own: bool = False, like: Any = None) -> nn.Module:
    """Builds a mechanism and hangs it on a module, on its device and in its type, or on those of the queries `like`.

    `own` stands for the attention that the model has anyway.
    """
    if options.traits.shares_layers:
        raise SubquadError("in a model of transformers each layer keeps its own projection: choose sharing='keys-values'")
    heads, head_dim = shape_of(module) if like is None else (like.shape[1], like.shape[3])
    with torch.device("cpu"):
        attend = options.build(heads=heads, head_dim=head_dim, generator=torch.Generator().manual_seed(seed))
    if getattr(module, "is_causal", False) and getattr(getattr(module, "config", None), "is_causal", True):
        require_causal(options)
    weight = next((each for each in module.parameters() if each.is_floating_point()), like)
    if weight is not None:
        attend = attend.to(device=weight.device, dtype=weight.dtype)
    attend.hub_options = None if own else options  # type: ignore[assignment]
    attend.train(module.training)
    setattr(module, ATTRIBUTE, attend)
    return attend


def find_options(name: str, config: PreTrainedConfig | None = None) -> AttentionOptions:
    """A mechanism as it stands, by its name. One that is built for a length gets that of the model's positions."""
    kind = name.removeprefix("subquad_")
    if kind not in MECHANISMS:
        raise SubquadError(f"there is no mechanism {name!r}: choose from {', '.join(MECHANISMS)}")
    options = MECHANISMS[kind]()
    longest = getattr_int(config, "max_position_embeddings")
    return options.for_length(longest) if longest else options


def shape_of(module: nn.Module) -> tuple[int, int]:
    """How many heads an attention module has for its queries, and how wide they are."""
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
    """A number that something may have."""
    value = getattr(holder, name, None)
    return value if isinstance(value, int) else otherwise


def write_down(config: PreTrainedConfig, layers: Sequence[AttentionOptions | None] | None, every: Any = None) -> None:
    """Names the mechanisms in the config, which `save_pretrained` writes: one for each layer, or one for `every` layer."""
    described = [] if every is None else [_values(every)]
    places: list[int | None] = []
    for options in layers or []:
        values = None if options is None else _values(options)
        if values is not None and values not in described:
            described.append(values)
        places.append(None if values is None else described.index(values))
    config.subquad = {"mechanisms": described, "layers": None if layers is None else places}
    config.attn_implementation = SWAPPED  # is read by transformers, whose own field for it is not saved


@dataclass(frozen=True)
class Written(Checked):
    """The entry of a config that names a model's mechanisms."""

    mechanisms: tuple[dict[str, Any], ...]
    layers: tuple[Whole | None, ...] | None
    """The place among `mechanisms` of each attention module's, None where it keeps its own; None: all have the first."""

    def check(self) -> None:
        if beyond := [place for place in self.layers or (0,) if place is not None and place >= len(self.mechanisms)]:
            raise OptionError("layers", f"names mechanism {beyond[0]}, but there are {len(self.mechanisms)}")


def read_back(config: PreTrainedConfig, modules: int | None = None) -> list[AttentionOptions | None] | None:
    """What `write_down` has written, one entry for each module; None where nothing is written.

    `modules` is how many there must be; None takes as many as are written, or one.
    """
    entries = [getattr(each, ATTRIBUTE, None) for each in configs_in(config)]
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
            f"config.json names mechanisms for {len(places)} attention modules, but the model has {modules}: it is that of "
            "another model"
        )
    return [None if place is None else options[place] for place in places]


def _values(options: Any) -> dict[str, Any]:
    """Options as a file gives them back."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(options)))
    return values


def configs_in(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """A config and those inside it."""
    parts: Mapping[str, Any] = getattr(config, "sub_configs", {})
    inner = [getattr(config, name, None) for name in parts]
    return [config, *(deeper for part in inner if part is not None for deeper in configs_in(part))]
