"""States in the place of keys and values: the cache with which `generate` runs in constant memory."""

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
from subquad.types import CausalAttention

_LAYER = "_subquad_layer"


class StateLayer(CacheLayerMixin):
    """What one layer remembers: states of its mechanism, named tuples of tensors, and how many positions it has seen.

    A model calls `update` with new keys and values and passes what it gets on to the attention. It gets the new ones alone;
    that they continue this layer is noted on the keys, where the attention finds it. Where a model makes other keys of them,
    it is noted on the attention module `owner`. A model may call its attention several times with the same keys, as
    differential attention does: there is a state for each call.
    """

    is_sliding = False
    supports_early_init = False

    def __init__(self, owner: nn.Module | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys = self.values = torch.empty(0)  # a model may look how many there are, to see whether it is in use
        self.owner = None if owner is None else weakref.ref(owner)
        self.states: list[Any] = []
        self.seen = 0
        self.calls = 0  # of the attention, with the keys that came in last
        self.is_waiting = False  # for the attention to take what came in

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
        """Continues the state with new positions."""
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
        """Only what is new is masked, behind all that was seen."""
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
        """The states of these sequences."""
        self.states = [_each(state, lambda part: part[indices.to(part.device)]) for state in self.states]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence's state so many times."""
        self.states = [_each(state, lambda part: part.repeat_interleave(repeats, dim=0)) for state in self.states]

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise SubquadError("a state cannot forget its last tokens, as assisted generation asks: use a DynamicCache")

    def offload(self) -> None:
        """A state is small enough to stay where it is."""

    def prefetch(self) -> None:
        """See `offload`."""


class StateCache(Cache):
    """A layer for each of the decoder's: a `StateLayer`, or one that grows where attention is exact."""

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """All keys, if any layer keeps them: a model makes one mask for all layers, and asks one of them for its size.

        A layer with a state takes the end of such a mask.
        """
        layers: list[Any] = self.layers
        growing = [place for place, layer in enumerate(layers) if type(layer) is DynamicLayer]
        is_state = layer_idx < len(layers) and isinstance(layers[layer_idx], StateLayer)
        return super().get_mask_sizes(query_length, growing[0] if growing and is_state else layer_idx)

    @property
    def nbytes(self) -> int:
        """The memory of all that is kept."""
        layers: list[Any] = self.layers
        states = [tensor for layer in layers for tensor in _tensors(tuple(getattr(layer, "states", ())))]
        kept = [part for layer in layers for part in (getattr(layer, "keys", None), getattr(layer, "values", None))]
        return sum(part.numel() * part.element_size() for part in (*states, *kept) if part is not None)


def state_cache(model: PreTrainedModel) -> StateCache | EncoderDecoderCache:
    """An empty cache for `model.generate(..., past_key_values=state_cache(model))`, or for the model itself.

    With mechanisms whose state is of constant size (linear, favor, infinity, hybrid) it does not grow, and the time of a
    token does not either. Layers with softmax attention keep all keys and values, as ever, and so do those of the few
    families whose decoder does not mark its attention as causal (NLLB-MoE, Pegasus-X).
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
    own = StateCache(layers=layers)
    return EncoderDecoderCache(own, DynamicCache()) if model.config.is_encoder_decoder else own


def _growing_layers(model: PreTrainedModel) -> list[Any]:
    """The layers of the cache that a model would have without a state."""
    try:
        return list(DynamicCache(config=model.config.get_text_config(decoder=True)).layers)
    except AttributeError:  # the config does not say how many layers there are
        raise SubquadError(f"{type(model).__name__} does not generate from a cache: it takes no state cache") from None


def layer_of(module: nn.Module, keys: Tensor) -> StateLayer | None:
    """The layer whose state these keys continue."""
    noted = vars(module).pop(_LAYER, None)
    layer: StateLayer | None = getattr(keys, _LAYER, noted)
    return layer


def _put_state(layers: list[Any], name: str, module: nn.Module) -> None:
    """Puts a state in the place of the layer that a module would keep its keys in."""
    place = getattr_int(module, "layer_idx", -1)
    if not 0 <= place < len(layers):
        raise SubquadError(f"{name} does not say which layer of the cache is its own: generate with a DynamicCache")
    if type(layers[place]) not in (DynamicLayer, DynamicSlidingWindowLayer, StateLayer):
        kept = type(layers[place]).__name__
        raise SubquadError(f"{name} keeps more than keys and values in its cache, a {kept}: generate with a DynamicCache")
    kind: Any = type(module)
    is_owner = changes_cached_keys(kind)
    if is_owner:
        hook_once(module, _forget)
    layers[place] = StateLayer(module if is_owner else None)


def _forget(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Before a module's call, drops the layer that a call before it was given, for this one may come without a cache."""
    vars(module).pop(_LAYER, None)


def _is_constant(module: torch.nn.Module, implementation: str) -> bool:
    """Whether a module's mechanism has a state of constant size. One that is yet to be made is known by its name."""
    if implementation == SWAPPED:
        attend = attached(module)
        return attend is None or bool(attend.options.traits.constant_state)
    options = find_options(implementation)
    require_causal(options)
    return options.traits.constant_state


def _each(state: Any, change: Any) -> Any:
    """A state with every tensor changed."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, tuple):
        parts = [_each(part, change) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def _tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return [tensor for part in state for tensor in _tensors(part)] if isinstance(state, tuple) else []
