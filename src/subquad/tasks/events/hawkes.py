"""A multivariate Hawkes process with exponential kernels, fitted by expectation-maximization: a baseline for event models.

With t_j and l_j the times and types of the events before t, and m counting kernels of different decay::

    lambda_k(t) = rates[k] + sum over j, m of branching[k, l_j, m] decays[m] exp(-decays[m] (t - t_j))

The sums over past events are states that decay between events (Ozaki 1979), so that a round of EM takes a time linear in the
number of events. Sequences are observed from their first event on.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.data.ragged import offsets_of
from subquad.tasks.events.sequences import EventSequences

ROUNDS = 40
"""Number of rounds of expectation-maximization."""

STARTS = (0.1, 1.0, 10.0)
"""Decays at the start, for each mean gap."""

MOST_EVENTS = 20_000
"""Largest number of training events that a process is fitted to."""

MOST_NUMBERS = 4_000_000
"""Largest number of states of all fitted events together (events times types times kernels), and of branching ratios."""

PIECE = 4096
"""Longest part of a sequence that is read at once. Longer sequences are cut, and each part starts without a history."""

LEAST = 1e-12
"""Smallest rate of spontaneous events, relative to the rate of all events."""


class HawkesProcess(NamedTuple):
    """Parameters, in any unit of time."""

    rates: Float[ndarray, "types"]
    branching: Float[ndarray, "types types kernels"]  # triggered type, triggering type, kernel
    decays: Float[ndarray, "kernels"]

    def intensities(self, states: Float[ndarray, "e types kernels"]) -> Float[ndarray, "e types"]:
        """Intensity of each type, given the sums over past events of decay * exp(-decay * elapsed)."""
        return self.rates + np.einsum("elm,klm->ek", states, self.branching, optimize=True)

    def integral(self, states: Float[ndarray, "e types kernels"], gaps: Float[ndarray, "e"]) -> Float[ndarray, "e"]:
        """Integral of the intensity of all types together over a gap, from states right after an event on."""
        excited = np.einsum("elm,lm->em", states, self.branching.sum(0), optimize=True)
        faded = -np.expm1(-gaps[:, None] * self.decays) / self.decays
        return self.rates.sum() * gaps + (excited * faded).sum(1)


class Moments(NamedTuple):
    """Sums over the events before each event, by type and kernel: of the kernel, and of kernel times elapsed time."""

    kernel: Float[ndarray, "e types kernels"]
    elapsed: Float[ndarray, "e types kernels"]


class Parts(NamedTuple):
    """Events in parts of at most `PIECE` events, each without a history."""

    offsets: ndarray
    gaps: Float[ndarray, "events"]  # since the previous event; 0 for the first event of a part
    types: ndarray
    is_first: ndarray
    rests: Float[ndarray, "events"]  # time from each event to the end of its part


def parts_of(sequences: EventSequences, shortest: float) -> Parts:
    """Cuts sequences into parts. Gaps below `shortest` are raised to it, because the process has no ties."""
    lengths = [size for total in sequences.lengths for size in _cut(int(total))]
    offsets = offsets_of(np.array(lengths, np.int64))
    is_first = np.zeros(len(sequences.times), bool)
    is_first[offsets[:-1]] = True
    gaps = np.where(is_first, 0.0, np.maximum(sequences.gaps, shortest))
    ends = np.repeat(offsets[1:] - 1, lengths)
    times = np.cumsum(gaps)
    after = np.zeros(len(gaps))
    present = sequences.lengths > 0
    last = sequences.offsets[1:][present] - 1
    after[last] = np.maximum(sequences.ends[present] - sequences.times[last], 0.0)
    return Parts(offsets, gaps, sequences.types, is_first, times[ends] - times + after[ends])


def _cut(total: int) -> list[int]:
    return [PIECE] * (total // PIECE) + [total % PIECE] * bool(total % PIECE)


def moments(
    parts: Parts, types: int, decays: Float[ndarray, "kernels"], *, after: bool = False, elapsed: bool = True
) -> Moments:
    """Sums over the events before each event, or with `after` right after it. One loop over places, all parts at once."""
    count, kernels = len(parts.gaps), len(decays)
    kernel = np.zeros((count, types, kernels))
    waited = np.zeros((count if elapsed else 0, types, kernels))
    lengths = np.diff(parts.offsets)
    for place in range(1, int(lengths.max(initial=0))):
        at = parts.offsets[:-1][lengths > place] + place
        before = kernel[at - 1]
        before[np.arange(len(at)), parts.types[at - 1]] += decays
        kept = np.exp(-parts.gaps[at, None] * decays)[:, None]
        if elapsed:
            waited[at] = kept * (waited[at - 1] + parts.gaps[at, None, None] * before)
        kernel[at] = kept * before
    if after:
        kernel[np.arange(count), parts.types] += decays
    return Moments(kernel, waited)


def fit_hawkes(
    sequences: EventSequences, shortest: float, starts: tuple[float, ...] = STARTS, *, seed: int = 0, rounds: int = ROUNDS
) -> HawkesProcess | None:
    """Fits a process by EM to a sample of sequences. None if there are too many types for the bounds on time and memory.

    Each event is attributed to the spontaneous rate or to an earlier event by their shares of the intensity; then rates,
    branching and decays are the weighted means that these attributions give.
    """
    types, kernels = len(sequences.type_names), len(starts)
    most = min(MOST_EVENTS, MOST_NUMBERS // (types * kernels))
    chosen = _sample(sequences, most, seed) if types * types * kernels <= MOST_NUMBERS else None
    if chosen is None:
        return None
    parts = parts_of(chosen, shortest)
    later = ~parts.is_first
    if not later.any():
        return None
    exposure = float(parts.rests[parts.is_first].sum())
    mean_gap = max(float(parts.gaps[later].mean()), shortest)
    counts = np.bincount(parts.types[later], minlength=types) + 1.0 / types
    process = HawkesProcess(
        0.5 * counts / max(exposure, mean_gap),
        np.full((types, types, kernels), 0.5 / (types * kernels)),
        np.array(starts) / mean_gap,
    )
    for _ in range(rounds):
        process = _round(process, parts, exposure)
    return process


def _round(process: HawkesProcess, parts: Parts, exposure: float) -> HawkesProcess:
    """One round of EM."""
    types, kernels = len(process.rates), len(process.decays)
    later = np.flatnonzero(~parts.is_first)
    sums = moments(parts, types, process.decays)
    states, waited, kinds = sums.kernel[later], sums.elapsed[later], parts.types[later]
    weights = process.branching[kinds]  # the row of the triggered type for each event
    total = process.rates[kinds] + np.einsum("elm,elm->e", states, weights, optimize=True)
    spontaneous = np.bincount(kinds, process.rates[kinds] / total, minlength=types)
    triggered, delays = np.zeros((types, types, kernels)), np.zeros(kernels)
    for kind in np.unique(kinds):
        here = kinds == kind
        triggered[kind] = process.branching[kind] * (states[here] / total[here, None, None]).sum(0)
        delays += np.einsum("lm,lm->m", process.branching[kind], (waited[here] / total[here, None, None]).sum(0))
    chances = -np.expm1(-parts.rests[:, None] * process.decays)  # that a triggered event comes before the end
    at_risk = np.stack([np.bincount(parts.types, column, minlength=types) for column in chances.T], axis=1)
    rate = max(len(later) / max(exposure, 1e-300), 1e-300)
    by_kernel = triggered.sum((0, 1))
    return HawkesProcess(
        np.maximum(spontaneous / max(exposure, 1e-300), LEAST * rate),
        triggered / np.maximum(at_risk, 1e-9),
        np.where(by_kernel > 1e-9, by_kernel / np.maximum(delays, 1e-300), process.decays),
    )


def _sample(sequences: EventSequences, most: int, seed: int) -> EventSequences | None:
    """Random sequences with at most `most` events together; None if every sequence has more, or fewer than 2."""
    order = np.random.default_rng(seed).permutation(len(sequences.names))
    order = order[(sequences.lengths[order] > 1) & (sequences.lengths[order] <= most)]
    kept = order[np.cumsum(sequences.lengths[order]) <= most]
    return sequences.select(np.sort(kept)) if len(kept) else None
