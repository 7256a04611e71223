"""The contract of a mechanism that mixes a sequence of which each process holds a stretch."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from subquad.errors import SubquadError
from subquad.parallel.stretches import Stretch
from subquad.types import AttentionOptions

MakeQueries = Callable[[], Tensor]
"""Computes the queries of the stretch. They are asked for after keys and values have begun to travel."""


class Cut(ABC):
    """How one kind of mechanism is cut over processes. Results equal those of one process up to rounding."""

    keeps: bool = False
    """Whether sequences may have padding."""

    def check(self, options: Any, *, causal: bool) -> None:
        """Raises `SubquadError` if a mechanism with these options cannot be cut."""
        return

    def multiple(self, options: Any) -> int:
        """Number of positions of which all stretches but the last hold a multiple."""
        return 1

    def least(self, options: Any) -> int:
        """Smallest number of positions of all stretches but the last."""
        return 1

    @abstractmethod
    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        """Returns the mixed values of the stretch that this process holds, as "b h n e"."""


def refuse(options: AttentionOptions, why: str) -> SubquadError:
    """Returns the error for a mechanism that cannot be cut."""
    return SubquadError(f"{options.kind} cannot be cut over processes {why}: leave that or --sequence-parallel out")
