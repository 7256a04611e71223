"""What a comparison says, in sentences."""

from subquad.experiments.compare.views import BASELINE, MATERIALISED, Comparison, View
from subquad.measure.fits import Crossover
from subquad.measure.timing import Interval


def figure(value: float) -> str:
    """Two to three digits, which is what measurements here are good for."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def between(interval: Interval) -> str:
    """A middle and its range."""
    return f"{figure(interval.middle)} ({figure(interval.low)} to {figure(interval.high)})"


def amount(value: float) -> str:
    """Bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{figure(value / size)} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Seconds, in the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{figure(seconds / size)} {unit}"
    return f"{figure(seconds / 1e-6)} µs"


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
            text += f" (by extrapolation, which is less than measured: from {beyond.middle:.0f}, {beyond.low:.0f} to {high})"
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
    faster = f"at {length} it is {figure(speedup.middle)} times as fast"
    mine, theirs = comparison.peak(view, mechanism, length), comparison.peak(view, BASELINE, length)
    if mine is None or theirs is None:
        return faster
    return f"{faster} and needs {_share(mine, theirs)} ({amount(mine)} against {amount(theirs)})"


def _share(mine: float, theirs: float) -> str:
    ratio = max(mine, 1.0) / max(theirs, 1.0)
    if 0.8 <= ratio <= 1.25:
        return "about the same memory"
    return f"{figure(ratio)} times the memory" if ratio > 1 else f"{_fraction(ratio)} of the memory"


def _fraction(ratio: float) -> str:
    names = {
        2: "half",
        3: "a third",
        4: "a quarter",
        5: "a fifth",
        6: "a sixth",
        7: "a seventh",
        8: "an eighth",
        9: "a ninth",
    }
    parts = round(1 / ratio)
    return f"{ratio:.0%}" if parts < 2 else names.get(parts, f"1/{parts}")


def _stopped(comparison: Comparison, view: View, mechanism: str) -> str:
    failure = comparison.failures.get((view, mechanism))
    if failure is None:
        return ""
    why = {"out of memory": "it ran out of memory", "timeout": "it took too long"}.get(
        failure.failure, f"it failed ({failure.message})"
    )
    return f"; at {failure.length} {why}"
