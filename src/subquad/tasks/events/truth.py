"""What is true of sequences that a known process made: intensities, their integrals, likelihood, and the best predictions.

A sequence of n events has n + 1 stretches: from its start to the first event, from event to event, and from the last event
to its end. A row stands for the stretch that begins with an event.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import Process

BATCH_NUMBERS = 2_000_000  # numbers that are held in memory at a time
LARGEST = 40.0  # an integral after which nothing is left to happen: exp(-40)


class LogLikelihood(NamedTuple):
    """Log-likelihoods in nats: of each event given those before it in its sequence, and of each end given all events."""

    time: Float[ndarray, "events"]  # log f(t_i | before): from the start of the sequence for a first event
    type: Float[ndarray, "events"]  # log p(l_i | t_i, before)
    end: Float[ndarray, "sequences"]  # log of the chance that nothing comes from the last event to the end

    @property
    def total(self) -> float:
        """Log-likelihood of all sequences in nats: the sum of log-intensities minus the integral of the intensity."""
        return float(self.time.sum() + self.type.sum() + self.end.sum())


class Forecast(NamedTuple):
    """The best predictions of what follows each event, made right after it."""

    gaps: Float[ndarray, "events"]  # expected: no other prediction has a smaller mean squared error
    types: Float[ndarray, "events types"]  # probabilities, whenever the next event comes


def intensities(
    process: Process, sequences: EventSequences, gaps: Float[ndarray, "events points"]
) -> Float[ndarray, "events points types"]:
    """Intensity of each type at a time after each event, given the events up to it and none in between."""
    return process.intensities(process.states(sequences), gaps)


def integrals(
    process: Process, sequences: EventSequences, gaps: Float[ndarray, "events points"]
) -> Float[ndarray, "events points types"]:
    """Exact integral of the intensities from each event up to a time after it."""
    return process.integrals(process.states(sequences), gaps)


def log_likelihood(process: Process, sequences: EventSequences) -> LogLikelihood:
    """log f(t_i | before) = log lambda(t_i) - integral of lambda over the gap, with lambda the sum over types."""
    states, gaps = _before(process, sequences), sequences.gaps[:, None]
    each = process.intensities(states, gaps)[:, 0]
    with np.errstate(divide="ignore"):
        of_any = np.log(each.sum(1))
        of_own = np.log(each[np.arange(len(each)), sequences.types])
    passed = process.integrals(states, gaps)[:, 0].sum(1)
    return LogLikelihood(of_any - passed, of_own - of_any, -end_integrals(process, sequences).sum(1))


def gap_integrals(process: Process, sequences: EventSequences) -> Float[ndarray, "events types"]:
    """Integral of each type's intensity over the gap that each event ends.

    Their sums over types are independent and exponential with mean 1 under the true process.
    """
    return process.integrals(_before(process, sequences), sequences.gaps[:, None])[:, 0]


def end_integrals(process: Process, sequences: EventSequences) -> Float[ndarray, "sequences types"]:
    """Integral of each type's intensity from the last event of each sequence, or from its start, to its end."""
    states, since = _initial(process, len(sequences.names)), sequences.starts.copy()
    present = sequences.lengths > 0
    last = sequences.offsets[1:][present] - 1
    states[present], since[present] = process.states(sequences)[last], sequences.times[last]
    return process.integrals(states, (sequences.ends - since)[:, None])[:, 0]


def forecast(process: Process, sequences: EventSequences) -> Forecast:
    """E(gap) = integral of exp(-Lambda(g)), p(type k) = integral of lambda_k(g) exp(-Lambda(g)): numerically, to 1e-6."""
    states, types = process.states(sequences), len(sequences.type_names)
    rows = max(1, BATCH_NUMBERS // (len(_places()[0]) * types))
    found = [_forecast(process, states[start : start + rows]) for start in range(0, len(states), rows)]
    if not found:
        return Forecast(np.zeros(0), np.zeros((0, types)))
    return Forecast(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _forecast(process: Process, states: Float[ndarray, "rows state"]) -> Forecast:
    """Up to where the integral is so large that nothing is left; places lie closer together the nearer to the event."""
    farthest = np.full(len(states), 1e-6)
    while (near := process.integrals(states, farthest[:, None])[:, 0].sum(1) < LARGEST).any():
        farthest[near] *= 2.0
    places, weights = _places()
    gaps = farthest[:, None] * places
    alone = np.exp(-process.integrals(states, gaps).sum(2)) * farthest[:, None] * weights
    types = (process.intensities(states, gaps) * alone[..., None]).sum(1)
    return Forecast(alone.sum(1), types / types.sum(1, keepdims=True))


def _places(octaves: int = 24, points: int = 8) -> tuple[Float[ndarray, "points"], Float[ndarray, "points"]]:
    """Gauss and Legendre's places and weights on [0, 2^-24], [2^-24, 2^-23], ..., [1/2, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    edges = np.append(0.0, 2.0 ** np.arange(-octaves, 1))
    widths = np.diff(edges)[:, None]
    return (edges[:-1, None] + widths * (nodes + 1.0) / 2.0).ravel(), (widths * weights / 2.0).ravel()


def _initial(process: Process, sequences: int) -> Float[ndarray, "sequences state"]:
    return np.tile(process.initial_state(), (sequences, 1))


def _before(process: Process, sequences: EventSequences) -> Float[ndarray, "events state"]:
    """The state that each event finds: after the one before it, or at the start."""
    found = np.roll(process.states(sequences), 1, axis=0)
    found[sequences.first] = process.initial_state()
    return found
