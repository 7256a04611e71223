"""States in the place of keys and values: the cache with which `generate` runs in constant memory."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from subquad.attention import Softmax, SoftmaxAttention, require_causal
from subquad.errors import SubquadError
from subquad.hub.attach import SWAPPED, attached, attention_modules, find_options, getattr_int
from subquad.types import CausalAttention

_LAYER = "_subquad_layer"


class StateLayer(CacheLayerMixin):
    """What one layer remembers: the state of its mechanism, a named tuple of tensors, and how many positions it has seen.

    A model calls `update` with new keys and values and passes what it gets on to the attention. It gets the new ones alone;
    that they continue this layer's state is noted on the keys, where the attention finds it.
    """

    is_sliding = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state: Any = None
        self.seen = 0
        self.is_waiting = False  # for the attention to take what came in

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.is_waiting:
            raise SubquadError(
                "the attention of this model did not find its state: use the state cache only while the model's attention "
                "is subquad's, and a DynamicCache where it changes keys after they were cached"
            )
        self.lazy_initialization(key_states, value_states)
        self.is_waiting = True
        self.seen += key_states.shape[2]
        keys = key_states.view_as(key_states)
        setattr(keys, _LAYER, self)
        return keys, value_states

    def attend(self, attend: CausalAttention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """Continues the state with new positions."""
        self.is_waiting = False
        if q.shape[2] == 1 and keep is None:
            mixed, self.state = attend.step(q, k, v, self.state, reuse=not torch.is_grad_enabled())
        else:
            mixed, self.state = attend.causal(q, k, v, self.state, keep=keep)
        return mixed

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Only what is new is masked, behind all that was seen."""
        return query_length, self.seen

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """The states of these sequences."""
        self.state = _each(self.state, lambda part: part[indices.to(part.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence's state so many times."""
        self.state = _each(self.state, lambda part: part.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise SubquadError("a state cannot forget its last tokens, as assisted generation asks: use a DynamicCache")

    def offload(self) -> None:
        """A state is small enough to stay where it is."""

    def prefetch(self) -> None:
        """See `offload`."""


class StateCache(Cache):
    """A layer for each of the decoder's: a `StateLayer`, or one that grows where attention is exact."""

    @property
    def nbytes(self) -> int:
        """The memory of all that is kept."""
        layers: list[Any] = self.layers
        parts = [part for layer in layers for part in (layer.keys, layer.values, *_tensors(getattr(layer, "state", None)))]
        return sum(part.numel() * part.element_size() for part in parts if part is not None)


def state_cache(model: PreTrainedModel) -> StateCache | EncoderDecoderCache:
    """An empty cache for `model.generate(..., past_key_values=state_cache(model))`, or for the model itself.

    With mechanisms whose state is of constant size (linear, favor, infinity, hybrid) it does not grow, and the time of a
    token does not either. Layers with softmax attention keep all keys and values, as ever.
    """
    if not str(model.config._attn_implementation).startswith("subquad"):
        raise SubquadError(
            "a state cache is for a model with subquad's attention: swap it first, with subquad.hub.swap(model, 'favor')"
        )
    layers: list[Any] = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    for name, module in attention_modules(model).items():
        if not getattr(module, "is_causal", False):
            continue
        place = getattr_int(module, "layer_idx", -1)
        if not 0 <= place < len(layers):
            raise SubquadError(f"{name} does not say which layer of the cache is its own: generate with a DynamicCache")
        if _is_constant(module, model.config._attn_implementation):
            layers[place] = StateLayer()
    own = StateCache(layers=layers)
    return EncoderDecoderCache(own, DynamicCache()) if model.config.is_encoder_decoder else own


def layer_of(keys: Tensor) -> StateLayer | None:
    """The layer whose state these keys continue."""
    return getattr(keys, _LAYER, None)


def _is_constant(module: torch.nn.Module, implementation: str) -> bool:
    """Whether a module's mechanism has a state of constant size. One that is yet to be made is known by its name."""
    if implementation == SWAPPED:
        return not isinstance(attached(module), SoftmaxAttention)
    options = find_options(implementation)
    require_causal(options.build(heads=1, width=2), options.kind)
    return not isinstance(options, Softmax)


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
