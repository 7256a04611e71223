"""Tasks to judge mechanisms by: each a frozen dataclass of options that makes batches, a model, a loss and metrics."""

from typing import Any

from subquad.tasks.copy import Copy

TASKS: dict[str, type[Any]] = {"copy": Copy}

__all__ = ["TASKS", "Copy"]
