"""What is true of simulated sequences beyond their likelihood: rescaled gaps, and the best possible predictions."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.tasks.events import EventSequences, truth
from subquad.tasks.events.metrics import join_ends
from subquad.tasks.events.simulator import Process

LARGEST = 40.0  # integral of the intensity after which no event is left to come: exp(-40)


class Forecast(NamedTuple):
    """The best predictions of the event that follows each event, made right after it."""

    gaps: Float[ndarray, "events"]  # expected gap
    types: Float[ndarray, "events types"]  # probabilities


def gap_integrals(process: Process, sequences: EventSequences) -> Float[ndarray, "events types"]:
    """Integral of the intensity of each type over the gap before each event.

    Their sums over types are independent and exponential with mean 1 under the true process.
    """
    return process.integrals(truth.states_before(process, sequences), sequences.gaps[:, None])[:, 0]


def join_types(
    integrals: Float[ndarray, "events types"],
    types: Int[ndarray, "events"],
    lengths: Int[ndarray, "sequences"],
    ends: Float[ndarray, "sequences types"],
) -> Float[ndarray, "events"]:
    """Rescaled gaps between events of the same type, by the integral of that type's intensity; type after type.

    If only types are mistaken for one another, the gaps between events of any type do not show it, but these do.
    """
    by_type = []
    for kind in range(integrals.shape[1]):
        reached = np.cumsum(join_ends(integrals[:, kind], lengths, ends[:, kind]))
        by_type.append(np.diff(reached[types == kind], prepend=0.0))
    return np.concatenate(by_type)


def forecast(process: Process, sequences: EventSequences) -> Forecast:
    """E(gap) = integral of exp(-Lambda(g)), p(type k) = integral of lambda_k(g) exp(-Lambda(g)), numerically to 1e-6."""
    states = process.states(sequences)
    farthest = np.full(len(states), 1e-6)
    while (near := process.integrals(states, farthest[:, None])[:, 0].sum(1) < LARGEST).any():
        farthest[near] *= 2.0
    places, weights = _places()
    gaps = farthest[:, None] * places
    alone = np.exp(-process.integrals(states, gaps).sum(2)) * farthest[:, None] * weights
    types = (process.intensities(states, gaps) * alone[..., None]).sum(1)
    return Forecast(alone.sum(1), types / types.sum(1, keepdims=True))


def _places(octaves: int = 24, points: int = 8) -> tuple[Float[ndarray, "points"], Float[ndarray, "points"]]:
    """Gauss-Legendre points and weights on [0, 2^-24], [2^-24, 2^-23], ..., [1/2, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    edges = np.append(0.0, 2.0 ** np.arange(-octaves, 1))
    widths = np.diff(edges)[:, None]
    return (edges[:-1, None] + widths * (nodes + 1.0) / 2.0).ravel(), (widths * weights / 2.0).ravel()
