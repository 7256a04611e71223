"""Memory that is reused by loops over blocks.

Allocating a tensor of a megabyte costs a CPU as much as computing with it, since the system has to find and clear its pages.
Therefore each round of a loop uses the same memory as the round before, and each thread keeps it between calls, which helps
short sequences most.
"""

import math
import threading

import torch
from torch import Tensor

WORKING_SET = 2**19  # largest number of floats in a piece, two megabytes; larger ones are not kept
_kept = threading.local()


class Scratch:
    """Returns the same pieces of memory in the same order in every round. A thread uses one instance at a time."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._pieces: list[Tensor] = _kept.__dict__.setdefault(str(dtype), [])
        self._next = 0

    def start(self) -> None:
        """Starts a new round, in which all pieces are free again."""
        self._next = 0

    def take(self, *shape: int) -> Tensor:
        """Returns an uninitialized tensor that is valid until the next round."""
        size = math.prod(shape)
        if size > WORKING_SET:
            return torch.empty(shape, dtype=self._dtype)
        if self._next == len(self._pieces):
            self._pieces.append(torch.empty(0, dtype=self._dtype))
        if self._pieces[self._next].numel() < size:
            with torch.inference_mode(False):  # tensors made in inference mode cannot be modified outside of it
                self._pieces[self._next] = torch.empty(size, dtype=self._dtype)
        self._next += 1
        return self._pieces[self._next - 1][:size].view(shape)
