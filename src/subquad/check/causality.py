"""Finds out what makes an attention causal, and how it takes a state, by the names of its arguments and by trying."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from subquad.attention.outside.building import CAUSAL_NAMES, Sizes, is_built_first, parameters_of
from subquad.attention.outside.conventions import MaskKind
from subquad.attention.outside.mechanism import OutsideAttention
from subquad.check.attempts import Attempt, changed, effect, problem_of
from subquad.check.masks import MASK_WORDS
from subquad.check.request import Request
from subquad.errors import SubquadError

SCORE_MASKS = ("attn_mask", "src_mask", "attention_mask", "mask", "attn_bias")
"""Names of arguments that take a mask of scores, (queries, keys)."""
STATES = ("state", "past_key_value", "past_key_values", "past", "layer_past", "cache")
"""Names of arguments that take the state of earlier positions."""


def with_causality(request: Request, attempt: Attempt) -> tuple[Attempt, tuple[str, ...]]:
    """Looks for what makes the attention causal, and returns the forms that it has."""
    forms = ("causal",) if request.causal else ("bidirectional", "causal")
    inputs = attempt.draw()
    seen = effect(*(_first(attempt.module(*x)) for x in (inputs, _later_changed(inputs))))
    runs: list[Attempt] = []
    if seen < 1e-6:
        return attempt.noting("causal by itself", causal_by="itself"), ("causal",)
    for tried in _causal_ways(request, attempt):
        if problem_of(partial(tried.module.causal, *inputs)) is not None:
            continue
        leak = effect(*(_first(tried.module.causal(*x)[0]) for x in (inputs, _later_changed(inputs))))
        if leak < seen / 2:
            return _named_causality(tried), forms
        if tried.module.options.causal_by != "mask":
            runs.append(tried)
    if runs:  # it says that it is causal, and is not
        return _named_causality(runs[0]), forms
    if request.causal:
        return attempt.trying(causal_by="itself"), ("causal",)
    return attempt, ("bidirectional",)


def _causal_ways(request: Request, attempt: Attempt) -> Iterator[Attempt]:
    """The ways in which an attention may be told to be causal, the most explicit ones first."""
    held = attempt.module.held["causal"]
    if callable(getattr(held, "causal", None)):
        yield attempt.trying(causal_by="method", steps=callable(getattr(held, "step", None)))
    yield from (attempt.trying(causal_by="call", causal_argument=name) for name in attempt.named(CAUSAL_NAMES))
    if is_built_first(attempt.constructor):
        known = parameters_of(attempt.constructor)
        for name in (name for name in CAUSAL_NAMES if name in known and name not in request.arguments):
            yield _rebuilt(attempt, name)
    kinds: tuple[MaskKind, ...] = ("pad", "keep", "additive")
    for name in attempt.named(SCORE_MASKS):
        for kind in kinds:
            yield attempt.trying(causal_by="mask", causal_argument=name, causal_mask=kind)


def _rebuilt(attempt: Attempt, name: str) -> Attempt:
    """The attempt with a causal form that is built by an argument of the constructor."""
    old = attempt.module
    options = replace(old.options, causal_by="constructor", causal_argument=name)
    forms = options.forms(attempt.constructor, Sizes(old.heads, old.head_dim, attempt.whole)).eval()
    forms.to(torch.float64 if options.is_double else torch.float32)
    return attempt._replace(module=OutsideAttention(options, old.heads, old.head_dim, forms))


def _named_causality(attempt: Attempt) -> Attempt:
    options = attempt.module.options
    words = {
        "method": "its method causal",
        "call": f"{options.causal_argument}=True in the call",
        "constructor": f"{options.causal_argument}=True in the constructor",
        "mask": f"{options.causal_argument} (n, n), " + MASK_WORDS[options.causal_mask],
    }
    return attempt.noting(f"causal by {words[options.causal_by]}")


def _first(mixed: Tensor) -> Tensor:
    return mixed[:, :, :1]


def _later_changed(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(changed(x, torch.arange(1, x.shape[2])) for x in inputs)


def with_state(attempt: Attempt) -> Attempt:
    """Looks for an argument that takes a state, for a causal form without methods."""
    options = attempt.module.options
    if options.causal_by in ("nothing", "method"):
        return attempt
    for name in attempt.named(STATES):
        tried = attempt.trying(state_argument=name)
        inputs = tried.draw(attempt.part)

        def twice(tried: Attempt = tried, inputs: tuple[Tensor, ...] = inputs) -> None:
            state = tried.module.causal(*inputs)[1]
            if state is None:
                raise SubquadError("it returns no state")
            tried.module.causal(*inputs, state)

        if problem_of(twice) is None:
            return tried.noting(f"state by {name}, returned beside the result")
    return attempt
