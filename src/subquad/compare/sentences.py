"""Crossovers for tables, and sentences about the results of a comparison."""

from collections.abc import Iterator
from typing import NamedTuple

from subquad.compare.views import BASELINE, CAUSAL_WORK, MATERIALISED, Comparison, Failure, View, name_view
from subquad.measure.fits import Crossover
from subquad.statistics import Interval
from subquad.words import amount, capitalized, is_by_layer, share_of_memory, times_as_fast

FAILED = {"out of memory": "ran out of memory", "timeout": "took too long"}
"""What a mechanism did, by kind of failure."""


def comparison_answer(comparison: Comparison, view: View) -> str:
    """The fastest attention at the longest length of a view, in one sentence."""
    speedups = longest_speedups(comparison, view)
    if not speedups:
        return f"Only {BASELINE} was measured ({name_view(view, comparison.views)})."
    name, (length, speedup) = max(speedups.items(), key=lambda item: (item[1].length, item[1].speedup.value))
    work = f"{name_view(view, comparison.views)}, {length} tokens"
    if speedup.value <= 1:
        return f"No attention was faster than PyTorch's fused softmax ({work})."
    crossing = comparison.crossover(view, name)
    start = f", and pays from {pays_from(crossing)} tokens on" if crossing is not None and crossing.within else ""
    return f"{capitalized(name)} is {times_as_fast(speedup.value)} as PyTorch's fused softmax ({work}){start}."


class Longest(NamedTuple):
    """The speed-up of a mechanism at the longest length at which both it and the baseline were measured."""

    length: int
    speedup: Interval


def longest_speedups(comparison: Comparison, view: View) -> dict[str, Longest]:
    """The speed-up of each mechanism but the baseline at its longest length."""
    speedups = {}
    for name in comparison.measured(view):
        shared = set(comparison.lengths(view, name)) & set(comparison.lengths(view, BASELINE))
        if name == BASELINE or not shared:
            continue
        speedup = comparison.speedup(view, name, max(shared))
        assert speedup is not None  # both were measured there
        speedups[name] = Longest(max(shared), speedup)
    return speedups


def pays_from(crossing: Crossover | None, *, with_range: bool = True) -> str:
    """A crossover for tables, such as "1024 (700 to 1300)", or "1024" without its range."""
    if crossing is None:
        return "-"
    if crossing.middle is None:
        return f"not up to {crossing.last_length:.0f}"
    if not with_range:
        is_first = crossing.middle <= crossing.first_length
        return f"{crossing.first_length:.0f} or fewer" if is_first else f"{crossing.middle:.0f}"
    if crossing.middle <= crossing.first_length:
        return f"{crossing.first_length:.0f} or fewer" + (
            "" if crossing.high == crossing.first_length else f" (to {_high(crossing)})"
        )
    low = f"under {crossing.first_length:.0f}" if crossing.low is None else f"{crossing.low:.0f}"
    return f"{crossing.middle:.0f} ({low} to {_high(crossing)})"


def _high(crossing: Crossover) -> str:
    return f"over {crossing.last_length:.0f}" if crossing.high is None else f"{crossing.high:.0f}"


def sentence(comparison: Comparison, view: View, mechanism: str) -> str:
    """A sentence on the length from which a mechanism pays, and on its speed and memory at the longest length."""
    crossing = comparison.crossover(view, mechanism)
    name = f"{mechanism} softmax" if mechanism == MATERIALISED else mechanism
    stopped = _stopped(comparison, view, mechanism)
    if crossing is None:
        return f"{name} was not measured at two lengths{stopped}."
    if crossing.middle is None:
        beyond = comparison.extrapolated(view, mechanism)
        text = f"{name} does not pay within the measured range, up to {crossing.last_length:.0f} tokens"
        if beyond is not None:
            high = "beyond any bound" if beyond.high == float("inf") else f"{beyond.high:.0f}"
            text += f" (by extrapolation, which is less than measured: from {beyond.value:.0f}, {beyond.low:.0f} to {high})"
    elif crossing.high == crossing.first_length:
        text = f"{name} pays at every measured length, {crossing.first_length:.0f} tokens and more"
    elif crossing.middle <= crossing.first_length:
        text = f"{name} pays from {crossing.first_length:.0f} tokens on, or from fewer (to {_high(crossing)})"
    else:
        text = f"{name} pays from {crossing.middle:.0f} tokens on{_range(crossing)}"
    return f"{text}; {_at_the_end(comparison, view, mechanism)}{stopped}."


def _range(crossing: Crossover) -> str:
    low = f"fewer than {crossing.first_length:.0f}" if crossing.low is None else f"{crossing.low:.0f}"
    high = f"more than {crossing.last_length:.0f}" if crossing.high is None else f"{crossing.high:.0f}"
    return f" ({low} to {high})"


def _at_the_end(comparison: Comparison, view: View, mechanism: str) -> str:
    length, speedup = longest_speedups(comparison, view)[mechanism]
    faster = f"at {length} it is {times_as_fast(speedup.value)}"
    mine, theirs = comparison.peak(view, mechanism, length), comparison.peak(view, BASELINE, length)
    if mine is None or theirs is None:
        return faster
    return f"{faster} and needs {share_of_memory(mine, theirs)} ({amount(mine)} against {amount(theirs)})"


def _stopped(comparison: Comparison, view: View, mechanism: str) -> str:
    failure = comparison.failures.get((view, mechanism))
    if failure is None:
        return ""
    why = FAILED.get(failure.failure, f"failed ({failure.message})")
    return f"; at {failure.length} it {why}"


def layer_remarks(comparison: Comparison) -> Iterator[str]:
    """Yields what the figures of different mechanisms by layer are."""
    for name in comparison.mechanisms:
        if is_by_layer(name):
            yield (
                f"{name}: times are the mean of its layers, which run one after the other; memory is that of the layer that "
                "needs most, in decoding the mean state of a layer."
            )


def failure_remarks(comparison: Comparison) -> Iterator[str]:
    """Yields a sentence for each mechanism that raised, that has no time in a view, or that is of another package."""
    works: dict[tuple[str, str], list[str]] = {}
    first: dict[tuple[str, str], Failure] = {}
    for (view, name), failure in comparison.failures.items():
        is_usual = failure.failure in FAILED and ":" not in name  # long sequences need much time and memory
        if is_usual and comparison.lengths(view, name):
            continue
        key = (name, failure.failure)
        works.setdefault(key, []).append(view.what if view.what in CAUSAL_WORK else f"{view.form} {view.what}")
        first[key] = min(first.get(key, failure), failure)
    for (name, kind), work in works.items():
        length, _, message = first[name, kind]
        why = "" if kind in FAILED else f" ({message.rstrip('.')})"
        more = f" and {len(work) - 2} more" if len(work) > 2 else ""
        yield f"{name} {FAILED.get(kind, 'failed')} at {length} tokens{why}: {', '.join(work[:2])}{more}."
