"""Baselines beside every event model, fitted to the same training sequences and judged on the same events.

| name | gaps | types |
|---|---|---|
| poisson | exponential | frequencies |
| markov | exponential | frequencies after the previous type |
| renewal | static mixture of log-normal distributions | frequencies |
| renewal-markov | the same | frequencies after the previous type |
| hawkes | Hawkes process with exponential kernels, by EM | by its intensities |

A gap has the probability of its cell, divided by the width of the cell, as for models (`cells.py`): no baseline gains from
ties or from times on a grid what a model could not.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.special import log_ndtr, logsumexp

from subquad.tasks.events.cells import LEAST, PRECISION, first_cell
from subquad.tasks.events.hawkes import HawkesProcess, fit_hawkes, moments, parts_of
from subquad.tasks.events.renewal import RenewalMixture, fit_renewal
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.sequences import EventSequences

COMPONENTS = 16
"""Number of components of the renewal mixture, as many as a model has by default."""

SMOOTHING = 1.0
"""Number of events that are added after each type, with types by their frequencies, so that every transition is possible."""

LOWEST = -700.0
"""Smallest log-likelihood of a baseline. Events beyond it would make means useless, or not finite."""

BLOCK = 65_536
"""Number of events whose cells are computed at a time."""


class Likelihoods(NamedTuple):
    """Log-likelihoods of all events but first ones, in nats and in the data's unit of time."""

    time: Float[ndarray, "events"]
    type: Float[ndarray, "events"]


class Intervals(NamedTuple):
    """The cell of each gap, in mean gaps."""

    low: Float[ndarray, "events"]
    high: Float[ndarray, "events"]
    log_width: Float[ndarray, "events"]


def intervals_of(gaps: Float[ndarray, "events"], scales: Scales) -> Intervals:
    """Cells of gaps in mean gaps, the same as those of the mixture head."""
    first = first_cell(scales.resolution, scales.grid)
    is_first = gaps <= first
    half = np.maximum(scales.grid, PRECISION * gaps) / 2.0
    low, high = np.where(is_first, 0.0, gaps - half), np.where(is_first, first, gaps + half)
    return Intervals(low, high, np.log(np.where(is_first, first, 2.0 * half)))


class Transitions(NamedTuple):
    """Numbers of transitions from type to type, only those that occur, as there may be many types."""

    pairs: Int[ndarray, "pairs"]  # previous type times the number of types plus type, sorted
    counts: Int[ndarray, "pairs"]
    totals: Int[ndarray, "types"]  # by previous type
    frequencies: Float[ndarray, "types"]

    @classmethod
    def learn(cls, before: Int[ndarray, "e"], types: Int[ndarray, "e"], kinds: int) -> "Transitions":
        """Counts transitions."""
        pairs, counts = np.unique(before * kinds + types, return_counts=True)
        often = np.bincount(types, minlength=kinds)
        frequencies = (often + SMOOTHING / kinds) / (often.sum() + SMOOTHING)
        return cls(pairs, counts, np.bincount(before, minlength=kinds), frequencies)

    def log_probabilities(self, before: Int[ndarray, "e"], types: Int[ndarray, "e"]) -> Float[ndarray, "e"]:
        """Log-probability of each type after the type before it."""
        keys = before * len(self.totals) + types
        at = np.searchsorted(self.pairs, keys).clip(max=len(self.pairs) - 1)
        counts = np.where(self.pairs[at] == keys, self.counts[at], 0)
        return np.log((counts + SMOOTHING * self.frequencies[types]) / (self.totals[before] + SMOOTHING))


class Fitted(NamedTuple):
    """All baselines, fitted to the training sequences. Times are in mean gaps."""

    scales: Scales
    rate: float
    mixture: RenewalMixture
    transitions: Transitions
    hawkes: HawkesProcess | None

    def judge(self, sequences: EventSequences) -> dict[str, Likelihoods]:
        """The likelihoods of each baseline on some sequences, by name."""
        later = ~sequences.first
        gaps = self.scales.gaps(sequences)[later]
        types = self.scales.types(sequences)
        cells, now = intervals_of(gaps, self.scales), types[later]
        unit = math.log(self.scales.mean_gap)
        exponential = -self.rate * cells.low + np.log(-np.expm1(-self.rate * (cells.high - cells.low))) - cells.log_width
        renewal = _mixture_mass(self.mixture, cells) - cells.log_width
        often = np.log(self.transitions.frequencies[now])
        after = self.transitions.log_probabilities(np.roll(types, 1)[later], now)
        judged = {
            "poisson": Likelihoods(exponential - unit, often),
            "markov": Likelihoods(exponential - unit, after),
            "renewal": Likelihoods(renewal - unit, often),
            "renewal-markov": Likelihoods(renewal - unit, after),
        }
        if self.hawkes is not None:
            hawkes = _judge_hawkes(self.hawkes, self.scales, sequences, types)
            judged["hawkes"] = Likelihoods(hawkes.time - unit, hawkes.type)
        return {name: Likelihoods(*map(_floored, likelihoods)) for name, likelihoods in judged.items()}

    def draw_gaps(self, shape: tuple[int, ...], rng: np.random.Generator) -> Float[ndarray, "..."]:
        """Random gaps of the renewal mixture, in mean gaps, none longer than the horizon."""
        part = rng.choice(len(self.mixture.weights), shape, p=self.mixture.weights / self.mixture.weights.sum())
        drawn = np.exp(rng.normal(self.mixture.means[part], self.mixture.deviations[part]))
        return np.minimum(drawn, self.scales.horizon)


