"""The questions: what must not change a result is changed, and the results are compared."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from subquad.check.attempts import effect
from subquad.check.findings import Finding, judged, not_asked
from subquad.check.subjects import Inputs, Subject, threads

STEPS = 8
"""Number of positions that are computed one at a time."""
LONG_SECONDS = 5.0
"""Expected time of one call with a long sequence, in seconds, up to which it is made."""
RANDOM = "it draws random numbers in every call, so that two calls agree only if they draw alike"
"""Why something cannot be asked of what draws random numbers, which are others in another thread, length or precision."""
CALLS = 4
"""Number of calls by each of two threads at the same time."""


@torch.no_grad()
def padding(subject: Subject) -> Finding:
    """Asks whether masked positions change the results of the others: by being there, or by what they hold."""
    if subject.no_mask:
        return not_asked("padding", subject.no_mask)
    whole, real = subject.whole, subject.part or subject.whole * 2 // 3
    x = subject.draw(2, whole)
    sizes: dict[str, float] = {}
    real_places, is_random = _real_places(whole, real), subject.is_random()
    for name in subject.sides:
        places = real_places[name]
        keep = torch.zeros(2, whole, dtype=torch.bool)
        keep[:, places] = True
        mixed = subject.mix(x, keep)[:, :, places]
        others = subject.changed(x, (~keep[0]).nonzero()[:, 0])
        sizes[f"other contents of padding, {name}"] = effect(mixed, subject.mix(others, keep)[:, :, places])
        is_comparable = name == "right" or (name == "left" and subject.is_shiftable and subject.form == "causal")
        if subject.part is not None and is_comparable and not is_random:
            start = 0 if name == "right" else whole - real
            alone = subject.mix(subject.cut(x, start, start + real))
            sizes[f"padding against none, {name}"] = effect(alone, mixed)
    sizes |= _beside_a_longer_one(subject, x, real)
    return judged("padding", sizes, subject.allowed, "padding moves the results at real positions")


def _beside_a_longer_one(subject: Subject, x: Inputs, real: int) -> dict[str, float]:
    """What the contents of padding change in a sequence that stands beside one without padding."""
    keep = torch.ones(2, subject.whole, dtype=torch.bool)
    keep[1, real:] = False
    changed = subject.changed(x, torch.arange(real, subject.whole))
    others = tuple(torch.cat([part[:1], other[1:]]) for part, other in zip(x, changed, strict=True))
    before, after = (subject.mix(each, keep)[1:, :, :real] for each in (x, others))
    return {"other contents of padding, beside a longer sequence": effect(before, after)}


def _real_places(whole: int, real: int) -> dict[str, Tensor]:
    """Positions that are real if the others are padding to the right, to the left, or anywhere."""
    scattered = torch.randperm(whole, generator=torch.Generator().manual_seed(5))[:real].sort().values
    return {"right": torch.arange(real), "left": torch.arange(whole - real, whole), "anywhere": scattered}


@torch.no_grad()
def future(subject: Subject) -> Finding:
    """Asks whether later positions change the results of earlier ones: by what they hold, or by being there."""
    if subject.not_causal:
        return not_asked("future", subject.not_causal)
    whole, part = subject.whole, subject.part
    x = subject.draw(2, whole)
    mixed = subject.mix(x)
    sizes = {}
    for cut in (1, whole // 2, whole - 1):
        others = subject.changed(x, torch.arange(cut, whole))
        sizes[f"others from position {cut} on"] = effect(mixed[:, :, :cut], subject.mix(others)[:, :, :cut])
    if part is not None and not subject.is_random():
        sizes[f"no positions from {part} on"] = effect(subject.mix(subject.cut(x, 0, part)), mixed[:, :, :part])
    sizes |= _later_in_long(subject)
    return judged("future", sizes, subject.allowed, "later positions move earlier results")


def _later_in_long(subject: Subject) -> dict[str, float]:
    """What later positions of a long sequence change; empty if it takes no long ones, or too long for them.

    Most attentions compute in blocks or chunks, whose faults show in sequences of several.
    """
    long, start = subject.long, time.perf_counter()
    subject.mix(subject.draw(1, subject.whole))
    seconds = time.perf_counter() - start
    if long is None or long <= subject.whole or seconds * (long / subject.whole) ** 2 > LONG_SECONDS:
        return {}
    x = subject.draw(1, long)
    try:
        mixed = subject.mix(x)
    except Exception:  # a callable may raise anything where it takes no long sequences
        return {}
    cut = long // 2
    after = subject.mix(subject.changed(x, torch.arange(cut, long)))
    return {f"others from position {cut} on, of {long} positions": effect(mixed[:, :, :cut], after[:, :, :cut])}


@torch.no_grad()
def batch(subject: Subject) -> Finding:
    """Asks whether sequences of a batch change each other's results."""
    x = subject.draw(3, subject.whole)
    mixed = subject.mix(x)
    loud = tuple(
        torch.cat([part[:1], other[1:]])
        for part, other in zip(x, subject.changed(x, torch.arange(subject.whole)), strict=True)
    )
    sizes = {
        "alone against in a batch": effect(subject.mix(subject.rows(x, 0, 1)), mixed[:1]),
        "other sequences beside it": effect(mixed[:1], subject.mix(loud)[:1]),
    }
    return judged("batch", sizes, subject.allowed, "other sequences move a sequence's results")


