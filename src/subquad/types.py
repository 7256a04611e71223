"""The legend of shapes, and the protocols that the rooms meet at.

Single letters stand for tensors and their sizes, everywhere the same:

===  ==========================================================
q    queries, ``b h n d``
k    keys, ``b h s d``
v    values, ``b h s e`` (most often e = d)
b    batch
h    heads
n    number of queries
s    number of keys (s = n where a sequence attends to itself)
d    numbers of a query or key of one head (head_dim)
e    numbers of a value of one head
m    number of features
===  ==========================================================

``keep`` is ``b s``, true where a key is real and false where it is padding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Queries = Float[Tensor, "b h n d"]
Keys = Float[Tensor, "b h s d"]
Values = Float[Tensor, "b h s e"]
Mixed = Float[Tensor, "b h n e"]
Keep = Bool[Tensor, "b s"]


class Features(NamedTuple):
    """phi(x) = values * 2**exponent, so that exponentials of any size fit into a float.

    An exponent of None stands for zero. Base 2, because ``exp2`` is up to four times as fast as ``exp`` on a CPU.
    """

    values: Float[Tensor, "b h n m"]
    exponent: Float[Tensor, "b h n 1"] | None


@runtime_checkable
class Room(Protocol):
    """Memory for the large temporaries of a loop over blocks."""

    def take(self, *shape: int) -> Tensor:
        """A tensor with anything in it, good until the next round."""
        ...


@runtime_checkable
class FeatureFunction(Protocol):
    """phi: from queries or keys to features, with the gradient that lets an op recompute instead of store."""

    has_exponent: bool  # whether its features come with an exponent

    def __call__(self, x: Float[Tensor, "b h n d"], room: Room | None = None) -> Features:
        """The features of each position by itself, in `room` where it is given (then no gradient is recorded)."""
        ...

    def pullback(
        self, x: Float[Tensor, "b h n d"], features: Features, gradient: Float[Tensor, "b h n m"]
    ) -> tuple[Tensor, ...]:
        """The gradient for x and for each of `weights`, from the one for the features.

        `gradient` is that of ``values`` with the exponent held fixed, and may be overwritten.
        """
        ...

    def weights(self) -> Sequence[Tensor]:
        """The tensors other than x that phi is differentiable in."""
        ...

    def feature_count(self, d: int) -> int:
        """m, the number of features that an input with d numbers gives."""
        ...


@runtime_checkable
class Attention(Protocol):
    """Mixes values: every query sees every kept key."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class CausalAttention(Attention, Protocol):
    """Attention in which position i can be made to see no further than i."""

    def causal(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any = None, *, keep: Tensor | None = None
    ) -> tuple[Tensor, Any]: ...

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None, *, reuse: bool = False) -> tuple[Tensor, Any]:
        """One position. With `reuse` the old state is given up, and its memory may hold the new one."""
        ...


class Traits(NamedTuple):
    """What can be said of a mechanism without running it. L: length, d: head_dim, m: features, k: slots."""

    exact: bool  # whether it computes softmax attention itself
    time: str  # of one head, as it grows with the length
    space: str  # beside inputs and outputs
    gives_up: str  # what its user does without, beside softmax


class MechanismSize(NamedTuple):
    """Numbers that a mechanism needs, known without building it."""

    numbers: int  # parameters and buffers of the built module
    state: int  # that one sequence needs while it is mixed, beside inputs and outputs, at least
    derived: int = 0  # among `numbers`, those that follow from the options and are not saved with the weights


class AttentionOptions(Protocol):
    """Options of a mechanism: a frozen dataclass that builds. Its `asdict` is the file format."""

    @property
    def kind(self) -> str:
        """Its name in the registry."""
        ...

    @property
    def traits(self) -> Traits:
        """Its formulas and its price, for tables and advice."""
        ...

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        """How large it is when it is built, so that what is too large is refused before."""
        ...

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> torch.nn.Module: ...
