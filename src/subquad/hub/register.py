"""Registers every mechanism as an `attn_implementation` of transformers."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from subquad.attention import MECHANISMS
from subquad.hub._compat import NAMING_METHODS, classes_beside
from subquad.hub.attach import SWAPPED, require_swappable
from subquad.hub.forward import mix
from subquad.hub.masks import describe_mask
from subquad.hub.rotary import count_behind_padding

IMPLEMENTATIONS = (SWAPPED, *(f"subquad_{kind}" for kind in MECHANISMS))


def register() -> None:
    """Registers the mechanisms with transformers. Further calls have no effect."""
    for name in IMPLEMENTATIONS:
        AttentionInterface.register(name, partial(mix, name))
        AttentionMaskInterface.register(name, describe_mask)
    for method in NAMING_METHODS:
        if not hasattr(getattr(PreTrainedModel, method), "is_guarded_by_subquad"):
            setattr(PreTrainedModel, method, _guarded(getattr(PreTrainedModel, method)))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method that sets a model's attention implementation with a check that the model supports it.

    transformers accepts any registered name, even for families that never use the AttentionInterface: they would silently
    keep their attention. For supported models, rotary positions are counted from the first token after left padding.
    """

    @wraps(method)
    def guarded(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        is_ours = any(argument in IMPLEMENTATIONS for argument in (*args, *kwargs.values()))
        if is_ours:
            require_swappable(type(self), classes_beside(type(self)))
            count_behind_padding(self)
        return method(self, *args, **kwargs)

    guarded.is_guarded_by_subquad = True  # type: ignore[attr-defined]
    return guarded
