"""What a layer may see, in linear time: one number for each key instead of one for each pair of positions.

transformers describes a mask as a function of two positions, and a dense mask is that function at every pair. Here it is
asked only at the pairs that tell where sequences begin and end. The mask that comes out has the shape ``b 1 1 s``: 0 where a
key is padding, else the number of the key's sequence. Its type says the rest, for an attribute would not survive a copy:

===========  ==================================================================================
type         what a query sees
===========  ==================================================================================
int8         the real keys up to its own position
int32        the keys of its own sequence up to its own position, several sequences in each row
uint8        every real key
int64        every key of its own sequence, several sequences in each row
int16        any other pattern, such as a sliding window: a dense mask ``b 1 n s``
===========  ==================================================================================

There is no mask at all where every query sees every key. Where causality is all there is to say, the mask is a single 1
with strides of 0, which say that nothing is hidden.
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
"""Whether a query sees a key, from the numbers of the sequence and the head and the positions of the query and the key."""


class Visible(NamedTuple):
    """What the mask that reached an attention module says."""

    causal: bool | None = None
    """Whether a query sees nothing ahead of it; None where the mask does not say."""
    keep: Bool[Tensor, "b s"] | None = None
    """True where a key is real; None where all are."""
    numbers: Int[Tensor, "b s"] | None = None
    """Numbers of the keys' sequences, 0 for padding, where several are packed into a row."""
    dense: Tensor | None = None
    """A mask ``b h n s``, where it hides other keys from one query than from another or was not made here."""
    width: int | None = None
    """Number of keys that the mask tells of; None where it tells of all."""


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
    **others: Any,  # transformers gives what one or another implementation wants
) -> Tensor | None:
    """The mask of a layer, as transformers' AttentionMaskInterface asks for it."""
    refuse_tracing()
    stop = kv_offset + kv_length
    causal = mask_function is causal_mask_function
    numbers = None
    if not causal and mask_function is not bidirectional_mask_function:
        # a function of other than positions has to be traced pair by pair
        first = _first_real(attention_mask, batch_size, device)
        is_asked = not use_vmap and not torch.compiler.is_compiling()  # a graph must be right for whatever the answer is
        sequences = _sequences(mask_function, first, kv_offset, stop, q_length) if is_asked else None
        if sequences is None:
            known: dict[str, Any] = {"mask_function": mask_function, "attention_mask": attention_mask, "device": device}
            known |= {"use_vmap": use_vmap, "allow_is_causal_skip": False}
            dense: Any = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, **known)
            return dense.to(PATTERN)
        causal, numbers = sequences
    if causal:
        stop = min(stop, int(q_offset) + q_length)  # a static cache has room for keys that are yet to come
    keep = None
    if attention_mask is not None:
        keep = F.pad(attention_mask, (0, max(0, stop - attention_mask.shape[1])))[:, kv_offset:stop].bool()
    if numbers is not None:
        numbers = numbers[:, : stop - kv_offset] * (1 if keep is None else keep)
        if _is_packed(numbers):
            return numbers[:, None, None].to(PACKED_CAUSAL if causal else PACKED)
        keep = numbers > 0
    if keep is None or (not torch.compiler.is_compiling() and bool(keep.all())):
        one = torch.ones(1, dtype=CAUSAL, device=device)
        return one.as_strided((batch_size, 1, 1, stop - kv_offset), (0, 0, 0, 0)) if causal else None
    return keep[:, None, None].to(CAUSAL if causal else BOTH_WAYS)


def refuse_tracing() -> None:
    """Refuses `torch.jit.trace`, which keeps what depends on the values of its example, such as whether there is padding."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise SubquadError("torch.jit.trace would freeze the mask and the length of its example: use torch.export instead")


def _first_real(attention_mask: Tensor | None, batch_size: int, device: torch.device | str) -> Int[Tensor, "b 1"]:
    """The position of each row's first real key."""
    if attention_mask is None:
        return torch.zeros(batch_size, 1, dtype=torch.long, device=device)
    return attention_mask.long().argmax(1, keepdim=True)


def _sequences(
    sees: Sees, first_real: Int[Tensor, "b 1"], start: int, stop: int, queries: int
) -> tuple[bool, Int[Tensor, "b s"] | None] | None:
    """Whether it is causal, and the number of each key's sequence (None: there is but one). None: it is another pattern.

    A query that sees the key before it is of the same sequence. Other patterns are told by four questions: whether every
    query sees the first key of its sequence; itself; the last key, or else nothing ahead; and the row's first real key, if
    it is of that key's sequence.
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
    """Whether a row holds keys of more than one sequence."""
    largest = numbers.amax(1, keepdim=True)
    return bool(((numbers != 0) & (numbers != largest)).any())


def read_mask(mask: Tensor | None) -> Visible:
    """What a mask says, whether `describe_mask` made it or the model or its user."""
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
    """What is visible to a mechanism that can hide keys from all queries or from none, save those ahead of a query."""
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
    """A dense mask as the keys that are real, where it is causal or hides the same keys from every query; else None."""
    sees = dense[:, 0] if dense.dtype == torch.bool else dense[:, 0] == 0
    if dense.dtype != torch.bool and not bool((sees | (dense[:, 0] < -1e4)).all()):
        return None
    n, s = sees.shape[1:]
    keep = sees[:, -1]  # the last query sees every key that any other does
    if n == 1:
        return Visible(None if queries == 1 else False, keep, width=s)
    both_ways = bool((sees == keep[:, None]).all())
    causal = False
    if n <= s:
        up_to = torch.ones(n, s, dtype=torch.bool, device=dense.device).tril(s - n)
        is_padding = ~keep[:, s - n :, None]  # such a query may see anything
        causal = bool(((sees == (keep[:, None] & up_to)) | is_padding).all())
    return Visible(None if both_ways and causal else causal, keep, width=s) if both_ways or causal else None
