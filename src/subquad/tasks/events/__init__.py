"""Events in time: when the next one comes and of which type, on simulated sequences or on the user's own."""

from subquad.tasks.events.sequences import EventSequences

__all__ = ["EventSequences"]
