"""Tasks to judge mechanisms by: each a frozen dataclass of options that makes batches, a model, a loss and metrics.

One that has data to read has `prepare`, which gives the task itself.
"""

from typing import Any

from subquad.tasks.classify import Classify
from subquad.tasks.copy import Copy
from subquad.tasks.events import Events
from subquad.tasks.mlm import Mlm
from subquad.tasks.sorting import Sorting
from subquad.tasks.transactions import Transactions

TASKS: dict[str, type[Any]] = {
    "copy": Copy,
    "sorting": Sorting,
    "transactions": Transactions,
    "events": Events,
    "mlm": Mlm,
    "classify": Classify,
}

__all__ = ["TASKS", "Classify", "Copy", "Events", "Mlm", "Sorting", "Transactions"]
