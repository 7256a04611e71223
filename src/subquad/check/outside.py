"""An attention of someone else, as a mechanism: how it is built and called, and a module that calls it so."""

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention import Mechanism
from subquad.check.building import Size, Sizes, build, is_built_first
from subquad.check.importing import import_named
from subquad.checking import Count, Whole, Words
from subquad.errors import SubquadError
from subquad.types import AttentionOptions, MechanismSize, Traits

Layout = Literal["bhnd", "bnhd", "bnm", "nbm"]
"""Axes of the inputs: b batch, h heads, n positions, d numbers of a head, m numbers of all heads."""
MaskKind = Literal["keep", "pad", "additive", "lengths"]
"""What a padding mask holds: true for real keys, true for padding, numbers that are added to the scores, or the number of
real keys of each sequence, which come first."""
MaskShape = Literal["keys", "scores"]
"""Shape of a padding mask: (batch, keys), or (batch, 1, 1, keys) as added to scores."""
CausalBy = Literal["nothing", "itself", "method", "call", "constructor", "mask"]
"""What makes the attention causal: it always is; its method `causal`; an argument of its call or constructor; a mask of
scores, (queries, keys)."""


@dataclass(frozen=True)
class Outside(AttentionOptions):
    """An attention that is imported by name, with everything that is needed to build and call it."""

    target: Words
    """Module and name, as in ``package.module:Name``."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Constructor arguments."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """Constructor arguments that stand for a size, with the size that they stand for."""
    call: dict[str, Any] = field(default_factory=dict)
    """Arguments of every call."""
    layer: bool = False
    """Whether it takes one input x, of which it makes queries, keys and values itself."""
    layout: Layout = "bhnd"
    mask: MaskKind | None = None
    """What its padding mask holds; None if it takes none."""
    mask_argument: Words = ""
    mask_shape: MaskShape = "keys"
    causal_by: CausalBy = "nothing"
    causal_argument: Words = ""
    causal_mask: MaskKind = "keep"
    """What the mask of scores holds, if it is causal by a mask."""
    state_argument: Words = ""
    """Argument that takes the state of earlier positions, which its call then returns beside the result."""
    steps: bool = False
    """Whether it has a method `step` for one position."""
    length: Count = 4096
    """Number of positions that it is built for, if its constructor asks for one."""
    is_fixed: bool = False
    """Whether it takes sequences of exactly `length` positions only."""
    is_double: bool = True
    """Whether it computes in float64."""
    parameters: Whole = 0
    """Number of parameters and buffers, for the sizes that it was examined with."""
    kind: str = field(default="outside", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="?",
            space="?",
            gives_up=f"unknown: `subquad check {self.target}` says which properties it has",
            causal=self.causal_by != "nothing",
            steps=self.continues,
            foreign=True,
            max_length=self.length if self.is_fixed or "length" in self.sizes.values() else None,
        )

    @property
    def continues(self) -> bool:
        """Whether its causal form can continue a state."""
        return self.causal_by == "method" or bool(self.state_argument)

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(self.parameters, 0)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "OutsideAttention":
        if self.layer:
            raise SubquadError(f"{self.target} takes x, not q, k and v: use it where a whole layer is asked for")
        forms = self.forms(import_named(self.target), Sizes(heads, head_dim, self.length))
        return OutsideAttention(self, heads, head_dim, forms)

    def for_length(self, length: int) -> Self:
        return replace(self, length=length) if self.traits.max_length is not None else self

    def forms(self, thing: Any, numbers: Sizes) -> nn.ModuleDict:
        """Builds the bidirectional and the causal form, which are the same object unless the constructor chooses."""
        if not is_built_first(thing):
            attend = copy.deepcopy(thing) if isinstance(thing, nn.Module) else thing  # its dtype will be changed
            return _held(attend, attend)
        if self.causal_by != "constructor":
            attend = build(thing, self.arguments, self.sizes, numbers)
            return _held(attend, attend)
        plain, causal = (
            build(thing, {**self.arguments, self.causal_argument: value}, self.sizes, numbers) for value in (False, True)
        )
        return _held(plain, causal)


def _held(plain: Any, causal: Any) -> nn.ModuleDict:
    """Holds both forms, so that a dtype or device is set for both. Functions are wrapped into modules."""
    modules = {id(attend): attend if isinstance(attend, nn.Module) else _Function(attend) for attend in (plain, causal)}
    return nn.ModuleDict({"bidirectional": modules[id(plain)], "causal": modules[id(causal)]})


class _Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function


def callable_of(module: nn.Module) -> Any:
    """What is called: a module, or the function that it stands for."""
    return module.function if isinstance(module, _Function) else module


class OutsideAttention(Mechanism):
    """Calls another attention with the layout and the masks that it takes. Inputs and results are ``b h n d``.

    A layer takes ``b 1 n m``: one head as wide as the model.
    """

    options: Outside

    def __init__(self, options: Outside, heads: int, head_dim: int, forms: nn.ModuleDict) -> None:
        super().__init__(options, heads, head_dim)
        self.held = forms
        self.score_masks: dict[tuple[Any, ...], Tensor] = {}  # the latest mask of a causal form, by size and dtype

    def forward(self, *inputs: Tensor, keep: Bool[Tensor, "b s"] | None = None) -> Float[Tensor, "b h n e"]:
        return self.result(self.call("bidirectional", inputs, self.mask_arguments(inputs, keep)), inputs[0])

    def causal(self, *inputs: Any, keep: Bool[Tensor, "b s"] | None = None) -> tuple[Tensor, Any]:
        """The causal form. A state may follow the inputs, and the new one is returned, None if it keeps none."""
        count = 1 if self.options.layer else 3
        tensors, state = inputs[:count], inputs[count] if len(inputs) > count else None
        if self.options.causal_by == "method":
            mask = self.mask_arguments(tensors, keep)
            target = callable_of(self.held["causal"])
            returned = target.causal(*map(self.outward, tensors), *(() if state is None else (state,)), **mask)
            return self.result(returned, tensors[0]), returned[1]
        arguments = {**self.mask_arguments(tensors, keep), **self.causal_arguments(tensors[0])}
        if name := self.options.state_argument:
            returned = self.call("causal", tensors, {**arguments, name: state})
            return self.result(returned, tensors[0]), returned[1]
        return self.result(self.call("causal", tensors, arguments), tensors[0]), None

    def step(self, *inputs: Any, reuse: bool = False) -> tuple[Tensor, Any]:
        """One position of the causal form."""
        if not self.options.steps:
            return self.causal(*inputs)
        count = 1 if self.options.layer else 3
        target = callable_of(self.held["causal"])
        returned = target.step(*map(self.outward, inputs[:count]), *inputs[count:])
        return self.result(returned, inputs[0]), returned[1]

    def remember(self, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Any:
        return self.causal(k, k, v, keep=keep)[1]

    def call(self, form: str, inputs: tuple[Tensor, ...], arguments: dict[str, Any]) -> Any:
        """Calls the attention with inputs in its own layout."""
        return callable_of(self.held[form])(*map(self.outward, inputs), **{**self.options.call, **arguments})

    def mask_arguments(self, inputs: tuple[Tensor, ...], keep: Tensor | None) -> dict[str, Any]:
        """The padding mask under the name and in the form that the attention takes it."""
        if keep is None:
            return {}
        if self.options.mask is None:
            raise SubquadError(f"{self.options.target} takes no padding mask: leave keep out")
        mask = as_mask(keep, self.options.mask, inputs[0].dtype)
        return {self.options.mask_argument: mask[:, None, None, :] if self.options.mask_shape == "scores" else mask}

    def causal_arguments(self, x: Tensor) -> dict[str, Any]:
        """What the call of the causal form has beside the inputs."""
        if self.options.causal_by == "call":
            return {self.options.causal_argument: True}
        if self.options.causal_by != "mask":
            return {}
        key = (x.shape[2], x.dtype, x.device)
        if key not in self.score_masks:
            seen = torch.ones(x.shape[2], x.shape[2], dtype=torch.bool, device=x.device).tril()
            self.score_masks = {key: as_mask(seen, self.options.causal_mask, x.dtype)}
        return {self.options.causal_argument: self.score_masks[key]}

    def outward(self, x: Float[Tensor, "b h n d"]) -> Tensor:
        """An input in the layout of the attention."""
        if self.options.layout == "bhnd":
            return x
        by_position = x.transpose(1, 2)
        if self.options.layout == "bnhd":
            return by_position
        merged = by_position.flatten(2)
        return merged if self.options.layout == "bnm" else merged.transpose(0, 1)

    def result(self, returned: Any, x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n e"]:
        """The result, which may be the first part of what is returned, with the axes of the inputs."""
        mixed = first_tensor(returned)
        batch, _, length, _ = x.shape
        if self.options.layout == "nbm" and mixed.ndim == 3:
            mixed = mixed.transpose(0, 1)
        if mixed.ndim == 3 and mixed.shape[:2] == (batch, length):
            mixed = mixed[:, None]
        elif self.options.layout == "bnhd" and mixed.ndim == 4:
            mixed = mixed.transpose(1, 2)
        if mixed.ndim != 4 or (mixed.shape[0], mixed.shape[2]) != (batch, length) or not self.is_as_wide(mixed, x):
            raise SubquadError(
                f"it returns the shape {tuple(first_tensor(returned).shape)} for inputs of the shape "
                f"{tuple(self.outward(x).shape)}: the result must have as many sequences and positions"
                + ("" if self.options.layer else ", and as many numbers of each position")
            )
        return mixed

    def is_as_wide(self, mixed: Tensor, x: Tensor) -> bool:
        """Whether a result has as many numbers of each position as the inputs, which a layer on x need not have."""
        return self.options.layer or mixed.shape[1] * mixed.shape[3] == x.shape[1] * x.shape[3]


def first_tensor(returned: Any) -> Tensor:
    """The tensor that a call returned, alone or as the first part of a tuple or list."""
    mixed = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(mixed, Tensor):
        raise SubquadError(f"it returns {type(mixed).__name__}, not a tensor")
    return mixed


def as_mask(keep: Bool[Tensor, "*shape"], kind: MaskKind, dtype: torch.dtype) -> Tensor:
    """A mask that is true for what is seen, in the convention `kind`."""
    if kind == "lengths":
        return keep.sum(-1)
    if kind == "additive":
        return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, -torch.inf)
    return keep if kind == "keep" else ~keep
