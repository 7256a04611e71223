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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.checking import Checked

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
class Scratch(Protocol):
    """Memory that a loop over blocks uses again for its large temporaries."""

    def take(self, *shape: int) -> Tensor:
        """A tensor with anything in it, good until the next round."""
        ...


class Fused(NamedTuple):
    """A feature function that native kernels compute themselves."""

    kind: Literal["elu", "relu", "positive", "hyperbolic", "learned"]
    """Name of the function."""
    omega: Float[Tensor, "*h d r"] | None = None
    """Random or learned directions of the last three."""
    bias: Float[Tensor, "h 1 r"] | None = None
    """What is added to the products with learned directions."""


@runtime_checkable
class FeatureFunction(Protocol):
    """phi: from queries or keys to features, with the gradient that lets an op recompute instead of store."""

    has_exponent: bool  # whether its features come with an exponent

    def __call__(self, x: Float[Tensor, "b h n d"], scratch: Scratch | None = None) -> Features:
        """The features of each position by itself, in `scratch` where it is given (then no gradient is recorded)."""
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

    def fused(self) -> Fused | None:
        """What native kernels need to compute the features themselves; None if they cannot."""
        ...


class Maps(NamedTuple):
    """phi for queries and phi for keys, which are often the same."""

    queries: FeatureFunction
    keys: FeatureFunction

    def weights(self) -> tuple[Tensor, ...]:
        """The tensors that the features are differentiable in, those of queries first."""
        return (*self.queries.weights(), *self.keys.weights())


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


class Window(NamedTuple):
    """The keys that a query weighs exactly: those of its own block of positions and of some blocks beside it."""

    block: int
    """Positions in a block."""
    before: int = 0
    """Blocks before the query's own that are weighed exactly as well."""
    after: int = 0
    """Blocks after the query's own that are weighed exactly as well, in the bidirectional form."""


class RankBound(NamedTuple):
    """An upper bound on the rank of a mechanism's bidirectional attention matrix, however long the sequence."""

    rank: int
    """The largest number of independent rows."""
    words: str
    """What sets the bound, such as "256 features"."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Everything that other code needs to know about a mechanism. It follows from the options: nothing has to be built.

    Formulas use L for the length, d for head_dim, m for features, k for slots, B for a block, S for a segment and N for
    basis functions.
    """

    exact: bool
    """Whether the mechanism computes softmax attention itself."""
    time: str
    """Time of one head, as a formula in the length."""
    space: str
    """Memory of one head beside inputs and outputs, as a formula in the length."""
    gives_up: str
    """What a user does without when this mechanism takes the place of softmax attention."""
    causal: bool = True
    """Whether the module has `causal` and `step`."""
    steps: bool = True
    """Whether the causal form continues a state of its own, as decoding does; false only for attentions of other packages,
    which then read everything again at every position."""
    foreign: bool = False
    """Whether the module runs code that is no mechanism of this interface, which commands run in child processes only."""
    constant_state: bool = True
    """Whether the state of the causal form has the same size after any number of positions."""
    max_length: int | None = None
    """The most keys that a built module takes; None if there is no limit."""
    window: Window | None = None
    """The keys that are weighed exactly; None if none are, or if all are (see `exact`)."""
    aligned: bool = False
    """Whether queries that are as many as the keys are taken to stand at the keys' places in the bidirectional form."""
    mixes_queries: bool = False
    """Whether the result of a query depends on others, so that a decoder would see later tokens by cross-attention."""
    no_matrix: str | None = None
    """A sentence on why the result is not A v with a matrix A that does not depend on v; None where it is."""
    has_weights: bool = False
    """Whether the module has `weights`: the weight of each key for each query, differentiable, each row summing to 1."""
    starting_gain: float = 1.0
    """Factor on the usual initial weights of the projections to queries and keys, with which training starts well."""
    redraws: bool = False
    """Whether `redraw` draws random parts anew, which a trainer may ask for between steps."""
    adds_to_loss: bool = False
    """Whether the module holds a `LossTerm`, whose results a trainer adds to the loss."""
    shares_layers: bool = False
    """Whether the layers of one stack share the mechanism's parameters."""
    calibrates: bool = False
    """Whether `calibrate` fits the module to the means and covariances of queries and keys."""
    has_gain: bool = False
    """Whether the module has `log_gain`, the weight of the keys outside of the window, and `shares` to fit it by."""


class MechanismSize(NamedTuple):
    """Sizes of a mechanism, known without building it."""

    numbers: int
    """Parameters and buffers of the built module."""
    state: int
    """Lower bound on the numbers that one sequence needs while it is mixed, beside inputs and outputs."""
    derived: int = 0
    """Those among `numbers` that follow from the options and are not saved with the weights."""


class AttentionOptions(Checked):
    """Base class of the options of a mechanism: frozen dataclasses that build a module. `asdict` gives the file format."""

    kind: str
    """The mechanism's name in the registry, a field with `init=False`."""

    @property
    def traits(self) -> Traits:
        """What other code needs to know about the mechanism."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name in messages, tables and folders: the kind, or the kinds by layer."""
        return self.kind

    @property
    def parts(self) -> "tuple[AttentionOptions, ...]":
        """The different mechanisms among the layers; only `subquad.attention.Layers` has several."""
        return (self,)

    @property
    def depth(self) -> int:
        """Number of layers whose mechanisms are named; 1 if all layers have the same."""
        return 1

    def for_layers(self, layers: int) -> "Sequence[AttentionOptions]":
        """The mechanism of each of so many layers. Raises `SubquadError` if they do not fit."""
        return [self] * layers

    def counts(self, layers: int) -> "Sequence[tuple[AttentionOptions, int]]":
        """Each mechanism with how many of so many layers have it: `for_layers` counted, for any number of layers."""
        return [(self, layers)]

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        """Sizes of the built module, so that one that is too large is refused before it is built."""
        raise NotImplementedError

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> torch.nn.Module:
        """The mechanism as a module, a `subquad.attention.Mechanism`."""
        raise NotImplementedError

    def layer_builder(
        self, *, heads: int, head_dim: int, generator: torch.Generator | None = None
    ) -> Callable[[], torch.nn.Module]:
        """A function that builds the mechanism for one layer of a stack after the other."""
        return partial(self.build, heads=heads, head_dim=head_dim, generator=generator)

    def operations(self, length: int, head_dim: int) -> int | None:
        """Operations that one head's forward needs at least (a product and its sum are two); None if that is not known."""
        return None

    def rank_bound(self, head_dim: int) -> RankBound | None:
        """A bound on the rank of the bidirectional attention matrix; None if the rank can grow with the length."""
        return None

    def for_length(self, length: int) -> Self:
        """The same options for sequences of up to `length` positions. Only mechanisms with a `max_length` differ."""
        return self

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        """Values worth trying of the few options that matter most, by name, for sequences of about `length` positions."""
        return {}

    def without_far_keys(self) -> Self | None:
        """The same mechanism that sees nothing outside of its window; None if it has no window to be left with."""
        return None


def up_to(limit: int, values: Sequence[int]) -> Sequence[int]:
    """The values that are at most `limit`, or the smallest one if all are larger."""
    return [value for value in values if value <= limit] or [min(values)]
