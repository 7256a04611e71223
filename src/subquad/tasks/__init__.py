"""Tasks to train models on. `subquad.tasks.base` has their contract; a new task is one file and one line in `TASKS`."""

from subquad.tasks.base import Task, TaskOptions
from subquad.tasks.classify import Classify
from subquad.tasks.copy import Copy
from subquad.tasks.events import Events
from subquad.tasks.images import Images
from subquad.tasks.lm import Lm
from subquad.tasks.mlm import Mlm
from subquad.tasks.sorting import Sorting
from subquad.tasks.speech import Speech
from subquad.tasks.transactions import Transactions

TASKS: dict[str, type[TaskOptions]] = {
    "copy": Copy,
    "sorting": Sorting,
    "transactions": Transactions,
    "events": Events,
    "mlm": Mlm,
    "lm": Lm,
    "classify": Classify,
    "images": Images,
    "speech": Speech,
}

__all__ = [
    "TASKS",
    "Classify",
    "Copy",
    "Events",
    "Images",
    "Lm",
    "Mlm",
    "Sorting",
    "Speech",
    "Task",
    "TaskOptions",
    "Transactions",
]
