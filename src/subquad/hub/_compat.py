"""Everything of transformers that may change with its version: private names, inner modules, and patterns of its sources.

The rest of the package imports from transformers only what its top level exports. `tests/hub/test_compat.py` tests each
assumption made here by itself, so that a new version of transformers says which one it broke.
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
from transformers.utils.output_capturing import _active_collector

TESTED_VERSIONS = ("5.22.2",)
"""Versions of transformers that all tests have passed with."""

NAMING_METHODS = ("get_correct_attn_implementation", "set_attn_implementation")
"""Methods of `PreTrainedModel` that give a model the name of its attention."""

_LOOKS_UP = "ALL_ATTENTION_FUNCTIONS.get_interface("
_CHANGES_MASK = re.compile(r"\battention_mask(\[| &|\.masked_fill)|\[attention_mask,|build_\w*mask")
_CHANGES_KEYS = re.compile(r"\.update\((?:(?!\.update\().)*?\n\s+key_states\b[^\n]* = ", re.DOTALL)
_MAKES_CACHE = re.compile(r"past_key_values = (\w+Cache)\(")
_CACHES = {"DynamicCache", "EncoderDecoderCache", "StaticCache"}
_DECIDES_CAUSALITY = re.compile(r"is_causal = [^\n]*attention_mask is None")

SOFTMAX_CALLS: dict[Any, Callable[[list[Any], Any], tuple[int, int]]] = {
    F.softmax: lambda given, scores: scores.shape[-2:],
    torch.softmax: lambda given, scores: scores.shape[-2:],
    Tensor.softmax: lambda given, scores: scores.shape[-2:],
    F.scaled_dot_product_attention: lambda given, _: (given[0].shape[-2], given[1].shape[-2]),
    F.multi_head_attention_forward: lambda given, _: (given[0].shape[0], given[1].shape[0]),
}
"""Functions that attention is computed with, and how many queries and keys they are called for: from their arguments and
their result."""

Implementations = list[tuple[PreTrainedConfig, str | None]]
"""Configs of a model and of the models inside it, each with the name of its attention."""


def can_swap(kind: type[PreTrainedModel]) -> bool:
    """Whether transformers lets the attention of a class of models be chosen."""
    return bool(kind._can_set_attn_implementation())


def implementation_of(model: PreTrainedModel) -> str:
    """The name of a model's attention, as transformers has it."""
    return str(implementation_in(model.config))


def implementation_in(config: PreTrainedConfig) -> str | None:
    """The name of the attention in a config, None where it names none."""
    name: str | None = config._attn_implementation
    return name


def name_implementation(config: PreTrainedConfig, name: str | None) -> None:
    """Puts the name of an attention into a config that no model has yet."""
    config._attn_implementation = name


def implementations(model: PreTrainedModel) -> Implementations:
    """The configs of a model and of the models inside it, each with the name of its attention."""
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    return [(config, implementation_in(config)) for config in configs.values()]


def set_implementations(names: Implementations) -> None:
    """Gives configs back what `implementations` found."""
    for config, name in names:
        config._attn_implementation_internal = name


def own_implementation(model: PreTrainedModel) -> str:
    """The name of the attention that a model has of its own."""
    return "sdpa" if model._supports_sdpa else "eager"


def hook_once(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Registers a hook before a module's call, unless it is there."""
    if hook not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(hook, with_kwargs=True)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def parameters_of(kind: type[nn.Module]) -> list[str]:
    """The names of the arguments that a class of modules is called with, in order."""
    return _parameters_of(kind.forward)


@cache
def _parameters_of(forward: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(forward).parameters)[1:]


def collects_attentions() -> bool:
    """Whether the model that is running was asked for its attention weights."""
    return any(name.endswith("attentions") for name in _active_collector.get() or {})


def classes_beside(kind: type[PreTrainedModel]) -> list[type[nn.Module]]:
    """The classes of modules in the file of a class of models."""
    beside = vars(sys.modules[kind.__module__]).values()
    return [each for each in beside if isinstance(each, type) and issubclass(each, nn.Module)]


def own_cache(model: PreTrainedModel) -> str | None:
    """The name of a model's cache class, where it has one of its own instead of a `DynamicCache`."""
    parts: set[Any] = {type(module) for module in model.modules() if isinstance(module, PreTrainedModel)}
    return next((name for part in parts for name in _MAKES_CACHE.findall(_source(part)) if name not in _CACHES), None)


@cache
def looks_up(kind: Any) -> bool:
    """Whether a class of modules asks transformers' AttentionInterface for its attention."""
    return not issubclass(kind, PreTrainedModel) and _LOOKS_UP in _source(kind)


@cache
def changes_mask(kind: Any) -> bool:
    """Whether a class of attention chooses the keys of each query by changing the mask that it was given."""
    return looks_up(kind) and _CHANGES_MASK.search(_source(kind)) is not None


@cache
def changes_cached_keys(kind: Any) -> bool:
    """Whether a class of attention makes other keys of those that its cache gives back, as latent attention does."""
    return _CHANGES_KEYS.search(_source(kind)) is not None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@cache
def decides_causality(kind: Any) -> bool:
    """Whether a class of attention says that it is causal only where it was given no mask."""
    return _DECIDES_CAUSALITY.search(_source(kind)) is not None


def saved_names(model: PreTrainedModel, saved: list[str]) -> dict[str, str]:
    """The name in a file of each tensor, by its name in the model.

    `save_pretrained` writes the weights of many families under the names of their older checkpoints, which reading turns
    back. The mechanisms' tensors stand below modules that are renamed, so the same rules apply to them.
    """
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    held: dict[str, Any] = dict(model.state_dict())
    keys: dict[str, str] = {}
    for key in saved:
        name, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, held)
        if name not in held:  # in a file whose names are the model's, some of which may look like old ones
            name, _ = rename_source_key(key, [], [], model.base_model_prefix, held)
        keys.setdefault(name, key)
    return keys


@cache
def _source(kind: Any) -> str:
    """The source of a class of modules and of those that it is built on; empty where there is none to be had."""
    families = [each for each in kind.__mro__ if issubclass(each, nn.Module) and not each.__module__.startswith("torch.")]
    return "\n".join(_sources_in(each.__module__).get(each.__qualname__, "") for each in families)


@cache
def _sources_in(module: str) -> dict[str, str]:
    """The source of each class in a file, by its name."""
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
