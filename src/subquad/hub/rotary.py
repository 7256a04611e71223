"""Rotary positions behind left padding: counted from each sequence's first token, where the model was not given any.

Softmax attention sees only how far two rotary positions are apart, so a model may count its padding. Other mechanisms see
where each of them is, and a sequence would come out otherwise with padding before it than alone.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from subquad.errors import SubquadError
from subquad.hub._compat import hook_once, implementation_of, parameters_of
from subquad.hub.attach import ATTRIBUTE, SWAPPED, find_options
from subquad.hub.masks import refuse_tracing


def count_behind_padding(model: PreTrainedModel) -> None:
    """Makes a model with subquad's attention, and those inside it, count their rotary positions behind left padding."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and "attention_mask" in parameters_of(type(part)):
            hook_once(part, _give_positions)


def _give_positions(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Before a model's call: adds position_ids where a row begins with padding; refuses such a row where it takes none."""
    if _is_exact(model):
        return None
    refuse_tracing()
    names = parameters_of(type(model))
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    mask = given.get("attention_mask")
    tokens = next((each for name in ("input_ids", "inputs_embeds") if isinstance(each := given.get(name), Tensor)), None)
    if given.get("position_ids") is not None:
        return None
    if mask is None and torch.compiler.is_compiling():
        return _with_mask(given, names, tokens)
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return None
    if not torch.compiler.is_compiling() and not bool((mask[:, 0] == 0).any()):
        return None
    if not _has_rotary(model):
        return None
    if "position_ids" not in names:
        raise SubquadError(
            f"{type(model).__name__} has rotary positions, takes no position_ids and was given a mask with padding on the "
            "left, where only softmax is blind to a shift of all positions: pad on the right"
        )
    past = 0 if tokens is None else mask.shape[1] - tokens.shape[1]
    if tokens is None or past < 0 or (past > 0 and given.get("past_key_values") is None):
        return None
    first_real = mask.long().argmax(1, keepdim=True)
    places = (torch.arange(mask.shape[1], device=mask.device) - first_real).clamp(min=0)[:, past:]
    return (), {**given, "position_ids": places}


def _with_mask(given: dict[str, Any], names: list[str], tokens: Tensor | None) -> tuple[Any, dict[str, Any]] | None:
    """A mask that hides nothing, for a graph of a call without mask and positions.

    Without it transformers would look for packed sequences in the positions that it makes itself, which a graph cannot.
    """
    if tokens is None or given.get("past_key_values") is not None or "position_ids" not in names:
        return None
    return (), {**given, "attention_mask": torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)}


def _is_exact(model: PreTrainedModel) -> bool:
    """Whether all of a model's attention is softmax, of subquad's or its own."""
    name = implementation_of(model)
    if not name.startswith(ATTRIBUTE):
        return True
    if name != SWAPPED:
        return find_options(name).traits.exact
    described = getattr(model.config, ATTRIBUTE, None)
    return described is not None and all(find_options(options["kind"]).traits.exact for options in described["mechanisms"])


def _has_rotary(module: nn.Module) -> bool:
    """Whether a model makes rotary positions itself, and not a model inside it."""
    if "Rotary" in type(module).__name__:
        return True
    return any(_has_rotary(child) for child in module.children() if not isinstance(child, PreTrainedModel))
