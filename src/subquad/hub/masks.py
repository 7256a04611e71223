"""Attention masks in linear time: one number for each key instead of one for each pair of positions.

transformers describes a mask as a function of two positions, and a dense mask is that function at every pair. Here the
function is evaluated only at pairs that show where sequences begin and end. The resulting mask has the shape ``b 1 1 s``:
0 for padding, else the number of the key's sequence. Its dtype encodes the rest, since an attribute would be lost in copies:

===========  ==================================================================================
type         what a query sees
===========  ==================================================================================
int8         the real keys up to its own position
int32        the keys of its own sequence up to its own position, several sequences in each row
uint8        every real key
int64        every key of its own sequence, several sequences in each row
int16        any other pattern, such as a sliding window: a dense mask ``b 1 n s``
===========  ==================================================================================

There is no mask if every query sees every key. If the mask is causal without padding, it is a single 1 expanded with
strides of 0, by which it is recognized.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.errors import SubquadError
from subquad.hub._compat import bidirectional_mask_function, causal_mask_function, sdpa_mask

CAUSAL, PACKED_CAUSAL, BOTH_WAYS, PACKED, PATTERN = torch.int8, torch.int32, torch.uint8, torch.int64, torch.int16

Sees = Callable[..., Any]
"""Mask function of transformers: (batch index, head index, query position, key position) -> whether the key is visible."""


class Visible(NamedTuple):
    """The keys that are visible to queries, read from the mask of an attention module."""

    causal: bool | None = None
    """Whether queries see only keys up to their own position; None if the mask does not tell."""
    keep: Bool[Tensor, "b s"] | None = None
    """True for real keys, False for padding; None if all keys are real."""
    numbers: Int[Tensor, "b s"] | None = None
    """Sequence number of each key, 0 for padding; None unless several sequences are packed into a row."""
    dense: Tensor | None = None
    """Dense mask ``b h n s``, for other patterns and for masks that `describe_mask` did not make; else None."""
    width: int | None = None
    """Number of keys that the mask covers; None if it covers all."""


def describe_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Sees = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,  # transformers passes arguments for other implementations
) -> Tensor | None:
    """Makes the mask of a layer; the function that is registered with transformers' AttentionMaskInterface."""
    refuse_tracing()
    stop = kv_offset + kv_length
    causal = mask_function is causal_mask_function
    numbers = None
    if not causal and mask_function is not bidirectional_mask_function:
        # with use_vmap, the function must be evaluated at every pair
        first = _first_real(attention_mask, batch_size, device)
        is_asked = not use_vmap and not torch.compiler.is_compiling()  # a compiled graph cannot depend on the result
        sequences = _sequences(mask_function, first, kv_offset, stop, q_length) if is_asked else None
        if sequences is None:
            arguments: dict[str, Any] = {"mask_function": mask_function, "attention_mask": attention_mask, "device": device}
            arguments |= {"use_vmap": use_vmap, "allow_is_causal_skip": False}
            dense: Any = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, **arguments)
            return dense.to(PATTERN)
        causal, numbers = sequences
    if causal:
        stop = min(stop, int(q_offset) + q_length)  # a static cache also holds places of later keys
    keep = None
    if attention_mask is not None:
        keep = F.pad(attention_mask, (0, max(0, stop - attention_mask.shape[1])))[:, kv_offset:stop].bool()
    if numbers is not None:
        numbers = numbers[:, : stop - kv_offset] * (1 if keep is None else keep)
        if _is_packed(numbers):
            return numbers[:, None, None].to(PACKED_CAUSAL if causal else PACKED)
        keep = numbers > 0
    if keep is None or (not torch.compiler.is_compiling() and bool(keep.all())):
        single = torch.ones(1, dtype=CAUSAL, device=device)
        return single.as_strided((batch_size, 1, 1, stop - kv_offset), (0, 0, 0, 0)) if causal else None
    return keep[:, None, None].to(CAUSAL if causal else BOTH_WAYS)


def refuse_tracing() -> None:
    """Raises `SubquadError` in `torch.jit.trace`, which would freeze decisions made on its example, such as padding."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise SubquadError("torch.jit.trace would freeze the mask and the length of its example: use torch.export instead")


def _first_real(attention_mask: Tensor | None, batch_size: int, device: torch.device | str) -> Int[Tensor, "b 1"]:
    """Returns the position of each row's first real key."""
    if attention_mask is None:
        return torch.zeros(batch_size, 1, dtype=torch.long, device=device)
    return attention_mask.long().argmax(1, keepdim=True)


