"""Everything that depends on the version of transformers: private names, inner modules, and patterns in its source.

The rest of the package imports from transformers only what its top level exports. `tests/hub/test_compat.py` tests each
assumption of this file separately, so that a new version of transformers shows which one it broke.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
from transformers.utils.generic import ModelOutput
from transformers.utils.hub import cached_file
from transformers.utils.output_capturing import _active_collector

TESTED_VERSIONS = ("5.22.2", "5.23.0")
"""Versions of transformers with which all tests have passed."""

NAMING_METHODS = ("get_correct_attn_implementation", "set_attn_implementation")
"""Methods of `PreTrainedModel` that set the name of a model's attention implementation."""

_LOOKS_UP = "ALL_ATTENTION_FUNCTIONS.get_interface("
_CHANGES_MASK = re.compile(r"\battention_mask(\[| &|\.masked_fill)|\[attention_mask,|build_\w*mask")
_CHANGES_KEYS = re.compile(r"\.update\((?:(?!\.update\().)*?\n\s+key_states\b[^\n]* = ", re.DOTALL)
_MAKES_CACHE = re.compile(r"past_key_values = (\w+Cache)\(")
_CACHES = {"DynamicCache", "EncoderDecoderCache", "StaticCache"}
_DECIDES_CAUSALITY = re.compile(r"is_causal = [^\n]*attention_mask is None")

SOFTMAX_CALLS: dict[Any, Callable[[list[Any], Any], tuple[int, int]]] = {
    F.softmax: lambda args, scores: scores.shape[-2:],
    torch.softmax: lambda args, scores: scores.shape[-2:],
    Tensor.softmax: lambda args, scores: scores.shape[-2:],
    F.scaled_dot_product_attention: lambda args, _: (args[0].shape[-2], args[1].shape[-2]),
    F.multi_head_attention_forward: lambda args, _: (args[0].shape[0], args[1].shape[0]),
}
"""Functions that compute attention, each with a function (arguments, result) -> (number of queries, number of keys)."""

Implementations = list[tuple[PreTrainedConfig, str | None]]
"""Configs of a model and of its submodels, each with the name of its attention implementation."""


def can_swap(kind: type[PreTrainedModel]) -> bool:
    """Whether the attention implementation of a model class can be set."""
    return bool(kind._can_set_attn_implementation())


def implementation_of(model: PreTrainedModel) -> str:
    """Returns the name of a model's attention implementation."""
    return str(implementation_in(model.config))


def implementation_in(config: PreTrainedConfig) -> str | None:
    """Returns the attention implementation that a config names, or None."""
    name: str | None = config._attn_implementation
    return name


def name_implementation(config: PreTrainedConfig, name: str | None) -> None:
    """Sets the attention implementation in a config that no model uses yet."""
    config._attn_implementation = name


def implementations(model: PreTrainedModel) -> Implementations:
    """Returns the configs of a model and of its submodels, each with the name of its attention implementation."""
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    return [(config, implementation_in(config)) for config in configs.values()]


def set_implementations(names: Implementations) -> None:
    """Sets the attention implementations of configs to what `implementations` returned."""
    for config, name in names:
        config._attn_implementation_internal = name


def own_implementation(model: PreTrainedModel) -> str:
    """Returns the name of the attention implementation that a model uses without subquad."""
    return "sdpa" if model._supports_sdpa else "eager"


def hook_once(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Registers a forward pre-hook on a module, unless it is registered already."""
    if hook not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(hook, with_kwargs=True)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def parameters_of(kind: type[nn.Module]) -> list[str]:
    """Returns the parameter names of a module class's forward method, in order."""
    return _parameters_of(kind.forward)


@cache
def _parameters_of(forward: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(forward).parameters)[1:]


def collects_attentions() -> bool:
    """Whether the running model was called with output_attentions."""
    return any(name.endswith("attentions") for name in _active_collector.get() or {})


def classes_beside(kind: type[PreTrainedModel]) -> list[type[nn.Module]]:
    """Returns the module classes in the source file of a model class."""
    members = vars(sys.modules[kind.__module__]).values()
    return [member for member in members if isinstance(member, type) and issubclass(member, nn.Module)]


def own_cache(model: PreTrainedModel) -> str | None:
    """Returns the name of a model's custom cache class, or None if it uses a standard one such as `DynamicCache`."""
    parts: set[Any] = {type(module) for module in model.modules() if isinstance(module, PreTrainedModel)}
    return next((name for part in parts for name in _MAKES_CACHE.findall(_source(part)) if name not in _CACHES), None)


@cache
def looks_up(kind: Any) -> bool:
    """Whether a module class gets its attention function from transformers' AttentionInterface."""
    return not issubclass(kind, PreTrainedModel) and _LOOKS_UP in _source(kind)


@cache
def changes_mask(kind: Any) -> bool:
    """Whether an attention class chooses the keys of each query by modifying the mask that it receives."""
    return looks_up(kind) and _CHANGES_MASK.search(_source(kind)) is not None


@cache
def changes_cached_keys(kind: Any) -> bool:
    """Whether an attention class computes new keys from those that its cache returns, as latent attention does."""
    return _CHANGES_KEYS.search(_source(kind)) is not None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@cache
def decides_causality(kind: Any) -> bool:
    """Whether an attention class is causal only if it receives no mask."""
    return _DECIDES_CAUSALITY.search(_source(kind)) is not None


def saved_names(model: PreTrainedModel, saved: list[str]) -> dict[str, str]:
    """Maps the name of each tensor in the model to its name in the file.

    `save_pretrained` writes the weights of many families under the names of older checkpoints, which loading reverts. The
    same rules apply to the mechanisms' tensors, since they belong to submodules that are renamed.
    """
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    held: dict[str, Any] = dict(model.state_dict())
    keys: dict[str, str] = {}
    for key in saved:
        name, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, held)
        if name not in held:  # the file uses the model's names, some of which may look like old ones
            name, _ = rename_source_key(key, [], [], model.base_model_prefix, held)
        keys.setdefault(name, key)
    return keys


@cache
def _source(kind: Any) -> str:
    """Returns the source of a module class and its base classes; an empty string if it is not available."""
    bases = [base for base in kind.__mro__ if issubclass(base, nn.Module) and not base.__module__.startswith("torch.")]
    return "\n".join(_sources_in(base.__module__).get(base.__qualname__, "") for base in bases)


@cache
def _sources_in(module: str) -> dict[str, str]:
    """Returns the source of each class in a module, by class name."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return {}
    lines = source.splitlines()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in classes}


__all__ = [
    "NAMING_METHODS",
    "SOFTMAX_CALLS",
    "TESTED_VERSIONS",
    "CacheLayerMixin",
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "Implementations",
    "ModelOutput",
    "bidirectional_mask_function",
    "cached_file",
    "can_swap",
    "causal_mask_function",
    "changes_cached_keys",
    "changes_mask",
    "classes_beside",
    "collects_attentions",
    "decides_causality",
    "hook_once",
    "implementation_in",
    "implementation_of",
    "implementations",
    "looks_up",
    "name_implementation",
    "own_cache",
    "own_implementation",
    "parameters_of",
    "saved_names",
    "sdpa_attention_forward",
    "sdpa_mask",
    "set_implementations",
]
