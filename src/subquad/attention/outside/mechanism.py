"""An attention of someone else, as a mechanism: how it is built and called, and a module that calls it so."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Mechanism
from subquad.attention.outside.building import Size, Sizes, build, is_built_first
from subquad.attention.outside.conventions import CausalBy, Layout, MaskKind, MaskShape, as_mask, first_tensor, is_behind
from subquad.attention.outside.importing import import_named
from subquad.checking import Count, Whole, Words
from subquad.errors import SubquadError
from subquad.types import AttentionOptions, MechanismSize, Traits


@dataclass(frozen=True)
class Outside(AttentionOptions):
    """An attention that is imported by name, with everything that is needed to build and call it."""

    target: Words
    """Module and name, as in ``package.module:Name``."""
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    """Constructor arguments."""
    sizes: dict[str, Size] = field(default_factory=dict, hash=False)
    """Constructor arguments that stand for a size, with the size that they stand for."""
    call: dict[str, Any] = field(default_factory=dict, hash=False)
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
    def name(self) -> str:
        return self.target

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
            no_matrix=f"whether {self.target} weighs values by a matrix is not known",
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
        with _drawing_from(generator):
            forms = self.forms(import_named(self.target), Sizes(heads, head_dim, self.length), generator)
        return AttentionOfModel(self, heads, head_dim, forms)

    def for_length(self, length: int) -> Self:
        return replace(self, length=length) if self.traits.max_length is not None else self

    def forms(self, thing: Any, numbers: Sizes, generator: torch.Generator | None = None) -> nn.ModuleDict:
        """Builds the bidirectional and the causal form, which are the same object unless the constructor chooses.

        Two objects share the parameters that they both have.
        """
        if not is_built_first(thing):
            attend = copy.deepcopy(thing) if isinstance(thing, nn.Module) else thing  # its dtype will be changed
            return _held(attend, attend)
        if self.causal_by != "constructor":
            attend = build(thing, self.arguments, self.sizes, numbers, generator)
            return _held(attend, attend)
        plain, causal = (
            build(thing, {**self.arguments, self.causal_argument: value}, self.sizes, numbers, generator)
            for value in (False, True)
        )
        held = _held(plain, causal)
        _share_parameters(held["bidirectional"], held["causal"])
        return held


@contextmanager
def _drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Inside the block, PyTorch's own random numbers on a CPU follow from the generator, and are as before after it."""
    if generator is None:
        yield
        return
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _share_parameters(module: nn.Module, other: nn.Module) -> None:
    """Gives another module the parameters of this one, as far as it has some of the same names and shapes."""
    known = dict(module.named_parameters())
    for name, parameter in list(other.named_parameters()):
        if name in known and known[name].shape == parameter.shape:
            path, _, last = name.rpartition(".")
            setattr(other.get_submodule(path), last, known[name])


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


class History(NamedTuple):
    """Everything that an attention without a state has read so far, as it reads all of it again at every step."""

    q: Float[Tensor, "b h n d"]
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n d"]
    keep: Bool[Tensor, "b n"]

    def followed_by(self, other: "History") -> "History":
        """Both, one after the other."""
        q, k, v = (torch.cat(pair, 2) for pair in zip(self[:3], other[:3], strict=True))
        return History(q, k, v, torch.cat([self.keep, other.keep], 1))


class AttentionOfModel(OutsideAttention):
    """An attention of others as a part of a model: every causal one goes on from a state, and masks are never ignored."""

    def causal(self, *inputs: Any, keep: Bool[Tensor, "b s"] | None = None) -> tuple[Tensor, Any]:
        """The causal form. Padding behind the last real position needs no mask there: no earlier position sees it."""
        if self.options.continues:
            return super().causal(*inputs, keep=keep)
        q, k, v = inputs[:3]
        before: History | None = inputs[3] if len(inputs) > 3 else None
        now = History(q, k, v, q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if keep is None else keep)
        whole = now if before is None else before.followed_by(now)
        needs_mask = (keep is not None or before is not None) and not is_behind(whole.keep)
        self.require_both_masks(needs_mask=needs_mask)
        mixed = super().causal(*whole[:3], keep=whole.keep if needs_mask else None)[0]
        return mixed[:, :, -q.shape[2] :], whole

    def require_both_masks(self, *, needs_mask: bool) -> None:
        """Raises `SubquadError` if the causal form needs a padding mask and has no room for it."""
        options = self.options
        if needs_mask and options.causal_by == "mask" and options.causal_argument == options.mask_argument:
            raise SubquadError(
                f"{options.target} takes its padding mask and its causal mask by the same argument, so that its causal form "
                "cannot have sequences with padding in front: use it with sequences of one length"
            )

    def mask_arguments(self, inputs: tuple[Tensor, ...], keep: Tensor | None) -> dict[str, Any]:
        if keep is not None and self.options.mask is None:
            if bool(keep.all()):
                return {}
            raise SubquadError(
                f"{self.options.target} takes no padding mask, but the sequences have different lengths: give its call an "
                "argument for one, or use it with sequences of one length"
            )
        if keep is not None and self.options.mask == "lengths" and not is_behind(keep):
            raise SubquadError(f"{self.options.target} takes numbers of real keys, which must come first, but padding does")
        return super().mask_arguments(inputs, keep)


def imported_parts(attention: AttentionOptions) -> list[Outside]:
    """The attentions that are imported by name among those of the layers."""
    return [part for part in attention.parts if isinstance(part, Outside)]