def _sequences(
    sees: Sees, first_real: Int[Tensor, "b 1"], start: int, stop: int, queries: int
) -> tuple[bool, Int[Tensor, "b s"] | None] | None:
    """Returns (is causal, sequence number of each key or None for a single sequence), or None for any other pattern.

    A query that sees the key before it belongs to the same sequence. Other patterns are ruled out by four tests: every query
    sees the first key of its sequence; itself; either the last key of its sequence or no later key; and the row's first real
    key exactly if it belongs to that key's sequence.
    """
    batch_size, device = len(first_real), first_real.device
    at = torch.arange(start, stop, device=device)
    batch, head = torch.arange(batch_size, device=device)[:, None], torch.zeros((), dtype=torch.long, device=device)

    def ask(q: Tensor, k: Tensor) -> Bool[Tensor, "b s"]:
        q, k = q.expand(batch_size, -1), k.expand(batch_size, -1)
        return sees(batch, head, q, k).expand(q.shape)

    begins = torch.cat([torch.ones_like(batch, dtype=torch.bool), ~ask(at[1:], at[:-1])], dim=1)
    numbers = begins.cumsum(1)
    first = torch.where(begins, at, 0).cummax(1).values
    ahead = ask(at[:-1], at[1:])
    causal = not bool(ahead.any())
    first_real = first_real.clamp(max=stop - 1)
    with_first = numbers == numbers.gather(1, (first_real - start).clamp(min=0))
    sees_first = ask(at, first_real.expand(-1, len(at))) == with_first
    if not bool(ask(at, first).all() & ask(at, at).all() & (sees_first | (at < first_real)).all()):
        return None
    if not causal:
        ends = torch.cat([begins[:, 1:], torch.ones_like(batch, dtype=torch.bool)], dim=1)
        last = torch.where(ends, at, stop).flip(1).cummin(1).values.flip(1)
        if len(at) != queries or not bool((ahead == ~begins[:, 1:]).all() & ask(at, last).all()):
            return None
    return causal, (None if bool((numbers == 1).all()) else numbers)


def _is_packed(numbers: Int[Tensor, "b s"]) -> bool:
    """Whether any row holds keys of more than one sequence."""
    largest = numbers.amax(1, keepdim=True)
    return bool(((numbers != 0) & (numbers != largest)).any())


def read_mask(mask: Tensor | None) -> Visible:
    """Reads a mask, made by `describe_mask`, by the model or by its user."""
    if mask is None:
        return Visible()
    width = mask.shape[-1]
    if mask.ndim == 2 and not mask.is_floating_point():
        return Visible(keep=mask.bool(), width=width)
    if mask.dtype in (CAUSAL, BOTH_WAYS):
        hides_nothing = mask.stride(0) == mask.stride(-1) == 0
        return Visible(mask.dtype == CAUSAL, None if hides_nothing else mask[:, 0, 0].bool(), width=width)
    if mask.dtype in (PACKED_CAUSAL, PACKED):
        return Visible(mask.dtype == PACKED_CAUSAL, numbers=mask[:, 0, 0].long(), width=width)
    return Visible(dense=mask, width=width)


def without_pairs(visible: Visible, queries: int, name: str) -> Visible:
    """Converts a dense mask to a mask of keys, with or without causality. Raises `SubquadError` for other patterns."""
    dense = visible.dense
    if dense is None:
        return visible
    if torch.compiler.is_compiling():
        raise SubquadError(
            f"{name} was given a mask of shape {tuple(dense.shape)} while a graph is made, which cannot depend on what it "
            "hides: give a mask of (batch, positions), or none and no position_ids"
        )
    as_keys = _as_keys(dense, queries) if dense.ndim == 4 and dense.shape[1] == 1 and dense.dtype != PATTERN else None
    if as_keys is None:
        raise SubquadError(
            f"{name} was given a mask of shape {tuple(dense.shape)} that hides other keys from one query than from another, "
            "as a sliding window does, which only softmax can follow: give a mask of (batch, positions), leave such layers "
            "as they are (layers=... of subquad.hub.swap), or set sliding_window=None in the model's config"
        )
    return as_keys


def _as_keys(dense: Tensor, queries: int) -> Visible | None:
    """Converts a dense mask that is causal or hides the same keys from every query; returns None for other masks."""
    sees = dense[:, 0] if dense.dtype == torch.bool else dense[:, 0] == 0
    if dense.dtype != torch.bool and not bool((sees | (dense[:, 0] < -1e4)).all()):
        return None
    n, s = sees.shape[1:]
    keep = sees.any(1)  # keys that any query sees; the last query may be padding, which sees none
    if n == 1:
        return Visible(None if queries == 1 else False, keep, width=s)
    is_blind = ~(keep[:, -n:, None] | sees.any(2, keepdim=True)) if n == s else torch.zeros_like(sees)  # padding queries
    both_ways = bool(((sees == keep[:, None]) | is_blind).all())
    causal = False
    if n <= s:
        up_to = torch.ones(n, s, dtype=torch.bool, device=dense.device).tril(s - n)
        is_padding = ~keep[:, s - n :, None]  # the output of padding queries does not matter
        causal = bool(((sees == (keep[:, None] & up_to)) | is_padding).all())
    return Visible(None if both_ways and causal else causal, keep, width=s) if both_ways or causal else None
