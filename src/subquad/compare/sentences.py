"""What a comparison says, in sentences."""

from subquad.compare.views import BASELINE, MATERIALISED, Comparison, View
from subquad.measure.fits import Crossover
from subquad.words import amount, share_of_memory, times_as_fast


def pays_from(found: Crossover | None) -> str:
    """A crossover, short: for tables."""
    if found is None:
        return "-"
    if found.middle is None:
        return f"not up to {found.last_length:.0f}"
    if found.middle <= found.first_length:
        return f"{found.first_length:.0f} or fewer" + ("" if found.high == found.first_length else f" (to {_high(found)})")
    low = f"under {found.first_length:.0f}" if found.low is None else f"{found.low:.0f}"
    return f"{found.middle:.0f} ({low} to {_high(found)})"


def _high(found: Crossover) -> str:
    return f"over {found.last_length:.0f}" if found.high is None else f"{found.high:.0f}"


def sentence(comparison: Comparison, view: View, mechanism: str) -> str:
    """From where on a mechanism pays in a view, and what it gives at the longest length."""
    found = comparison.crossover(view, mechanism)
    name = f"{mechanism} softmax" if mechanism == MATERIALISED else mechanism
    stopped = _stopped(comparison, view, mechanism)
    if found is None:
        return f"{name} was not measured at two lengths{stopped}."
    if found.middle is None:
        beyond = comparison.extrapolated(view, mechanism)
        text = f"{name} does not pay within the measured range, up to {found.last_length:.0f} tokens"
        if beyond is not None:
            high = "beyond any bound" if beyond.high == float("inf") else f"{beyond.high:.0f}"
            text += f" (by extrapolation, which is less than measured: from {beyond.value:.0f}, {beyond.low:.0f} to {high})"
    elif found.high == found.first_length:
        text = f"{name} pays at every measured length, {found.first_length:.0f} tokens and more"
    elif found.middle <= found.first_length:
        text = f"{name} pays from {found.first_length:.0f} tokens on, or from fewer (to {_high(found)})"
    else:
        text = f"{name} pays from {found.middle:.0f} tokens on{_range(found)}"
    return f"{text}; {_at_the_end(comparison, view, mechanism)}{stopped}."


def _range(found: Crossover) -> str:
    low = f"fewer than {found.first_length:.0f}" if found.low is None else f"{found.low:.0f}"
    high = f"more than {found.last_length:.0f}" if found.high is None else f"{found.high:.0f}"
    return f" ({low} to {high})"


def _at_the_end(comparison: Comparison, view: View, mechanism: str) -> str:
    length = max(set(comparison.lengths(view, mechanism)) & set(comparison.lengths(view, BASELINE)))
    speedup = comparison.speedup(view, mechanism, length)
    assert speedup is not None  # both were measured there
    faster = f"at {length} it is {times_as_fast(speedup.value)}"
    mine, theirs = comparison.peak(view, mechanism, length), comparison.peak(view, BASELINE, length)
    if mine is None or theirs is None:
        return faster
    return f"{faster} and needs {share_of_memory(mine, theirs)} ({amount(mine)} against {amount(theirs)})"


def _stopped(comparison: Comparison, view: View, mechanism: str) -> str:
    failure = comparison.failures.get((view, mechanism))
    if failure is None:
        return ""
    why = {"out of memory": "it ran out of memory", "timeout": "it took too long"}.get(
        failure.failure, f"it failed ({failure.message})"
    )
    return f"; at {failure.length} {why}"
