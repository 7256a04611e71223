"""The processes that hold one sequence together, and the messages between them.

Messages go through `torch.distributed`: gloo between CPUs, NCCL between GPUs. With gloo they are sent and awaited by a
thread, so that a process goes on computing meanwhile. All processes begin the same messages in the same order.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from subquad.errors import SubquadError

Result = TypeVar("Result")
Way = Literal["scan", "ring"]
"""How sums over the processes before are found: in log2(N) rounds, or handed on from one process to the next."""

RING_UP_TO = 4
"""Largest number of processes for which a ring is the default: measured to be as fast as a scan or faster up to there.

A scan sends more messages, and its rounds are fewer than a ring's from three processes on: 6 instead of 63 for 64.
"""


class LostProcessError(SubquadError):
    """Another process of the group ended or cannot be reached."""


class Group:
    """The processes that hold one sequence, in the order of its positions."""

    def __init__(self, processes: Any = None, *, way: Way | None = None, overlaps: bool = True) -> None:
        """Wraps a process group of `torch.distributed`, by default the one of all processes.

        Args:
            processes: the process group.
            way: how sums over the processes before are found; by default a ring for few processes, else a scan.
            overlaps: whether messages travel while the process computes; else it waits for each.
        """
        self.processes = processes
        self.rank, self.size = dist.get_rank(processes), dist.get_world_size(processes)
        self.way: Way = way or ("ring" if self.size <= RING_UP_TO else "scan")
        self.sent_bytes = 0
        """Number of bytes that this process has sent. An all-reduce counts as the 2 (N - 1) / N of its size that a ring
        sends."""
        has_thread = overlaps and dist.get_backend(processes) == "gloo"
        self._waiting: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._has_thread = has_thread
        if has_thread:  # a daemon, so that a process can end while a message does not arrive
            threading.Thread(target=self._work, name="messages", daemon=True).start()

    def begin(self, work: Callable[[], Result]) -> "Future[Result]":
        """Starts work that sends and receives, and returns the future with its result."""
        done: Future[Result] = Future()
        if self._has_thread:
            self._waiting.put((work, done))
        else:
            done.set_result(work())
        return done

    def _work(self) -> None:
        """Does what was begun, in its order."""
        while True:
            work, done = self._waiting.get()
            try:
                done.set_result(work())
            except BaseException as error:  # raised where the result is asked for
                done.set_exception(error)
            del work, done

    def exchange(self, sent: Mapping[int, Tensor], received: Mapping[int, Tensor]) -> None:
        """Sends tensors to some processes and receives others into memory, by rank in the group, and waits for all."""
        try:
            wires = {rank: _wire(tensor) for rank, tensor in sent.items() if tensor.numel()}
            going = [dist.isend(wire, group=self.processes, group_dst=rank) for rank, wire in wires.items()]
            going += [
                dist.irecv(_wire(tensor), group=self.processes, group_src=rank)
                for rank, tensor in received.items()
                if tensor.numel()
            ]
            for message in going:
                if message is not None:
                    message.wait()
        except RuntimeError as error:
            raise self.lost(error) from error
        self.sent_bytes += sum(wire.numel() for wire in wires.values())

    def sum(self, tensor: Tensor) -> Tensor:
        """Returns the sum of a tensor over all processes; the tensor is overwritten."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def largest(self, tensor: Tensor) -> Tensor:
        """Returns the largest number over all processes at each place of a tensor, which is overwritten."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        try:
            dist.all_reduce(tensor, operation, group=self.processes)
        except RuntimeError as error:
            raise self.lost(error) from error
        self.sent_bytes += 2 * (self.size - 1) * tensor.numel() * tensor.element_size() // self.size
        return tensor

    def lost(self, error: Exception) -> LostProcessError:
        """Returns the error for a message that did not arrive."""
        reason = str(error).splitlines()[0][:120]
        return LostProcessError(
            f"process {self.rank + 1} of {self.size} lost another one of the same sequence, which ended or was killed "
            f"({reason}): go on from the last checkpoint with --resume"
        )


def _wire(tensor: Tensor) -> Tensor:
    """Returns the bytes of a contiguous tensor, as backends do not send all types of numbers."""
    return tensor.view(-1).view(torch.uint8)


def flat(*tensors: Tensor) -> Tensor:
    """Joins tensors of one type into a message."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflat(message: Tensor, *like: Tensor) -> list[Tensor]:
    """Takes a message apart into tensors of the same shapes as `like`."""
    parts = message.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
