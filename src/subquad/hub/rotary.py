"""Counts rotary positions from the first token after left padding, unless position_ids are given.

Softmax attention depends only on differences of rotary positions, so a model may count padding as positions. Other
mechanisms depend on the positions themselves, so that left padding would change the output.
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
    """Makes a model and its submodels count rotary positions from the first token after left padding."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and "attention_mask" in parameters_of(type(part)):
            hook_once(part, _give_positions)


def _give_positions(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Forward pre-hook that adds position_ids if a row begins with padding; refuses models that take none."""
    if _is_exact(model):
        return None
    refuse_tracing()
    names = parameters_of(type(model))
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    mask = arguments.get("attention_mask")
    tokens = next(
        (value for name in ("input_ids", "inputs_embeds") if isinstance(value := arguments.get(name), Tensor)), None
    )
    if arguments.get("position_ids") is not None:
        return None
    if mask is None and torch.compiler.is_compiling():
        return _with_mask(arguments, names, tokens)
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
    if tokens is None or past < 0 or (past > 0 and arguments.get("past_key_values") is None):
        return None
    first_real = mask.long().argmax(1, keepdim=True)
    places = (torch.arange(mask.shape[1], device=mask.device) - first_real).clamp(min=0)[:, past:]
    return (), {**arguments, "position_ids": places}


def _with_mask(arguments: dict[str, Any], names: list[str], tokens: Tensor | None) -> tuple[Any, dict[str, Any]] | None:
    """Adds a mask of ones to a compiled call without mask and positions.

    Without a mask, transformers searches the positions for packed sequences, which a compiled graph cannot do.
    """
    if tokens is None or arguments.get("past_key_values") is not None or "position_ids" not in names:
        return None
    return (), {**arguments, "attention_mask": torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)}


def _is_exact(model: PreTrainedModel) -> bool:
    """Whether all attention of a model is softmax, from subquad or from transformers."""
    name = implementation_of(model)
    if not name.startswith(ATTRIBUTE):
        return True
    if name != SWAPPED:
        return _are_exact((name,))
    described = getattr(model.config, ATTRIBUTE, None)
    return described is not None and _are_exact(tuple(options["kind"] for options in described["mechanisms"]))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _are_exact(names: tuple[str, ...]) -> bool:
    """Whether all mechanisms of these names compute softmax attention itself. Compilers take the answer as a constant."""
    return all(find_options(name).traits.exact for name in names)


def _has_rotary(module: nn.Module) -> bool:
    """Whether a model computes rotary positions outside of its submodels."""
    if "Rotary" in type(module).__name__:
        return True
    return any(_has_rotary(child) for child in module.children() if not isinstance(child, PreTrainedModel))
