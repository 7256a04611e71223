"""Finds out how an attention takes a padding mask, by the names of its arguments and by trying."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from subquad.attention.outside.conventions import MaskKind, MaskShape
from subquad.check.attempts import Attempt, changed, effect, problem_of
from subquad.check.request import Request
from subquad.errors import SubquadError

MASK_NAMES: dict[str, MaskKind] = {
    **{"keep": "keep", "key_padding_mask": "pad", "src_key_padding_mask": "pad", "padding_mask": "pad", "pad_mask": "pad"},
    **{"key_mask": "keep", "input_mask": "keep", "attention_mask": "keep", "mask": "keep", "attn_mask": "keep"},
    **{"attn_bias": "additive"},
}
"""Names of arguments that take a padding mask, with what it usually holds."""
MASK_WORDS = {"keep": "true = keep", "pad": "true = pad", "additive": "added to scores", "lengths": "numbers of real keys"}
LENGTH_NAMES = ("lengths", "key_lengths", "seq_lengths", "seq_lens")
"""Names of arguments that take the number of real keys of each sequence."""
SLIGHT = 1e-12
"""Influence that is as good as none."""
MUCH = 10.0
"""Ratio of two clarities from which on the clearer kind of mask is meant."""
CLEARLY = 3.0
"""Ratio of two effects from which on one of them is clearly the larger."""


def with_mask(request: Request, attempt: Attempt) -> Attempt:
    """Looks for the argument that takes a padding mask, and for what it holds."""
    named = attempt.named(LENGTH_NAMES) if request.mask in (None, "lengths") else []
    for name in [request.mask_argument] if request.mask == "lengths" and request.mask_argument else named:
        tried = attempt.trying(mask="lengths", mask_argument=name)
        if problem_of(partial(_masked, tried, tried.draw())) is None:
            return tried.noting(f"mask {name} (b), numbers of real keys")
    usual = [request.mask_argument] if request.mask_argument else attempt.named(MASK_NAMES)
    names = usual if request.mask != "lengths" else []
    kinds: tuple[MaskKind, ...] = ("keep", "additive")  # true or false tells keep from pad later
    shapes: tuple[MaskShape, ...] = ("keys", "scores")
    unclear: Attempt | None = None
    for name in names:
        clear: list[_Mask] = []
        for kind, shape in product(kinds, shapes):
            if request.mask is not None and (request.mask == "additive") != (kind == "additive"):
                continue
            tried = attempt.trying(mask=kind, mask_argument=name, mask_shape=shape)
            if problem_of(partial(_masked, tried, tried.draw())) is not None:
                continue
            if (known := _kind_of_mask(request, tried)) is not None:
                clear.append(known)
            unclear = unclear or tried
        if clear:
            known = _clearest(clear)
            return _named_mask(known.tried, known.kind, "")
    if unclear is not None:
        by_name = MASK_NAMES.get(unclear.module.options.mask_argument, "keep")
        return _named_mask(unclear, by_name, ", by its name: it has little effect")
    if request.mask_argument:
        raise SubquadError(
            f"--{request.prefix}mask-argument {request.mask_argument} does not work: the call takes no mask under that name"
        )
    return attempt


class _Mask(NamedTuple):
    """A mask that works, what it holds, and the ratio of the influences of keys that are seen and hidden."""

    tried: Attempt
    kind: MaskKind
    clarity: float


def _clearest(masks: Sequence[_Mask]) -> _Mask:
    """The first mask, or one that is much clearer: true or false added to scores has some effect, too."""
    best = masks[0]
    for mask in masks[1:]:
        best = mask if mask.clarity > MUCH * best.clarity else best
    return best


def _kind_of_mask(request: Request, tried: Attempt) -> _Mask | None:
    """What the mask holds, by which half of the keys changes the results; None if that is not clear."""
    if request.mask is not None:
        return _Mask(tried, request.mask, 1.0)
    of_true, of_false = (influence + SLIGHT for influence in _influences(tried))
    kind = tried.module.options.mask
    if kind is not None and of_true > CLEARLY * of_false:
        return _Mask(tried, kind, of_true / of_false)
    is_reversed = of_false > CLEARLY * of_true and kind == "keep"
    return _Mask(tried, "pad", of_false / of_true) if is_reversed else None


def _named_mask(tried: Attempt, kind: MaskKind, reason: str) -> Attempt:
    options = tried.module.options
    shape = "(b, n)" if options.mask_shape == "keys" else "(b, 1, 1, n)"
    words = MASK_WORDS[kind]
    return tried.noting(f"mask {options.mask_argument} {shape}, {words}{reason}", mask=kind)


def _masked(attempt: Attempt, inputs: tuple[Tensor, ...]) -> Tensor:
    """The result with a mask that is true for every other key."""
    keep = torch.zeros(2, inputs[0].shape[2], dtype=torch.bool)
    keep[:, ::2] = True
    return attempt.module(*inputs, keep=keep)


def _influences(attempt: Attempt) -> tuple[float, float]:
    """How much keys change the results elsewhere: those for which the mask is true, and those for which it is false."""
    inputs = attempt.draw()
    before, influences = _masked(attempt, inputs), []
    unchanged = torch.arange(attempt.whole) % 4 >= 2  # keys of both kinds
    for start in (0, 1):
        places = torch.arange(start, attempt.whole, 4)
        after = _masked(attempt, tuple(changed(x, places) for x in inputs))
        influences.append(effect(before[:, :, unchanged].nan_to_num(), after[:, :, unchanged].nan_to_num()))
    return influences[0], influences[1]
