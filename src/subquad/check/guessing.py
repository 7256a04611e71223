"""Finds out how an attention is called, by its parameters and by trying. What was found is said in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from subquad.attention.outside.building import (
    CAUSAL_NAMES,
    Sizes,
    call_of,
    is_built_first,
    parameters_of,
    required_of,
    size_arguments,
)
from subquad.attention.outside.conventions import Layout, MaskKind, MaskShape
from subquad.attention.outside.importing import gpu_advice, import_named
from subquad.attention.outside.mechanism import Outside, OutsideAttention
from subquad.check.attempts import Attempt, changed, effect, problem_of
from subquad.checking import LARGEST, Checked, Count, Words
from subquad.errors import SubquadError
from subquad.types import AttentionOptions

LAYOUTS: tuple[Layout, ...] = ("bhnd", "bnhd", "bnm", "nbm")
LAYER_LAYOUTS: tuple[Layout, ...] = ("bnm", "nbm")
LENGTHS = ((157, 101), (256, 128), (1024, 512))
"""Lengths to try, with shorter ones: odd ones first, since many attentions take multiples of a block only."""
MASK_NAMES: dict[str, MaskKind] = {
    **{"keep": "keep", "key_padding_mask": "pad", "src_key_padding_mask": "pad", "padding_mask": "pad", "pad_mask": "pad"},
    **{"key_mask": "keep", "input_mask": "keep", "attention_mask": "keep", "mask": "keep", "attn_mask": "keep"},
    **{"attn_bias": "additive"},
}
"""Names of arguments that take a padding mask, with what it usually holds."""
MASK_WORDS = {"keep": "true = keep", "pad": "true = pad", "additive": "added to scores", "lengths": "numbers of real keys"}
LENGTH_NAMES = ("lengths", "key_lengths", "seq_lengths", "seq_lens")
"""Names of arguments that take the number of real keys of each sequence."""
SCORE_MASKS = ("attn_mask", "src_mask", "attention_mask", "mask", "attn_bias")
"""Names of arguments that take a mask of scores, (queries, keys)."""
KEYS_AND_VALUES = (("k", "v"), ("key", "value"), ("keys", "values"), ("inputs_k", "inputs_v"))
"""Names of arguments for keys and values, by which a call on queries alone is known as one on q, k and v."""
STATES = ("state", "past_key_value", "past_key_values", "past", "layer_past", "cache")
"""Names of arguments that take the state of earlier positions."""
LAYER_ADVICE = ", --layer that it takes x"
"""Part of the advice on how an attention is called that only `subquad check` can take."""
TINY_STEP = 1e-9
"""Step of inputs that is far below the precision of float32 and above that of float64."""
LEAPS = (1e-10, 1e-5)
"""Least and largest change of results after a tiny step that shows a rounding to float32."""
SLIGHT = 1e-12
"""Influence that is as good as none."""
MUCH = 10.0
"""Ratio of two clarities from which on the clearer kind of mask is meant."""
CLEARLY = 3.0
"""Ratio of two effects from which on one of them is clearly the larger."""


Length = Annotated[int, Ge(16), Le(LARGEST)]
"""Number of positions, enough for steps after a longer piece."""


class CallError(SubquadError):
    """An attention that was built cannot be called, or returns something else than results."""


@dataclass(frozen=True)
class Request(Checked):
    """What is known of an attention before it is tried."""

    target: Words
    """Module and name, as in ``package.module:Name``."""
    heads: Count = 8
    head_dim: Count = 64
    layer: bool = False
    layout: Layout | None = None
    mask: MaskKind | None = None
    mask_argument: Words = ""
    causal: bool = False
    """Whether only the causal form is asked for."""
    arguments: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    length: Length | None = None


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
        attempt = _with_mask(request, attempt)
        attempt, forms = _with_causality(request, attempt)
        attempt = _with_state(attempt)
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
            built[whole] = options.forms(thing, Sizes(request.heads, request.head_dim, whole)).eval()
        for attempt in _calls(request, replace(options, **_own(thing)), built[whole], thing, whole, problems):
            if attempt.module.options.is_double and _rounds(attempt):
                continue  # the next attempt is in float32
            if _mixes(attempt):
                return _with_part(attempt, part)._replace(notes=tuple(_notes(request, attempt, sizes)))
            tried = attempt.module.options
            problems[tried.is_double, tried.layout] = "no position changes the result of another one"
    raise CallError(_refusal(request, layer, problems))


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
    advice = "--call NAME=VALUE gives further arguments, --layout says which axes they have"
    advice += "" if layer else LAYER_ADVICE
    advice = gpu_advice(said) or advice
    return f"{request.target} cannot be called on {inputs} ({said}): {advice}"


def _with_mask(request: Request, attempt: Attempt) -> Attempt:
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
        raise SubquadError(f"--mask-argument {request.mask_argument} does not work: the call takes no mask under that name")
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


def _with_causality(request: Request, attempt: Attempt) -> tuple[Attempt, tuple[str, ...]]:
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


def _with_state(attempt: Attempt) -> Attempt:
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
