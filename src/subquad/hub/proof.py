"""Checks a swapped model on a few synthetic tokens: properties of its own attention must hold for the mechanism too.

Each check compares two runs of the model that must agree. A check that fails for the model's own attention (an encoder sees
later tokens, learned positions move with padding) is not applied to the mechanism.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from subquad.attention import Softmax
from subquad.errors import SubquadError
from subquad.hub._compat import Implementations, implementations, own_implementation, set_implementations
from subquad.hub.attach import ATTRIBUTE, attached, attention_modules, hang
from subquad.hub.cache import state_cache
from subquad.hub.forward import mix
from subquad.hub.inputs import CHANGED, HEAD_DIM, PADDING, REAL
from subquad.hub.probe import Part, Prober, Seen, Watch, lookalikes

SAYS = {
    "softmax": "softmax through subquad differs from the model's own attention",
    "future": "changing later tokens changed earlier outputs",
    "left padding": "changing the tokens under padding on the left changed outputs",
    "right padding": "changing the tokens under padding on the right changed outputs",
    "left alone": "a sequence with padding on its left differs from the same one alone",
    "right alone": "a sequence with padding on its right differs from the same one alone",
    "batch": "an input in a batch differs from the same one alone",
    "cache": "a continuation from a cache differs from the whole",
    "state": "a continuation from a state cache differs from the whole",
}
"""Message for each check that fails."""


class Proved(NamedTuple):
    """Result of one check of a model."""

    check: str
    """Name of the check: a key of `SAYS`, or "covered" for whether all attention goes through the mechanisms."""
    module: str
    """Name of the first attention module that fails, or with the largest difference; empty for the model's output."""
    difference: float
    """Largest difference, relative to the root mean square of the output."""
    allowed: float
    """Largest difference that passes."""
    holds: bool | None
    """Whether the check passed; None if the model's own attention does not pass it either."""
    says: str
    """Description of the result in words."""


def check(model: PreTrainedModel, inputs: dict[str, Any] | None = None) -> list[Proved]:
    """Checks a model with subquad's mechanisms and returns one result for each check.

    The model is called about ten times with nine synthetic tokens, in eval mode, and is left unchanged. `inputs` replace the
    synthetic ones for models with other inputs; then only softmax is compared with the model's own attention.
    """
    if any(attached(module) is None for module in attention_modules(model).values()):
        raise SubquadError("a check is for a model with subquad's mechanisms: swap it first, with subquad.hub.swap")
    ours = implementations(model)
    try:
        model.set_attn_implementation(own_implementation(model))
        theirs = implementations(model)
    finally:
        set_implementations(ours)
    return list(_checks(model, theirs, inputs))


def prove(model: PreTrainedModel, original: Implementations) -> None:
    """Raises `SubquadError` if a check of a swapped model fails; `original` names its attention before the swap."""
    for row in _checks(model, original, None):
        if row.holds is False:
            raise SubquadError(f"{type(model).__name__} cannot be swapped: {row.says} (check=False swaps it all the same)")


def _checks(model: PreTrainedModel, own_attention: Implementations, inputs: dict[str, Any] | None) -> Iterator[Proved]:
    """Yields the results of all checks, beginning with those that need the fewest calls."""
    prober, ours = Prober(model), implementations(model)
    beside = lookalikes(model)
    if beside and any(
        hasattr(part, "set_attention_type") for part in model.modules()
    ):  # short inputs would change the attention type of such models
        yield _beside(beside[0], prober.allowed)
        return
    with _undisturbed(model), torch.no_grad():
        try:
            set_implementations(own_attention)
            original = prober.start(inputs)
            set_implementations(ours)
            with _softmax(prober.modules):
                exact = prober.runs()
            equal = _row("softmax", prober.equal(original, exact), {}, prober.allowed)
            yield equal
            prober.allow(equal.difference)
            with Watch(model, mix.__code__) as watch:
                mixed = prober.runs()
            yield _covered(prober, beside, watch)
            for name, (first, second) in _PAIRS.items():
                if first.batch in mixed and second.batch in mixed:
                    theirs = dict(prober.differences(original, first, second))
                    yield _row(name, prober.differences(mixed, first, second), theirs, prober.allowed)
            yield from _continued(prober, mixed, original, own_attention)
        finally:
            set_implementations(ours)


