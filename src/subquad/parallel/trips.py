"""Messages that autograd follows: their gradients travel the other way.

A trip begins when its tensors are known and ends when its results are needed. What is computed in between, and in the
backward what is differentiated in between, overlaps with the messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient
from subquad.parallel.group import Group

Tensors = tuple[Tensor, ...]


class Exchange(ABC):
    """What is sent and received, forwards and backwards."""

    constant: Sequence[int] = ()
    """Indices of the results that have no gradient."""

    @abstractmethod
    def forward(self, *tensors: Tensor) -> Tensors:
        """Sends and receives, and returns the results."""

    @abstractmethod
    def backward(self, *gradients: Tensor) -> Sequence[Tensor | None]:
        """Sends and receives gradients, and returns one for each tensor, from one for each result."""


class Trip:
    """An exchange under way."""

    def __init__(self, group: Group, exchange: Exchange, *tensors: Tensor) -> None:
        """Begins the exchange. All processes begin the same exchanges in the same order."""
        self.group, self.exchange = group, exchange
        self.going: Future[Tensors]
        self.returning: Future[Sequence[Tensor | None]]
        self._ticket: Tensor | None = None
        if needs_gradient(*tensors):
            self._ticket = _Begin.apply(self, *tensors)  # type: ignore[no-untyped-call]
        else:
            self.going = self.begin(tensors)

    def begin(self, tensors: Tensors) -> "Future[Tensors]":
        """Starts the messages."""
        given = [tensor.detach().contiguous() for tensor in tensors]
        return self.group.begin(lambda: self.exchange.forward(*given))

    def finish(self) -> Tensors:
        """Waits for the messages, and returns the results."""
        if self._ticket is None:
            return self.going.result()
        results: Tensors = _Finish.apply(self, self._ticket)  # type: ignore[no-untyped-call]
        return results


class _Begin(torch.autograd.Function):
    """Begins a trip; the backward waits for its gradients. The result is a number that only connects it with `_Finish`."""

    @staticmethod
    def forward(ctx: Any, trip: Trip, *tensors: Tensor) -> Tensor:
        ctx.trip = trip
        trip.going = trip.begin(tensors)
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _ticket: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.trip.returning.result()


class _Finish(torch.autograd.Function):
    """Waits for the results of a trip; the backward sends their gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, trip: Trip, ticket: Tensor) -> Tensors:
        ctx.trip, ctx.like = trip, ticket
        results = trip.going.result()
        ctx.mark_non_differentiable(*(results[at] for at in trip.exchange.constant))
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        trip: Trip = ctx.trip
        given = [gradient.detach().contiguous() for gradient in gradients]
        trip.returning = trip.group.begin(lambda: trip.exchange.backward(*given))
        return None, torch.zeros_like(ctx.like)
