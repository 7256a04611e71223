"""Event sequences: predict the time and the type of the next event, on simulated sequences or on the user's own."""

from subquad.tasks.events.files import Columns
from subquad.tasks.events.loading import EventSplits, load_sequences, load_splits
from subquad.tasks.events.repairs import Repairs
from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import SIMULATORS, Hawkes, Renewal, SelfCorrecting
from subquad.tasks.events.task import Events, EventsTask

__all__ = [
    "SIMULATORS",
    "Columns",
    "EventSequences",
    "EventSplits",
    "Events",
    "EventsTask",
    "Hawkes",
    "Renewal",
    "Repairs",
    "SelfCorrecting",
    "load_sequences",
    "load_splits",
]
