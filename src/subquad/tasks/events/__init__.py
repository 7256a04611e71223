"""Events in time: when the next one comes and of which type, on simulated sequences or on the user's own."""

from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import SIMULATORS, Hawkes, Renewal, SelfCorrecting

__all__ = ["SIMULATORS", "EventSequences", "Hawkes", "Renewal", "SelfCorrecting"]
