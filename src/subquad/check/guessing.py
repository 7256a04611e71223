"""Finds out how an attention is called, by its parameters and by trying. What was found is said in words."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn

from subquad.attention.outside.building import (
    MissingArgumentError,
    Sizes,
    call_of,
    is_built_first,
    parameters_of,
    required_of,
    size_arguments,
)
from subquad.attention.outside.conventions import Layout
from subquad.attention.outside.importing import gpu_advice, import_named
from subquad.attention.outside.mechanism import Outside, OutsideAttention
from subquad.check.attempts import Attempt, changed, effect, problem_of
from subquad.check.causality import with_causality, with_state
from subquad.check.masks import with_mask
from subquad.check.request import Request
from subquad.errors import SubquadError
from subquad.types import AttentionOptions

LAYOUTS: tuple[Layout, ...] = ("bhnd", "bnhd", "bnm", "nbm")
LAYER_LAYOUTS: tuple[Layout, ...] = ("bnm", "nbm")
LENGTHS = ((157, 101), (256, 128), (1024, 512))
"""Lengths to try, with shorter ones: odd ones first, since many attentions take multiples of a block only."""
KEYS_AND_VALUES = (("k", "v"), ("key", "value"), ("keys", "values"), ("inputs_k", "inputs_v"))
"""Names of arguments for keys and values, by which a call on queries alone is known as one on q, k and v."""
TINY_STEP = 1e-9
"""Step of inputs that is far below the precision of float32 and above that of float64."""
LEAPS = (1e-10, 1e-5)
"""Least and largest change of results after a tiny step that shows a rounding to float32."""


class CallError(SubquadError):
    """An attention that was built cannot be called, or returns something else than results."""


class Guessed(NamedTuple):
    """How an attention is called, the lengths that it takes, its forms, and what was guessed, in words."""

    outside: Outside
    whole: int
    part: int | None  # a shorter length; None if it takes one length only
    forms: tuple[str, ...]
    notes: tuple[str, ...]


def guess(request: Request, thing: Any = None) -> Guessed:
    """Tries how an attention is called. Raises `SubquadError` in words if no call works."""
    thing = import_named(request.target) if thing is None else thing
    if not callable(thing) and not isinstance(thing, AttentionOptions):
        raise SubquadError(
            f"{request.target} is of type {type(thing).__name__}, which cannot be called: name a class or function"
        )
    attempt = _first_call(request, thing)
    with torch.no_grad():
        attempt = with_mask(request, attempt)
        attempt, forms = with_causality(request, attempt)
        attempt = with_state(attempt)
    outside, part = attempt.module.options, attempt.part
    count = sum(held.numel() for held in [*attempt.module.parameters(), *attempt.module.buffers()])
    outside = replace(outside, parameters=count, is_fixed=part is None)
    if part is None:
        attempt = attempt.noting(f"it takes sequences of {attempt.whole} only")
    return Guessed(outside, attempt.whole, part, forms, attempt.notes)


def _first_call(request: Request, thing: Any) -> Attempt:
    """Looks for a length, a dtype and a layout with which the attention can be called and mixes positions."""
    lengths = LENGTHS if request.length is None else ((request.length, max(1, request.length * 2 // 3)),)
    layer = request.layer or _takes_one_input(thing)
    sizes = size_arguments(thing, request.arguments, layer=layer)
    basis = Outside(request.target, dict(request.arguments), sizes, dict(request.call), layer)
    layouts = LAYER_LAYOUTS if layer else LAYOUTS
    problems: dict[tuple[bool, Layout], str] = {}
    built: dict[int, nn.ModuleDict] = {}
    # all lengths for one layout first: where odd lengths are refused, another layout shows other axes as the length
    for layout, (whole, part) in product(layouts if request.layout is None else (request.layout,), lengths):
        options = replace(basis, length=whole, layout=layout)
        if whole not in built:
            built[whole] = _forms(request, options, thing)
        for attempt in _calls(request, replace(options, **_own(thing)), built[whole], thing, whole, problems):
            if attempt.module.options.is_double and _rounds(attempt):
                continue  # the next attempt is in float32
            if _mixes(attempt):
                return _with_part(attempt, part)._replace(notes=tuple(_notes(request, attempt, sizes)))
            tried = attempt.module.options
            problems[tried.is_double, tried.layout] = "no position changes the result of another one"
    raise CallError(_refusal(request, layer, problems))


def _forms(request: Request, options: Outside, thing: Any) -> nn.ModuleDict:
    """Builds the attention. Raises `SubquadError` with the option to use if its constructor asks for more."""
    try:
        return options.forms(thing, Sizes(request.heads, request.head_dim, options.length)).eval()
    except MissingArgumentError as error:
        raise SubquadError(f"{error}; give it with --{request.prefix}arguments {error.argument}=VALUE") from None


def _own(thing: Any) -> dict[str, Any]:
    """What is known of mechanisms of this package without trying."""
    is_options = isinstance(thing, AttentionOptions) or (isinstance(thing, type) and issubclass(thing, AttentionOptions))
    return {"layout": "bhnd"} if is_options else {}


def _calls(
    request: Request,
    options: Outside,
    forms: nn.ModuleDict,
    thing: Any,
    whole: int,
    problems: dict[tuple[bool, Layout], str],
) -> Iterator[Attempt]:
    """Every dtype with which a call returns a result of the right shape."""
    held: Any = forms["bidirectional"]
    call = call_of(getattr(held, "function", held))
    for is_double in (True, False):
        forms.to(torch.float64 if is_double else torch.float32)
        module = OutsideAttention(replace(options, is_double=is_double), request.heads, request.head_dim, forms)
        attempt = Attempt(module, call, thing, whole, None, ())
        if (problem := problem_of(partial(attempt.module, *attempt.draw()))) is None:
            yield attempt
        else:
            problems.setdefault((is_double, options.layout), problem)


def _takes_one_input(thing: Any) -> bool:
    """Whether the call has one required parameter, as a layer on x has."""
    call = thing.forward if isinstance(thing, type) and issubclass(thing, nn.Module) else call_of(thing)
    if is_built_first(thing) and not isinstance(thing, type):
        return False
    names = parameters_of(call)
    required = [name for name in required_of(names) if name != "self"]
    return len(required) == 1 and not any(keys in names and values in names for keys, values in KEYS_AND_VALUES)


def _mixes(attempt: Attempt) -> bool:
    """Whether the first position changes the results of others. It does not with axes in the wrong order."""
    inputs = attempt.draw()
    others = tuple(changed(x, torch.arange(1)) for x in inputs)
    with torch.no_grad():
        before, after = attempt.module(*inputs), attempt.module(*others)
    return effect(before[:, :, 1:], after[:, :, 1:]) > 1e-9


def _rounds(attempt: Attempt) -> bool:
    """Whether an attention computes in float32 what it gets in float64, as some softmax does.

    Results then leap where inputs take tiny steps: the middle of two results is not the result in the middle. What leaps
    further has chosen other keys.
    """
    inputs, ends = attempt.draw(), []
    for step in (TINY_STEP, 0.0, -TINY_STEP):
        torch.manual_seed(0)
        with torch.no_grad():
            ends.append(attempt.module(*(x + step * x.flip(2) for x in inputs)))
    return LEAPS[0] < effect(2 * ends[1], ends[0] + ends[2]) < LEAPS[1]


def _with_part(attempt: Attempt, part: int | None) -> Attempt:
    """Notes a shorter length, if the attention takes it."""
    takes_it = part is not None and problem_of(lambda: attempt.module(*attempt.draw(part))) is None
    return attempt._replace(part=part if takes_it else None)


def _notes(request: Request, attempt: Attempt, sizes: dict[str, Any]) -> Iterator[str]:
    options = attempt.module.options
    if sizes or request.arguments:
        numbers = Sizes(request.heads, request.head_dim, attempt.whole)
        values = {name: numbers.value(size) for name, size in sizes.items()} | dict(request.arguments)
        yield f"built with {', '.join(f'{name}={value!r}' for name, value in values.items())}"
    if options.layer and not request.layer:
        yield "called on x, as a layer"
    if request.layout is None:
        yield f"layout {' '.join(options.layout)}"
    if not options.is_double:
        yield "asked in float32, as it does not compute in float64"


def _refusal(request: Request, layer: bool, problems: Mapping[tuple[bool, Layout], str]) -> str:
    inputs = "x" if layer else "q, k and v"
    said = next(problem for (is_double, _), problem in problems.items() if not is_double)  # for the first layout
    before = f"--{request.prefix}"
    advice = f"{before}call NAME=VALUE gives further arguments, {before}layout says which axes they have"
    advice += "" if layer or request.prefix else ", --layer that it takes x"  # other commands take no layers
    advice = gpu_advice(said) or advice
    return f"{request.target} cannot be called on {inputs} ({said}): {advice}"