@torch.no_grad()
def chunks(subject: Subject) -> Finding:
    """Asks whether a sequence in pieces, each continued from the state of the one before, equals the whole."""
    if reason := subject.not_causal or subject.no_state:
        return not_asked("chunks", reason)
    if subject.is_random():
        return not_asked("chunks", RANDOM)
    whole = subject.whole
    x = subject.draw(2, whole)
    mixed = subject.mix(x)
    sizes = {
        f"cut at {', '.join(map(str, cuts))}": effect(mixed, _in_pieces(subject, x, (0, *cuts, whole)))
        for cuts in ((1,), (whole // 2,), (whole // 3, 2 * whole // 3 + 1))
    }
    return judged("chunks", sizes, subject.allowed, "pieces that continue a state move the results")


def _in_pieces(subject: Subject, x: Inputs, cuts: Sequence[int]) -> Tensor:
    state, pieces = None, []
    for start, stop in pairwise(cuts):
        mixed, state = subject.go_on(subject.cut(x, start, stop), state)
        pieces.append(mixed)
    return torch.cat(pieces, dim=2)


@torch.no_grad()
def steps(subject: Subject) -> Finding:
    """Asks whether positions computed one at a time equal the whole, from the start and after a longer piece."""
    if reason := subject.not_causal or subject.no_state:
        return not_asked("steps", reason)
    if subject.is_random():
        return not_asked("steps", RANDOM)
    whole = subject.whole
    x = subject.draw(2, whole)
    mixed = subject.mix(x)
    before = whole - STEPS
    after = subject.go_on(subject.cut(x, 0, before), None)[1]
    sizes = {
        f"the first {STEPS} positions": effect(mixed[:, :, :STEPS], _one_by_one(subject, x, 0, None)),
        f"{STEPS} positions after {before}": effect(mixed[:, :, before:], _one_by_one(subject, x, before, after)),
    }
    return judged("steps", sizes, subject.allowed, "single steps move the results")


def _one_by_one(subject: Subject, x: Inputs, start: int, state: object) -> Tensor:
    pieces = []
    for place in range(start, start + STEPS):
        mixed, state = subject.step(subject.cut(x, place, place + 1), state)
        pieces.append(mixed)
    return torch.cat(pieces, dim=2)


@torch.no_grad()
def determinism(subject: Subject) -> Finding:
    """Asks whether the same inputs give the same bits again, after other inputs too, and are left as they were."""
    x, others = subject.draw(2, subject.whole), subject.draw(2, subject.whole, seed=7)
    subject.seed = None
    mixed = subject.mix(x)
    again = subject.mix(x)
    subject.mix(others)
    sizes = {"twice": effect(mixed, again), "again after other inputs": effect(mixed, subject.mix(x))}
    if (written := subject.written(x)) > 0:
        sentence = f"a call writes into its inputs, and changes them by {written:.2g} of their size"
        return Finding("determinism", "fails", sentence, "inputs", written if math.isfinite(written) else None, 0.0)
    return judged("determinism", sizes, 0.0, "the same inputs again move the results")


@torch.no_grad()
def thread_safety(subject: Subject) -> Finding:
    """Asks whether the number of PyTorch's threads, or a call from another thread at the same time, changes results."""
    x, others = subject.draw(2, subject.whole), subject.draw(2, subject.whole, seed=7)
    if subject.is_random():
        return not_asked("threads", RANDOM)
    with threads(1):
        mixed, beside = subject.mix(x), subject.mix(others)
        sizes = {"two calls at the same time": max(_at_the_same_time(subject, {0: (x, mixed), 1: (others, beside)}))}
    with threads(2):
        sizes["two threads against one"] = effect(mixed, subject.mix(x))
    return judged("threads", sizes, subject.allowed, "threads move the results")


def _at_the_same_time(subject: Subject, calls: dict[int, tuple[Inputs, Tensor]]) -> list[float]:
    """The largest difference of each of several threads' results from those of calls one after the other."""
    sizes = dict.fromkeys(calls, float("inf"))  # a thread that raises keeps it

    def call(number: int) -> None:
        x, expected = calls[number]
        with torch.no_grad():
            sizes[number] = max(effect(expected, subject.mix(x)) for _ in range(CALLS))

    callers = [threading.Thread(target=call, args=(number,)) for number in calls]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return list(sizes.values())


Question = Callable[[Subject], Finding]