def _continued(
    prober: Prober, mixed: dict[str, Seen], original: dict[str, Seen], own_attention: Implementations
) -> Iterator[Proved]:
    """Compares continuations from the model's cache and from a state cache with whole sequences."""
    if not prober.takes_cache:
        return
    ours = implementations(prober.model)
    caches: dict[str, Any] = {"cache": None}
    try:
        caches["state"] = state_cache(prober.model)
    except SubquadError as error:
        yield Proved("state", "", 0.0, prober.allowed, None, str(error))
    for name, cache in caches.items():
        try:
            differences = prober.continued(mixed, cache)
        except Exception as error:  # a model may raise anything for a cache of another class
            problem = f"it cannot go on from its {name} ({type(error).__name__}: {next(iter(str(error).splitlines()), '')})"
            yield Proved(name, "", 0.0, prober.allowed, None, problem)
            continue
        theirs: dict[str, float] = {}
        if any(not share <= prober.allowed for _, share in differences):
            set_implementations(own_attention)
            theirs = dict(prober.continued(original, None))
            set_implementations(ours)
        if differences:
            yield _row(name, differences, theirs, prober.allowed)


def _row(name: str, ours: Sequence[tuple[str, float]], theirs: Mapping[str, float], allowed: float) -> Proved:
    """Makes the result of a check from the modules' differences, and those with the model's own attention (`theirs`)."""
    failing = [pair for pair in ours if not pair[1] <= allowed]
    worst = max(ours, key=lambda pair: pair[1], default=("", 0.0))
    module, share = next((pair for pair in failing if theirs.get(pair[0], 0.0) <= allowed), worst)
    holds = None if failing and (module, share) == worst and theirs.get(module, 0.0) > allowed else not failing
    where = module or "its output"
    says = f"{where}: {SAYS[name]} by {share:.2g} of their size, where {allowed:.2g} is allowed"
    return Proved(name, module, share, allowed, holds, says)


def _covered(prober: Prober, beside: Sequence[str], watch: Watch) -> Proved:
    """Checks that no attention is computed outside the mechanisms, and lists modules that the inputs did not reach."""
    for stack, size in watch.attending.items():
        lookalike = next((name for name in stack if name in beside), None)
        if lookalike or (prober.has_tokens and size in ((REAL, REAL), (HEAD_DIM, HEAD_DIM))):
            return _beside(lookalike or stack[-1], prober.allowed)
    if idle := [name for name in beside if name not in watch.called]:
        return _beside(idle[0], prober.allowed)
    missed = [name for name in prober.modules if name not in watch.called]
    says = f"not reached by made-up inputs: {', '.join(missed)}" if missed else "every attention module was reached"
    return Proved("covered", "", 0.0, prober.allowed, True, says)


def _beside(name: str, allowed: float) -> Proved:
    says = f"{name} computes attention that does not go through transformers' AttentionInterface, so it would be kept"
    return Proved("covered", name, 1.0, allowed, False, says)


@contextmanager
def _undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Within the `with` block, puts a model in eval mode; training flags and random state are restored afterwards."""
    training = {module: module.training for module in model.modules()}
    devices = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        try:
            model.eval()
            yield
        finally:
            for module, flag in training.items():
                module.training = flag


@contextmanager
def _softmax(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Within the `with` block, replaces every mechanism by softmax."""
    held = {module: attached(module) for module in modules.values()}
    try:
        for module in held:
            hang(module, Softmax(), 0, original=True)
        yield
    finally:
        for module, attend in held.items():
            setattr(module, ATTRIBUTE, attend)


_PAIRS = {
    "future": (Part("alone", 0, slice(REAL - CHANGED)), Part("alone", 1, slice(REAL - CHANGED))),
    "left padding": (Part("padded", 0, slice(PADDING, None)), Part("padded", 1, slice(PADDING, None))),
    "right padding": (Part("padded", 2, slice(REAL)), Part("padded", 3, slice(REAL))),
    "left alone": (Part("padded", 0, slice(PADDING, None)), Part("alone", 0, slice(None))),
    "right alone": (Part("padded", 2, slice(REAL)), Part("alone", 0, slice(None))),
    "batch": (Part("two", 0, slice(None)), Part("one", 0, slice(None))),
}
"""Pairs of parts of the synthetic inputs whose outputs must agree, by check."""
