"""A transformers cache that holds states instead of keys and values, so that `generate` runs in constant memory."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from subquad.attention import require_causal
from subquad.errors import SubquadError
from subquad.hub._compat import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    changes_cached_keys,
    hook_once,
    implementation_of,
    own_cache,
)
from subquad.hub.attach import SWAPPED, attached, attention_modules, find_options, getattr_int
from subquad.models import mapped, tensors_of
from subquad.types import CausalAttention

_LAYER = "_subquad_layer"


class StateLayer(CacheLayerMixin):
    """Cache of one layer: states of its mechanism (named tuples of tensors), and the number of positions seen.

    A model calls `update` with new keys and values and passes the result to its attention. `update` returns only the new
    keys and values, and sets an attribute on the keys by which the attention finds this layer. If the model computes new
    keys from them, the attribute is set on the attention module `owner` instead. There is one state for each attention call
    with the same keys, since differential attention makes several.
    """

    is_sliding = False
    supports_early_init = False

    def __init__(self, owner: nn.Module | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys = self.values = torch.empty(0)  # models read their size to see whether the cache is in use
        self.owner = None if owner is None else weakref.ref(owner)
        self.states: list[Any] = []
        self.seen = 0
        self.calls = 0  # number of attention calls with the latest keys
        self.is_waiting = False  # whether the latest keys have not reached the attention yet

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.is_waiting:
            raise SubquadError(
                "the attention of this model did not find its state: use the state cache only with the model that it was "
                "made for, while its attention is subquad's"
            )
        self.lazy_initialization(key_states, value_states)
        self.is_waiting, self.calls = True, 0
        self.seen += key_states.shape[2]
        keys = key_states.view_as(key_states)
        setattr(keys, _LAYER, self)
        if self.owner is not None and (module := self.owner()) is not None:
            vars(module)[_LAYER] = self
        return keys, value_states

    def attend(self, attend: CausalAttention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """Attends to new positions, continues the state with them, and returns the mixed values."""
        self.is_waiting = False
        if self.calls == len(self.states):
            self.states.append(None)
        state = self.states[self.calls]
        if q.shape[2] == 1 and keep is None:
            mixed, state = attend.step(q, k, v, state, reuse=not torch.is_grad_enabled())
        else:
            mixed, state = attend.causal(q, k, v, state, keep=keep)
        self.states[self.calls] = state
        self.calls += 1
        return mixed

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the mask's length and offset: only new positions are masked, after all seen ones."""
        return query_length, self.seen

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.states, self.seen, self.calls, self.is_waiting = [], 0, 0, False
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps only the states of these sequences."""
        self.states = [mapped(state, lambda part: part[indices.to(part.device)]) for state in self.states]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats the state of every sequence `repeats` times."""
        self.states = [mapped(state, lambda part: part.repeat_interleave(repeats, dim=0)) for state in self.states]

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise SubquadError("a state cannot forget its last tokens, as assisted generation asks: use a DynamicCache")

    def offload(self) -> None:
        """Does nothing: a state is small enough to stay on its device."""

    def prefetch(self) -> None:
        """Does nothing, since states are never offloaded."""


class StateCache(Cache):
    """A cache with a `StateLayer` for each decoder layer with a constant state, and a growing layer for the others."""

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Returns the mask size of all keys if any layer keeps them, since a model makes one mask for all layers.

        A layer with a state uses the end of such a mask.
        """
        layers: list[Any] = self.layers
        growing = [place for place, layer in enumerate(layers) if type(layer) is DynamicLayer]
        is_state = layer_idx < len(layers) and isinstance(layers[layer_idx], StateLayer)
        return super().get_mask_sizes(query_length, growing[0] if growing and is_state else layer_idx)

    @property
    def nbytes(self) -> int:
        """Memory of all states, keys and values, in bytes."""
        layers: list[Any] = self.layers
        states = [tensor for layer in layers for tensor in tensors_of(tuple(getattr(layer, "states", ())))]
        keys_and_values = [
            part for layer in layers for part in (getattr(layer, "keys", None), getattr(layer, "values", None))
        ]
        return sum(part.numel() * part.element_size() for part in (*states, *keys_and_values) if part is not None)


def state_cache(model: PreTrainedModel) -> StateCache | EncoderDecoderCache:
    """Returns an empty cache for `model.generate(..., past_key_values=state_cache(model))`, or for a call of the model.

    With mechanisms whose state is of constant size (linear, favor, infinity, hybrid), neither the cache nor the time for a
    token grows. Layers with softmax attention keep all keys and values, and so do the layers of the few families whose
    decoder does not mark its attention as causal (NLLB-MoE, Pegasus-X).
    """
    if not implementation_of(model).startswith("subquad"):
        raise SubquadError(
            "a state cache is for a model with subquad's attention: swap it first, with subquad.hub.swap(model, 'favor')"
        )
    if (cache_class := own_cache(model)) is not None:
        raise SubquadError(
            f"{type(model).__name__} generates with a cache of its own, {cache_class}: it takes no state cache"
        )
    causal = {name: module for name, module in attention_modules(model).items() if getattr(module, "is_causal", False)}
    if not causal and not model.config.is_encoder_decoder:
        raise SubquadError(
            f"no attention of {type(model).__name__} is causal, so it has no state to go on from: set is_decoder=True in "
            "its config if it is to generate"
        )
    layers = _growing_layers(model)
    for name, module in causal.items():
        if _is_constant(module, implementation_of(model)):
            _put_state(layers, name, module)
    states = StateCache(layers=layers)
    return EncoderDecoderCache(states, DynamicCache()) if model.config.is_encoder_decoder else states


def _growing_layers(model: PreTrainedModel) -> list[Any]:
    """Returns the cache layers of a model without states."""
    try:
        return list(DynamicCache(config=model.config.get_text_config(decoder=True)).layers)
    except AttributeError:  # the config does not say how many layers there are
        raise SubquadError(f"{type(model).__name__} does not generate from a cache: it takes no state cache") from None


def layer_of(module: nn.Module, keys: Tensor) -> StateLayer | None:
    """Returns the cache layer whose state these keys continue, or None."""
    noted = vars(module).pop(_LAYER, None)
    layer: StateLayer | None = getattr(keys, _LAYER, noted)
    return layer


def _put_state(layers: list[Any], name: str, module: nn.Module) -> None:
    """Replaces the cache layer of a module by a `StateLayer`."""
    place = getattr_int(module, "layer_idx", -1)
    if not 0 <= place < len(layers):
        raise SubquadError(f"{name} does not say which layer of the cache is its own: generate with a DynamicCache")
    if type(layers[place]) not in (DynamicLayer, DynamicSlidingWindowLayer, StateLayer):
        layer_class = type(layers[place]).__name__
        raise SubquadError(
            f"{name} keeps more than keys and values in its cache, a {layer_class}: generate with a DynamicCache"
        )
    kind: Any = type(module)
    is_owner = changes_cached_keys(kind)
    if is_owner:
        hook_once(module, _forget)
    layers[place] = StateLayer(module if is_owner else None)


def _forget(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Forward pre-hook that drops the cache layer of an earlier call, since this call may have no cache."""
    vars(module).pop(_LAYER, None)


def _is_constant(module: torch.nn.Module, implementation: str) -> bool:
    """Whether a module's mechanism, built or named by `implementation`, has a state of constant size."""
    if implementation == SWAPPED:
        attend = attached(module)
        return attend is None or bool(attend.traits.constant_state)
    options = find_options(implementation)
    require_causal(options)
    return options.traits.constant_state
