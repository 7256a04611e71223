"""Tasks to judge mechanisms by: each a frozen dataclass of options that makes batches, a model, a loss and metrics."""

from typing import Any

from subquad.tasks.copy import Copy
from subquad.tasks.sorting import Sorting

TASKS: dict[str, type[Any]] = {"copy": Copy, "sorting": Sorting}

__all__ = ["TASKS", "Copy", "Sorting"]
