"""Memory that loops over blocks use again.

Fresh tensors of a megabyte cost a CPU as much as the arithmetic in them: the system has to find and clear their pages. So
each round of a loop takes the same pieces as the round before, and each thread keeps them from one call to the next,
which short sequences notice most.
"""

import math
import threading

import torch
from torch import Tensor

WORKING_SET = 2**19  # floats in a block of features, two megabytes; larger pieces are not kept
_kept = threading.local()


class Scratch:
    """Hands out pieces of memory in the same order, round after round. A thread works with one at a time."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._pieces: list[Tensor] = _kept.__dict__.setdefault(str(dtype), [])
        self._next = 0

    def start(self) -> None:
        """A new round: what the last one took is free again."""
        self._next = 0

    def take(self, *shape: int) -> Tensor:
        """A tensor with anything in it, good until the next round."""
        size = math.prod(shape)
        if size > WORKING_SET:
            return torch.empty(shape, dtype=self._dtype)
        if self._next == len(self._pieces):
            self._pieces.append(torch.empty(0, dtype=self._dtype))
        if self._pieces[self._next].numel() < size:
            with torch.inference_mode(False):  # a tensor made in inference mode could not be written to outside of it
                self._pieces[self._next] = torch.empty(size, dtype=self._dtype)
        self._next += 1
        return self._pieces[self._next - 1][:size].view(shape)
