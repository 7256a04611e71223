"""The exact likelihood of sequences under the process that made them.

A sequence of n events has n + 1 stretches: from its start to the first event, from event to event, and from the last event
to its end.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import Process


class LogLikelihood(NamedTuple):
    """Log-likelihoods in nats of each event given those before it, and of each end of a sequence given all its events."""

    time: Float[ndarray, "events"]  # log f(t_i | before); a first event is counted from the start of its sequence
    type: Float[ndarray, "events"]  # log p(l_i | t_i, before)
    end: Float[ndarray, "sequences"]  # log of the chance that nothing comes from the last event to the end

    @property
    def total(self) -> float:
        """Log-likelihood of all sequences together, in nats."""
        return float(self.time.sum() + self.type.sum() + self.end.sum())


def log_likelihood(process: Process, sequences: EventSequences) -> LogLikelihood:
    """Returns log f(t_i | before) = log lambda(t_i) - integral of lambda over the gap, and the terms of types and ends."""
    states, gaps = states_before(process, sequences), sequences.gaps[:, None]
    by_type = process.intensities(states, gaps)[:, 0]
    with np.errstate(divide="ignore"):
        of_any = np.log(by_type.sum(1))
        of_its_type = np.log(by_type[np.arange(len(by_type)), sequences.types])
    passed = process.integrals(states, gaps)[:, 0].sum(1)
    return LogLikelihood(of_any - passed, of_its_type - of_any, -end_integrals(process, sequences).sum(1))


def end_integrals(process: Process, sequences: EventSequences) -> Float[ndarray, "sequences types"]:
    """Integral of each type's intensity from the last event of each sequence, or from its start, to its end."""
    states, since = _initial(process, len(sequences.names)), sequences.starts.copy()
    present = sequences.lengths > 0
    last = sequences.offsets[1:][present] - 1
    states[present], since[present] = process.states(sequences)[last], sequences.times[last]
    return process.integrals(states, (sequences.ends - since)[:, None])[:, 0]


def _initial(process: Process, sequences: int) -> Float[ndarray, "sequences state"]:
    return np.tile(process.initial_state(), (sequences, 1))


def states_before(process: Process, sequences: EventSequences) -> Float[ndarray, "events state"]:
    """The state before each event: right after the previous event, or at the start of the sequence."""
    states = np.roll(process.states(sequences), 1, axis=0)
    states[sequences.first] = process.initial_state()
    return states
