"""How attentions of others take inputs and masks, and what they return."""

from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from subquad.errors import SubquadError

Layout = Literal["bhnd", "bnhd", "bnm", "nbm"]
"""Axes of the inputs: b batch, h heads, n positions, d numbers of a head, m numbers of all heads."""
MaskKind = Literal["keep", "pad", "additive", "lengths"]
"""What a padding mask holds: true for real keys, true for padding, numbers that are added to the scores, or the number of
real keys of each sequence, which come first."""
MaskShape = Literal["keys", "scores"]
"""Shape of a padding mask: (batch, keys), or (batch, 1, 1, keys) as added to scores."""
CausalBy = Literal["nothing", "itself", "method", "call", "constructor", "mask"]
"""What makes the attention causal: it always is; its method `causal`; an argument of its call or constructor; a mask of
scores, (queries, keys)."""


def is_behind(keep: Bool[Tensor, "b s"]) -> bool:
    """Whether all padding comes after the real positions."""
    return not bool((keep[:, 1:] & ~keep[:, :-1]).any())


def first_tensor(returned: Any) -> Tensor:
    """The tensor that a call returned, alone or as the first part of a tuple or list."""
    mixed = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(mixed, Tensor):
        raise SubquadError(f"it returns {type(mixed).__name__}, not a tensor")
    return mixed


def as_mask(keep: Bool[Tensor, "*shape"], kind: MaskKind, dtype: torch.dtype) -> Tensor:
    """A mask that is true for what is seen, in the convention `kind`."""
    if kind == "lengths":
        return keep.sum(-1)
    if kind == "additive":
        return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, -torch.inf)
    return keep if kind == "keep" else ~keep
