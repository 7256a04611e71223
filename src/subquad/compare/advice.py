"""Which attention to use for a length, from what was measured on this machine."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from subquad.compare.accuracy import Accuracy
from subquad.compare.views import AXES, BASELINE, CAUSAL_WORK, Comparison, View, name_view
from subquad.errors import SubquadError
from subquad.measure.fits import interpolate
from subquad.words import amount, duration, times_as_fast

Wish = Literal["either", "exact", "approximate"]
FAVOR = "favor"
"""The mechanism whose error `subquad error` measures."""
SHORTEST = "the shortest that was measured"
"""What is said of costs that stand for those of shorter sequences."""
WORTH = 1.2
"""Speed-up over exact attention from which an approximation is advised without being asked for."""


class Option(NamedTuple):
    """The cost of one mechanism at the length that was asked about."""

    mechanism: str
    exact: bool
    seconds: float
    peak_bytes: float | None
    basis: str  # measured, between measured lengths, or an extrapolation
    obstacle: str  # why it cannot be used; empty if it can


class Advice(NamedTuple):
    """The chosen mechanism, the reasons in sentences, and all options that were considered."""

    chosen: Option
    sentences: list[str]
    options: list[Option]


def advise(
    comparison: Comparison,
    traits: Mapping[str, Mapping[str, Any]],
    *,
    length: int,
    form: str,
    what: str,
    memory_bytes: float | None = None,
    wish: Wish = "either",
    accuracy: Accuracy | None = None,
    unfit: Mapping[str, str] | None = None,
) -> Advice:
    """Chooses the fastest mechanism that fits, and the fastest exact one unless an approximation is worth it.

    `traits` are those of the mechanisms in run.json. With `accuracy`, FAVOR+ is considered with the number of features that
    reaches the error, and other approximations are not. `unfit` has mechanisms that cannot be used for another reason, which
    it says.
    """
    view = _view(comparison, form, what)
    options = [_option(comparison, view, name, traits, length, memory_bytes, accuracy) for name in comparison.measured(view)]
    options = [option._replace(obstacle=option.obstacle or (unfit or {}).get(option.mechanism, "")) for option in options]
    possible = [option for option in options if not option.obstacle and _wished(option, wish)]
    if not possible:
        limits = "--memory" if accuracy is None else "--memory or --error"
        raise SubquadError(_nothing(options, wish, length, f"{limits}, or leave --race out" if unfit else limits))
    exact = [option for option in possible if option.exact]
    chosen = min(possible, key=lambda option: option.seconds)
    if wish == "either" and exact and not chosen.exact:
        best = min(exact, key=lambda option: option.seconds)
        chosen = chosen if best.seconds / chosen.seconds >= WORTH else best
    ordered = sorted(options, key=lambda option: option.seconds)
    first, *reasons = _reasons(chosen, ordered, view, length, memory_bytes, wish, traits)
    return Advice(chosen, [first, *([] if accuracy is None else accuracy.sentences()), *reasons], ordered)


def has_view(comparison: Comparison, form: str, what: str) -> bool:
    """Whether a form and a kind of work were measured."""
    return bool(_views(comparison, form, what))


def _views(comparison: Comparison, form: str, what: str) -> list[View]:
    return [view for view in comparison.views if view.what == what and (view.form == form or what in CAUSAL_WORK)]


def _view(comparison: Comparison, form: str, what: str) -> View:
    matching = _views(comparison, form, what)
    if not matching:
        known = "; ".join(name_view(view) for view in comparison.views)
        raise SubquadError(f"the run has no rows for {form} {what}: it has {known}; run `subquad compare` for it")
    return matching[0]


def _option(
    comparison: Comparison,
    view: View,
    mechanism: str,
    traits: Mapping[str, Mapping[str, Any]],
    length: int,
    memory_bytes: float | None,
    accuracy: Accuracy | None,
) -> Option:
    visits = comparison.costs(view, mechanism)
    assert visits is not None  # `mechanism` is among the measured ones
    lengths, middle = list(visits.lengths), list(visits.middle)
    failure = comparison.failures.get((view, mechanism))
    peaks = {at: max(1.0, peak) for at in lengths if (peak := comparison.peak(view, mechanism, int(at))) is not None}
    peak = interpolate(list(peaks), list(peaks.values()), length) if peaks else None
    seconds = interpolate(lengths, middle, max(length, lengths[0]))
    basis = "measured" if length in lengths else "interpolated" if length < lengths[-1] else "extrapolated"
    if length < lengths[0]:
        basis = f"of {lengths[0]:.0f} tokens, {SHORTEST}"
    exact = bool(traits.get(mechanism, {}).get("exact", False))
    obstacle = "" if accuracy is None or exact else _inaccuracy(mechanism, accuracy)
    if accuracy is not None and mechanism == FAVOR and accuracy.reach.features is not None:
        factor = accuracy.reach.features / accuracy.timed_features
        seconds, peak = factor * seconds, None if peak is None else factor * peak
        basis = f"{basis} with {accuracy.timed_features} features, scaled to {accuracy.reach.features}"
    if failure is not None and length >= failure.length:
        obstacle = f"{failure.failure} at {failure.length} tokens"
    elif memory_bytes is not None and (peak is None or peak > memory_bytes):
        obstacle = "its memory was not measured" if peak is None else f"needs {amount(peak)}"
    return Option(mechanism, exact, seconds, peak, basis, obstacle)


def _inaccuracy(mechanism: str, accuracy: Accuracy) -> str:
    """Returns why an approximation cannot be used for an error; empty if it can."""
    if mechanism != FAVOR:
        return "its error is not known"
    if accuracy.reach.features is None:
        return f"has an error of {accuracy.reach.measured.value:.2g} with {accuracy.reach.measured_features} features"
    return ""


def _wished(option: Option, wish: Wish) -> bool:
    return wish == "either" or option.exact == (wish == "exact")


def _nothing(options: list[Option], wish: Wish, length: int, limits: str) -> str:
    kind = "" if wish == "either" else f"{wish} "
    why = "; ".join(
        f"{option.mechanism}: {option.obstacle}" for option in options if option.obstacle and _wished(option, wish)
    )
    return f"no {kind}attention that was measured fits {length} tokens ({why or 'none was measured'}): allow more {limits}"


def _reasons(
    chosen: Option,
    options: list[Option],
    view: View,
    length: int,
    memory_bytes: float | None,
    wish: Wish,
    traits: Mapping[str, Mapping[str, Any]],
) -> Any:
    setting = dict(zip(AXES, view.setting, strict=True))
    heads = f"{setting['heads']} heads of {setting['head_dim']}"
    where = f"batch {setting['batch']}, {heads}, {setting['dtype']}, {setting['device']}"
    cost = duration(chosen.seconds) + (
        "" if chosen.peak_bytes is None else f" and {amount(chosen.peak_bytes)} beside its inputs"
    )
    yield f"Use {chosen.mechanism} for {length} tokens: {name_view(view)} takes {cost} ({chosen.basis}; {where})."
    baseline = next((option for option in options if option.mechanism == BASELINE), None)
    if baseline is not None and chosen is not baseline:
        ratio = baseline.seconds / chosen.seconds
        yield f"That is {times_as_fast(ratio)} as PyTorch's fused softmax, which takes {duration(baseline.seconds)}."
    faster = [option for option in options if option.seconds < chosen.seconds and not option.obstacle]
    if chosen.exact and faster and wish == "either":
        gain = chosen.seconds / faster[0].seconds
        yield f"{faster[0].mechanism} would be {times_as_fast(gain)}, which is not worth an approximation."
    elif chosen.exact and not faster and (barred := [option for option in options if option.seconds < chosen.seconds]):
        faster_by = times_as_fast(chosen.seconds / barred[0].seconds)
        yield f"{barred[0].mechanism} would be {faster_by}, but cannot be used: {barred[0].obstacle}."
    elif chosen.exact and not faster:
        yield "Nothing that was measured is faster at this length."
    yield f"What is given up: {traits.get(chosen.mechanism, {}).get('gives_up', 'not known')}."
    if chosen.basis.startswith("extrapolated"):
        yield f"The length is beyond what was measured: `subquad compare --lengths 128..{length}` measures it."
    if SHORTEST in chosen.basis:
        yield f"The length is below what was measured: `subquad compare --lengths {length}` measures it."
