"""Every mechanism as an `attn_implementation` of transformers."""

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
    """Tells transformers of the mechanisms. Once is enough; a second time changes nothing."""
    for name in IMPLEMENTATIONS:
        AttentionInterface.register(name, partial(mix, name))
        AttentionMaskInterface.register(name, describe_mask)
    for method in NAMING_METHODS:
        if not hasattr(getattr(PreTrainedModel, method), "is_guarded_by_subquad"):
            setattr(PreTrainedModel, method, _guarded(getattr(PreTrainedModel, method)))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that gives a model the name of its attention, with a check before it.

    transformers takes any name that is registered, even for families that never look it up: they would run on as they are,
    and whoever measures them would take the result for the mechanism's. Those that do look it up are made to count rotary
    positions behind left padding.
    """

    @wraps(method)
    def guarded(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        asked = any(given in IMPLEMENTATIONS for given in (*args, *kwargs.values()))
        if asked:
            require_swappable(type(self), classes_beside(type(self)))
            count_behind_padding(self)
        return method(self, *args, **kwargs)

    guarded.is_guarded_by_subquad = True  # type: ignore[attr-defined]
    return guarded
