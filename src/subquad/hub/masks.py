"""What a layer may see, in linear time: one number for each key instead of one for each pair of positions.

transformers describes a mask as a function of two positions, and a dense mask is that function at every pair. Here it is
asked only at the pairs that tell where sequences begin and end. What comes out is one of

- None: nothing is hidden;
- booleans ``b s``, true where a key is real;
- integers ``b s``: 0 for padding, else the number of a key's sequence, where several are packed into a row;
- a dense mask ``b 1 n s``, for patterns that no numbers tell, such as sliding windows.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from subquad.errors import SubquadError

_PATTERN = "_subquad_pattern"

Sees = Callable[..., Any]
"""Of sequence, head, query's position and key's position: whether the query sees the key."""


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
    stop = kv_offset + kv_length
    causal = mask_function is causal_mask_function
    numbers = None
    if not causal and mask_function is not bidirectional_mask_function:
        # a function of other than positions has to be traced pair by pair
        found = None if use_vmap else _sequences(mask_function, batch_size, kv_offset, stop, q_length, device)
        if found is None:
            known: dict[str, Any] = {"mask_function": mask_function, "attention_mask": attention_mask, "device": device}
            known |= {"use_vmap": use_vmap, "allow_is_causal_skip": False}
            dense = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, **known)
            setattr(dense, _PATTERN, True)  # which a single query's mask does not show
            return dense
        causal, numbers = found
    if causal:
        stop = min(stop, int(q_offset) + q_length)  # a static cache has room for keys that are yet to come
    width = stop - kv_offset
    keep = None if attention_mask is None else F.pad(attention_mask, (0, max(0, stop - attention_mask.shape[1])))
    keep = None if keep is None else keep[:, kv_offset:stop].bool()
    if numbers is not None:
        return numbers[:, :width] if keep is None else numbers[:, :width] * keep
    if keep is None and width < kv_length:
        return torch.ones(batch_size, width, dtype=torch.bool, device=device)
    return None if keep is None or (width == kv_length and bool(keep.all())) else keep


def _sequences(
    sees: Sees, batch_size: int, start: int, stop: int, queries: int, device: torch.device | str
) -> tuple[bool, Int[Tensor, "b s"] | None] | None:
    """Whether it is causal, and the number of each key's sequence (None: there is but one). None: it is another pattern.

    A query that sees the key before it is of the same sequence. Other patterns are told by four questions: whether every
    query sees the first key of its sequence; itself; the last key, or else nothing ahead; and key 0, if it is of the first.
    """
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
    if not bool(ask(at, first).all() & ask(at, at).all() & (ask(at, torch.zeros_like(at)) == (numbers == 1)).all()):
        return None
    if not causal:
        ends = torch.cat([begins[:, 1:], torch.ones_like(batch, dtype=torch.bool)], dim=1)
        last = torch.where(ends, at, stop).flip(1).cummin(1).values.flip(1)
        if len(at) != queries or not bool((ahead == ~begins[:, 1:]).all() & ask(at, last).all()):
            return None
    return causal, (None if bool((numbers == 1).all()) else numbers)


def refusal(family: str) -> str:
    """What is said of a family that cannot be swapped."""
    return (
        f"{family} cannot be swapped: its attention is built in and does not go through transformers' AttentionInterface, "
        "as that of BERT, DistilBERT, RoBERTa, GPT-2, Llama and BART does"
    )


def padding_of(mask: Tensor, name: str) -> Tensor:
    """The booleans or integers ``b s`` in a mask that hides the same keys from every query, whoever made it."""
    if mask.ndim == 2 and not mask.is_floating_point():
        return mask if mask.dtype == torch.bool or int(mask.max()) > 1 else mask.bool()
    if mask.ndim == 4 and mask.shape[1:3] == (1, 1) and not hasattr(mask, _PATTERN):
        flat = mask[:, 0, 0]
        if flat.dtype == torch.bool:
            return flat
        if bool(((flat == 0) | (flat < -1e4)).all()):
            return flat == 0
    raise SubquadError(
        f"{name} was given a mask of shape {tuple(mask.shape)} that hides other keys from one query than from another, as a "
        "sliding window does, which only softmax can follow: give a mask of (batch, positions), leave such layers as they "
        "are (layers=... of subquad.hub.swap), or set sliding_window=None in the model's config"
    )
