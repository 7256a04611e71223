"""Precision that autocast does not touch, in values and in gradients.

PyTorch's autocast acts where an operation runs. A backward that is called inside the block runs there too, long after the
forward has left it, and every product in it is rounded to half precision. Gradients here do not depend on where the
backward is called: hand-written ones are `outside_autocast`, and plain ones go through `product`, the only kind of
operation used here that autocast rounds.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Sums stay precise under autocast, too. Where it is off, which is cheap to ask, nothing needs to be done."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums and normalisers are kept: float32, or float64 where the input is."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def prefers_parallel(x: Tensor) -> bool:
    """Whether everything is to be done at once: a GPU wants it, and a compiler, which would unroll loops over blocks."""
    return x.device.type != "cpu" or torch.compiler.is_compiling()


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether autograd will come back for any of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def outside_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The backward of an autograd function, computed in the precision of its tensors wherever it is called."""

    @wraps(backward)
    def precise_backward(ctx: Any, *gradients: Tensor | None) -> Any:
        first = next((gradient for gradient in gradients if gradient is not None), None)
        with nullcontext() if first is None else without_autocast(first):
            return backward(ctx, *gradients)

    return precise_backward


def product(x: Float[Tensor, "*bx n m"], y: Float[Tensor, "*by m e"]) -> Float[Tensor, "*b n e"]:
    """x @ y, with a gradient that is as precise as they are wherever the backward is called."""
    if torch.compiler.is_compiling() or not needs_gradient(x, y):  # compilers keep autocast out of the backward themselves
        return x @ y
    batch = x.shape[:-2]
    if len(batch) < 2 or y.shape[:-2] != batch:
        return _Product.apply(x, y)  # type: ignore[no-untyped-call]
    # in one dimension, so that what is copied for that is copied here, and not in the backward again
    flat: Tensor = _Product.apply(x.flatten(0, -3), y.flatten(0, -3))  # type: ignore[no-untyped-call]
    return flat.unflatten(0, batch)


class _Product(torch.autograd.Function):
    """With G the gradient of x y, that of x is G y^T, and that of y is x^T G."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        for_x = product(gradient, y.mT).sum_to_size(x.shape) if ctx.needs_input_grad[0] else None
        for_y = product(x.mT, gradient).sum_to_size(y.shape) if ctx.needs_input_grad[1] else None
        return for_x, for_y
