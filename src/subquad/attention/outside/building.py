"""Builds a callable from what a name stands for: a function, a module, a class of modules, a function that makes one."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from subquad.attention.outside.importing import gpu_advice, sentence_of
from subquad.errors import SubquadError
from subquad.types import AttentionOptions

Size = Literal["heads", "head_dim", "model_dim", "length"]

SIZES: dict[Size, frozenset[str]] = {
    "heads": frozenset(
        {"heads", "num_heads", "n_heads", "nheads", "nhead", "n_head", "num_attention_heads", "head_count", "h"}
    ),
    "head_dim": frozenset(
        {"head_dim", "dim_head", "dim_heads", "d_head", "head_size", "head_width", "dim_per_head", "d_k", "query_dimensions"}
    ),
    "model_dim": frozenset(
        {"dim", "model_dim", "embed_dim", "d_model", "hidden_size", "hidden_dim", "channels", "emb_dim", "n_embd"}
    ),
    "length": frozenset(
        {"length", "max_length", "max_len", "seq_len", "max_seq_len", "sequence_length", "input_size", "context_length"}
    ),
}
"""Names of constructor arguments that stand for a size, by the size."""
CAUSAL_NAMES = ("causal", "is_causal")
"""Names of arguments that choose the causal form."""
FIRST_INPUTS = frozenset({"q", "query", "queries", "Q", "x", "hidden_states", "inputs", "input", "src", "tensor"})
"""Names of the first argument of a function that computes attention."""


class MissingArgumentError(SubquadError):
    """A constructor asks for an argument that was not given."""

    def __init__(self, name: str, argument: str) -> None:
        super().__init__(f"{name} cannot be built: its argument {argument!r} has no default")
        self.argument = argument


class Sizes(NamedTuple):
    """Numbers that a constructor may ask for."""

    heads: int
    head_dim: int
    length: int

    def value(self, size: Size) -> int:
        """The number that stands for a size."""
        return self.heads * self.head_dim if size == "model_dim" else getattr(self, size)


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a callable by name, without `self`; empty where Python does not know them."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def required_of(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """The names of parameters that a call must give."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, held in parameters.items() if held.default is held.empty and held.kind not in kinds]


def is_built_first(thing: Any) -> bool:
    """Whether a thing makes the attention when it is called, instead of being it: a class, or a function of sizes."""
    if isinstance(thing, type):
        return True
    if isinstance(thing, nn.Module | AttentionOptions):
        return isinstance(thing, AttentionOptions)
    required = required_of(parameters_of(thing))
    known = frozenset().union(*SIZES.values())
    return not FIRST_INPUTS & set(required) and all(name in known for name in required) and not _has_inputs(thing)


def _has_inputs(thing: Any) -> bool:
    """Whether a callable has parameters for inputs, required or not, or parameters that Python does not know."""
    parameters = parameters_of(thing)
    variable = any(held.kind is held.VAR_POSITIONAL for held in parameters.values())
    return not parameters or variable or bool(FIRST_INPUTS & set(parameters))


def size_arguments(thing: Any, given: Mapping[str, Any], *, layer: bool) -> dict[str, Size]:
    """Which size each constructor argument stands for, by the argument's name, for those that are not `given`.

    ``dim`` is the dimension of one head for a class on q, k and v without an argument for the number of heads.
    """
    if isinstance(thing, AttentionOptions) or _is_options_class(thing):
        return {}
    parameters = parameters_of(thing)
    required = required_of(parameters)
    named: dict[str, Size] = {
        name: size
        for name in parameters
        for size, names in SIZES.items()
        if name in names and name not in given and (size != "length" or name in required)
    }
    knows_heads = bool((SIZES["heads"] | SIZES["head_dim"]) & set(parameters))
    if layer or knows_heads:
        return named
    return {name: "head_dim" if size == "model_dim" else size for name, size in named.items()}


def build(
    thing: Any,
    arguments: Mapping[str, Any],
    sizes: Mapping[str, Size],
    numbers: Sizes,
    generator: torch.Generator | None = None,
) -> Any:
    """Builds the attention with these arguments. Raises `SubquadError` in words where that fails.

    `generator` is what a mechanism of this interface draws from; anything else draws from PyTorch's own random numbers.
    """
    name = getattr(thing, "__name__", type(thing).__name__)
    try:
        if _is_options_class(thing):
            thing = thing(**arguments)
        if isinstance(thing, AttentionOptions):
            drawing = torch.Generator().manual_seed(0) if generator is None else generator
            options = thing.for_length(numbers.length)
            return options.build(heads=numbers.heads, head_dim=numbers.head_dim, generator=drawing)
        return thing(**{argument: numbers.value(size) for argument, size in sizes.items()}, **arguments)
    except SubquadError:
        raise
    except TypeError as error:
        missing = [name for name in required_of(parameters_of(thing)) if name not in sizes and name not in arguments]
        if missing:
            raise MissingArgumentError(name, missing[0]) from None
        raise SubquadError(f"{name} cannot be built: {sentence_of(error)}") from None
    except Exception as error:  # a constructor may raise anything
        said = sentence_of(error)
        advice = gpu_advice(said)
        raise SubquadError(
            f"{name} cannot be built ({said}): {advice}" if advice else f"{name} cannot be built: {said}"
        ) from None


def call_of(attend: Any) -> Callable[..., Any]:
    """The function whose parameters tell how an attention is called."""
    return attend.forward if isinstance(attend, nn.Module) else attend


def _is_options_class(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, AttentionOptions)
