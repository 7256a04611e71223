"""Attempts to call an attention in some way, and the inputs that they are made with."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from subquad.attention.outside.building import parameters_of
from subquad.attention.outside.importing import sentence_of
from subquad.attention.outside.mechanism import Outside, OutsideAttention
from subquad.errors import SubquadError


class Attempt(NamedTuple):
    """A module that could be called, and the object that is called, with notes on what was guessed."""

    module: OutsideAttention
    call: Callable[..., Any]
    constructor: Any
    whole: int
    part: int | None
    notes: tuple[str, ...]

    def noting(self, note: str, **other: Any) -> "Attempt":
        """The same attempt with other options, and a note about them."""
        return self.trying(**other)._replace(notes=(*self.notes, note))

    def trying(self, **other: Any) -> "Attempt":
        """The same attempt with other options."""
        old = self.module
        module = OutsideAttention(replace(old.options, **other), old.heads, old.head_dim, old.held)
        return self._replace(module=module)

    def named(self, names: Iterable[str]) -> list[str]:
        """Those of the names that the call has as parameters; all of them where Python does not know its parameters."""
        known = parameters_of(self.call)
        return [name for name in names if not known or name in known]

    def draw(self, length: int | None = None) -> tuple[Tensor, ...]:
        """Inputs of two sequences."""
        return draw(self.module.options, self.module.heads, self.module.head_dim, 2, length or self.whole)


def draw(options: Outside, heads: int, head_dim: int, batch: int, length: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Standard normal inputs, ``b h n d``: q, k and v, or x with one head as wide as the model."""
    shape = (1, batch, 1, length, heads * head_dim) if options.layer else (3, batch, heads, length, head_dim)
    drawing = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if options.is_double else torch.float32
    return tuple(torch.randn(*shape, generator=drawing, dtype=torch.float64).to(dtype))


def problem_of(run: Callable[[], Any]) -> str | None:
    """What is wrong with a call, in words; None if it returns."""
    try:
        with torch.no_grad():
            run()
    except Exception as error:  # a callable may raise anything
        return str(error) if isinstance(error, SubquadError) else sentence_of(error)
    return None


def changed(x: Tensor, places: Tensor, loudness: float = 10.0) -> Tensor:
    """A copy of an input with other, louder numbers at some positions."""
    fresh = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x.dtype)
    return x.index_copy(2, places, loudness * fresh[:, :, places])


def effect(before: Tensor, after: Tensor) -> float:
    """Largest difference of two results over the root mean square of the first; infinite where one is not finite."""
    if not before.numel():
        return 0.0
    first, second = before.detach().double(), after.detach().double()
    largest, size = float((first - second).abs().max()), float(first.square().mean().sqrt())
    if not (largest < float("inf") and size < float("inf")):
        return float("inf")
    return largest / size if size > 0 else largest


def deviation(before: Tensor, after: Tensor) -> float:
    """Root mean square difference of two results over the root mean square of the first; infinite if not finite."""
    first, second = before.detach().double(), after.detach().double()
    ratio = float((first - second).square().mean().sqrt() / first.square().mean().sqrt().clamp(min=1e-300))
    return ratio if ratio < float("inf") else float("inf")