def fit_baselines(training: EventSequences, scales: Scales) -> Fitted:
    """Fits all baselines. Types are numbered as in the scales."""
    later = ~training.first
    gaps, types = scales.gaps(training)[later], scales.types(training)
    transitions = Transitions.learn(np.roll(types, 1)[later], types[later], len(scales.type_names))
    first = first_cell(scales.resolution, scales.grid)
    log_gaps = np.log(np.where(gaps > first, gaps, first / 2.0))
    mixture = fit_renewal(log_gaps, COMPONENTS, LEAST * PRECISION)
    hawkes = fit_hawkes(_in_mean_gaps(training, scales, types), first / 2.0)
    return Fitted(scales, 1.0 / float(gaps.mean()), mixture, transitions, hawkes)


def _floored(values: Float[ndarray, "events"]) -> Float[ndarray, "events"]:
    """Log-likelihoods of at least `LOWEST`, which also stands for those that are not numbers."""
    return np.maximum(np.nan_to_num(values, nan=LOWEST, neginf=LOWEST), LOWEST)


def _in_mean_gaps(sequences: EventSequences, scales: Scales, types: Int[ndarray, "events"]) -> EventSequences:
    """Sequences with times in mean gaps since their start, and types numbered as in the scales."""
    ends = (sequences.ends - sequences.starts) / scales.mean_gap
    return sequences._replace(
        times=scales.times(sequences),
        types=types,
        type_names=list(scales.type_names),
        starts=np.zeros(len(sequences.names)),
        ends=ends,
    )


def _mixture_mass(mixture: RenewalMixture, cells: Intervals) -> Float[ndarray, "events"]:
    """Log-probability of each cell, in blocks of events."""
    blocks = range(0, len(cells.low), BLOCK)
    return np.concatenate(
        [_block_mass(mixture, cells.low[at : at + BLOCK], cells.high[at : at + BLOCK]) for at in blocks] or [np.zeros(0)]
    )


def _block_mass(
    mixture: RenewalMixture, low: Float[ndarray, "events"], high: Float[ndarray, "events"]
) -> Float[ndarray, "events"]:
    """Differences of distribution functions, each in the tail where they are small."""
    with np.errstate(divide="ignore"):
        ends = [(np.log(end)[:, None] - mixture.means) / mixture.deviations for end in (low, high)]
    is_above = ends[0] > 0
    far = np.where(is_above, log_ndtr(-ends[1]), log_ndtr(ends[0]))
    near = np.where(is_above, log_ndtr(-ends[0]), log_ndtr(ends[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        mass = near + np.log(-np.expm1(np.where(np.isneginf(far), -np.inf, far - near)))
    mass = np.where(np.isnan(mass), -np.inf, mass)
    return np.asarray(logsumexp(mass + np.log(mixture.weights), axis=1))


def _judge_hawkes(
    process: HawkesProcess, scales: Scales, sequences: EventSequences, types: Int[ndarray, "events"]
) -> Likelihoods:
    """Likelihoods per mean gap: cells by the integral of the intensity, types by their intensities at the gap."""
    first = first_cell(scales.resolution, scales.grid)
    later = ~sequences.first
    moved = _in_mean_gaps(sequences, scales, types)
    time, kind = np.zeros(len(types)), np.zeros(len(types))
    for chosen in _groups(moved, len(process.rates) * len(process.decays)):
        group = moved.select(chosen)
        parts = parts_of(group, first / 2.0)
        states = moments(parts, len(process.rates), process.decays, after=True, elapsed=False).kernel
        at = np.flatnonzero(~group.first)
        cells = intervals_of(group.gaps[at], scales)
        before = states[at - 1]
        passed = process.integral(before, cells.low)
        inside = process.integral(before, cells.high) - passed
        middle = np.maximum(group.gaps[at], first / 2.0)
        by_type = process.intensities(before * np.exp(-middle[:, None, None] * process.decays))
        where = np.concatenate([np.arange(moved.offsets[s], moved.offsets[s + 1]) for s in chosen])[at]
        time[where] = -passed + np.log(-np.expm1(-inside)) - cells.log_width
        kind[where] = np.log(by_type[np.arange(len(at)), group.types[at]]) - np.log(by_type.sum(1))
    return Likelihoods(time[later], kind[later])


def _groups(sequences: EventSequences, numbers: int) -> list[Int[ndarray, "some"]]:
    """Groups of neighbouring sequences whose states fit into memory: up to about four million numbers together."""
    present = np.flatnonzero(sequences.lengths > 0)
    ends = np.cumsum(sequences.lengths[present]) * numbers // 4_000_000
    return [present[ends == number] for number in np.unique(ends)]
