"""Takes layers and heads out of a transformers model."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
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
    for option, values in list(vars(config).items()):
        is_by_layer = isinstance(values, list) and len(values) == len(layers)
        if "layer" in option and is_by_layer and values != list(range(len(layers))):  # which are numbers of layers
            setattr(config, option, [values[place] for place in kept])


def keep_heads(model: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """Returns a model with these attention heads of every layer only, and the weights of the given one.

    It is built from the config, and every weight that is smaller in it gets the rows or columns of the kept heads. Heads of
    keys and values that several query heads share are all kept.
    """
    require_head_dim(model)
    config: Any = deepcopy(model.config)
    heads, head_dim = config.num_attention_heads, config.head_dim
    groups = getattr_int(config, "num_key_value_heads") or heads
    config.num_attention_heads = len(kept)
    if groups == heads and getattr_int(config, "num_key_value_heads"):
        config.num_key_value_heads = len(kept)
    smaller: Any = type(model)(config)
    numbers = (torch.tensor(kept)[:, None] * head_dim + torch.arange(head_dim)).flatten()
    weights = model.state_dict()
    sliced = {name: _sliced(weights[name], wanted.shape, numbers) for name, wanted in smaller.state_dict().items()}
    smaller.load_state_dict(sliced)
    result: PreTrainedModel = smaller.to(device=model.device, dtype=model.dtype).train(model.training)
    return result


def require_head_dim(model: PreTrainedModel) -> None:
    """Raises `SubquadError` for a model whose config does not give the number and the dimension of its heads."""
    if not getattr_int(model.config, "num_attention_heads") or not getattr_int(model.config, "head_dim"):
        raise SubquadError(
            f"--heads: the config of {type(model).__name__} has no head_dim, so that fewer heads would be wider ones: leave "
            "it out; --layers makes such a model smaller"
        )


def _sliced(weight: Tensor, shape: torch.Size, numbers: Int[Tensor, "r"]) -> Tensor:
    """Returns the rows, columns or both of a weight at `numbers`, along the axes in which it is larger than `shape`."""
    for axis, size in enumerate(shape):
        if weight.shape[axis] != size:
            weight = weight.index_select(axis, numbers.to(weight.device))
    return weight


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
