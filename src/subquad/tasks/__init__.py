"""Tasks to train models on. `subquad.tasks.base` has their contract; a new task is one file and one line in `TASKS`."""

from subquad.tasks.base import Task, TaskOptions
from subquad.tasks.classify import Classify
from subquad.tasks.copy import Copy
from subquad.tasks.events import Events
from subquad.tasks.images import Images
from subquad.tasks.lm import Lm
from subquad.tasks.lra import Image, ListOps, Pathfinder, Retrieval, Text
from subquad.tasks.mlm import Mlm
from subquad.tasks.recall import Induction, Recall
from subquad.tasks.series import Series
from subquad.tasks.sorting import Sorting
from subquad.tasks.speech import Speech
from subquad.tasks.tokens import Tokens
from subquad.tasks.transactions import Transactions

TASKS: dict[str, type[TaskOptions]] = {
    "copy": Copy,
    "sorting": Sorting,
    "recall": Recall,
    "induction": Induction,
    "transactions": Transactions,
    "events": Events,
    "mlm": Mlm,
    "lm": Lm,
    "classify": Classify,
    "lra-listops": ListOps,
    "lra-text": Text,
    "lra-retrieval": Retrieval,
    "lra-image": Image,
    "lra-pathfinder": Pathfinder,
    "images": Images,
    "speech": Speech,
    "tokens": Tokens,
    "series": Series,
}

__all__ = [
    "TASKS",
    "Classify",
    "Copy",
    "Events",
    "Image",
    "Images",
    "Induction",
    "ListOps",
    "Lm",
    "Mlm",
    "Pathfinder",
    "Recall",
    "Retrieval",
    "Series",
    "Sorting",
    "Speech",
    "Task",
    "TaskOptions",
    "Text",
    "Tokens",
    "Transactions",
]
