"""Sequences that are cut over processes while a model is trained, beside the batch that others share."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn

from subquad.models.multihead import mechanisms_of
from subquad.parallel import Group, LostProcessError, Stretch, shared
from subquad.tasks.base import Counted, Task

LOST = ("connection closed", "connection reset", "broken pipe", "timed out", "timeout", "connection refused", "socket")
"""Words in the messages of `torch.distributed` that say that another process cannot be reached."""
TIMEOUT = timedelta(minutes=30)
"""Longest time that a process waits for a message of another one; one that was killed is noticed at once."""


class Cutting:
    """Which processes hold one sequence together: `parts` neighbouring ones, so that there are several such groups."""

    def __init__(self, task: Task[Any], model: nn.Module, accelerator: Any, parts: int) -> None:
        """`model` is the plain one, whose layers mix over the processes of a group."""
        self.task, self.model, self.parts = task, model, parts
        self.processes = accelerator.num_processes
        self.replicas, self.replica = self.processes // parts, accelerator.process_index // parts
        self.group: Group | None = None
        for first in range(0, self.processes if parts > 1 else 0, parts):  # every process takes part in making each group
            members = dist.new_group(list(range(first, first + parts)), timeout=TIMEOUT)
            if first == self.replica * parts:
                self.group = Group(members)

    def share(self, number: int, parts: int) -> slice:
        """The sequences of a batch in one of `parts` parts that this process computes, alone or with its group.

        Strides spread long and short sequences evenly.
        """
        return slice(number * self.replicas + self.replica, None, self.replicas * parts)

    def entered(self, batch: Any) -> AbstractContextManager[Any]:
        """The context in which the loss of a batch is computed and differentiated."""
        if self.group is None:
            return nullcontext()
        options = [attend.options for attend in mechanisms_of(self.model)]
        return shared(self.model, options, self.group, self.task.model_length(batch))

    def pieces(self, batch: Any) -> int:
        """Number of losses that `losses` yields."""
        return self.task.pieces(batch) if self.group is None else 1

    def losses(self, model: nn.Module, batch: Any, stretch: Stretch | None) -> Iterator[Counted]:
        """Yields the loss of each piece of a batch, or of the stretch of its sequences that this process holds."""
        if stretch is None:
            yield from self.task.losses(model, batch)
        else:
            yield Counted(self.task.cut_loss(model, batch, stretch.start, stretch.stop), 0)


@contextmanager
def explaining_lost_processes(processes: int) -> Iterator[None]:
    """Inside the block, errors of `torch.distributed` about a lost process become `LostProcessError`."""
    try:
        yield
    except RuntimeError as error:
        if processes == 1 or not any(words in str(error).lower() for words in LOST):
            raise
        raise LostProcessError(
            f"process {dist.get_rank() + 1} of {processes} lost another one, which ended or was killed: go on from the last "
            "checkpoint with --resume"
        ) from None
