"""Takes layers out of a transformers model."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from subquad.errors import SubquadError
from subquad.hub.attach import attention_modules, getattr_int


def keep_layers(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """Removes all layers of a model in place but those at these indices, and adapts its config."""
    holder, name = _stack_of(model)
    layers = getattr(holder, name)
    if list(kept) == list(range(len(layers))):
        return
    chosen = [layers[place] for place in kept]
    for place, layer in enumerate(chosen):
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = place
    setattr(holder, name, nn.ModuleList(chosen))
    config: Any = model.config
    config.num_hidden_layers = len(chosen)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[place] for place in kept]


def _stack_of(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """Returns the module that holds the list of layers, and the name of the list in it."""
    paths = [name.split(".") for name in attention_modules(model)]
    for depth, part in enumerate(paths[0]):
        prefix = paths[0][:depth]
        places = [path[depth] for path in paths if path[:depth] == prefix and len(path) > depth]
        if part.isdecimal() and places == [str(place) for place in range(len(paths))]:
            holder = model.get_submodule(".".join(prefix[:-1]))
            stack = getattr(holder, prefix[-1])
            if len(stack) == getattr_int(model.config, "num_hidden_layers"):
                return holder, prefix[-1]
    raise SubquadError(
        f"--layers: the layers of {type(model).__name__} are not in one list with one attention each: leave it out"
    )
