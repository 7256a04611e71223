"""Full precision under autocast, in values and in gradients.

PyTorch's autocast applies to every operation that runs inside its block. A backward that is called inside the block runs
under autocast too, and its products are rounded to half precision. To avoid this, hand-written backwards are decorated with
`outside_autocast`, and other gradients go through `product`, the only kind of operation used here that autocast rounds.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Returns a context in which autocast is disabled on the device of `x`."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def precise(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of sums and normalisers for inputs of `dtype`: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_traced() -> bool:
    """Whether PyTorch's operations are followed by a compiler or by a transform of `torch.func`, rather than just run."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def prefers_parallel(x: Tensor) -> bool:
    """Whether to process all blocks at once: on a GPU, and where operations are traced, which would unroll loops."""
    return x.device.type != "cpu" or is_traced()


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether autograd needs the gradient of any of these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def outside_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that disables autocast in the backward of an autograd function."""

    @wraps(backward)
    def precise_backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return backward(ctx, *gradients)
        first = next((gradient for gradient in gradients if gradient is not None), None)
        with nullcontext() if first is None else without_autocast(first):
            return backward(ctx, *gradients)

    return precise_backward


def product(x: Float[Tensor, "*bx n m"], y: Float[Tensor, "*by m e"]) -> Float[Tensor, "*b n e"]:
    """Returns x @ y, with a gradient that autocast does not round."""
    if is_traced() or not needs_gradient(x, y):  # compiled backwards are not affected by autocast
        return x @ y
    batch = x.shape[:-2]
    if len(batch) < 2 or y.shape[:-2] != batch:
        return _Product.apply(x, y)  # type: ignore[no-untyped-call]
    # flattening here makes the copy once, instead of again in the backward
    flat: Tensor = _Product.apply(x.flatten(0, -3), y.flatten(0, -3))  # type: ignore[no-untyped-call]
    return flat.unflatten(0, batch)


class _Product(torch.autograd.Function):
    """Matrix product x y. With G the gradient of the product, dx = G y^T and dy = x^T G."""

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
        for_x = product(gradient, y.mT).sum_to_size(x.shape) if is_asked_for(ctx, 0) else None
        for_y = product(x.mT, gradient).sum_to_size(y.shape) if is_asked_for(ctx, 1) else None
        return for_x, for_y


def is_asked_for(ctx: Any, index: int, *, others: int = 0) -> bool:
    """Whether the gradient of an input is used in this backward, and not only the input requires one.

    `others` is the number of inputs before it that are no tensors.
    `torch.autograd.grad` for other tensors does not use it. PyTorch raises an error for a leaf whose gradient it does use.
    """
    if not ctx.needs_input_grad[index] or is_traced():
        return bool(ctx.needs_input_grad[index])
    node = ctx.next_functions[index - others][0]
    try:
        return node is not None and torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return True
