"""What a mechanism says of input that it cannot use: the argument, what it got and what it needs, in one sentence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from subquad.errors import SubquadError


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, *, heads: int, width: int, causal: bool = False
) -> None:
    """Shapes, types and devices."""
    alike = q.shape == k.shape == v.shape and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device
    if alike and keep is None and q.ndim == 4 and q.shape[1] == heads and q.shape[3] == width and q.is_floating_point():
        return  # the usual case in a microsecond or two, which a step of decoding notices
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise SubquadError(f"{name} must be (batch, heads, positions, width), but its shape is {_shape(x)}")
        if not x.is_floating_point():
            raise SubquadError(f"{name} must hold floating-point numbers, but holds {x.dtype}: convert it with .float()")
        if x.device != q.device or x.dtype != q.dtype:
            raise SubquadError(
                f"{name} is {x.dtype} on {x.device}, but q is {q.dtype} on {q.device}: all three must be alike"
            )
    b, _, n, _ = q.shape
    s = k.shape[2]
    _check_shape("q", q, (b, heads, n, width))
    _check_shape("k", k, (b, heads, s, width))
    _check_shape("v", v, (b, heads, s, v.shape[3]))
    if causal and s != n:
        raise SubquadError(f"k has {s} positions and q has {n}: the causal form needs as many keys as queries")
    if keep is not None:
        if keep.dtype != torch.bool:
            raise SubquadError(f"keep must hold booleans, true where a key is real, but holds {keep.dtype}")
        if keep.device != q.device:
            raise SubquadError(f"keep is on {keep.device}, but q is on {q.device}")
        _check_shape("keep", keep, (b, s))


def check_state(state: Sequence[Tensor], fields: dict[str, tuple[int, ...]]) -> None:
    """Whether a state fits the inputs that are to continue it."""
    if len(state) != len(fields):
        raise SubquadError(f"state must be ({', '.join(fields)}), but has {len(state)} parts")
    for (name, needed), part in zip(fields.items(), state, strict=True):
        _check_shape(f"state.{name}", part, needed)


def check_result(mixed: Tensor, q: Tensor, k: Tensor, v: Tensor, *also: Tensor) -> Tensor:
    """The result, unless what went in was not finite. A sum over the result tells; a GPU, which would wait, is not asked.

    `also` holds what else to sum: PyTorch's fused attention may turn a NaN into zeros, so its result alone does not tell.
    """
    if mixed.device.type != "cpu" or torch.compiler.is_compiling():
        return mixed
    if all(part.detach().sum().isfinite() for part in (mixed, *also)):
        return mixed
    for name, x in (("q", q), ("k", k), ("v", v)):
        for what, found in (("NaN", x.isnan()), ("infinite numbers", x.isinf())):
            if found.any():
                place = tuple(found.nonzero()[0].tolist())
                raise SubquadError(f"{name} holds {what}, first at {place} of its shape {_shape(x)}: look at what made it")
    return mixed


def _check_shape(name: str, x: Tensor, needed: tuple[int, ...]) -> None:
    if x.shape != needed:
        raise SubquadError(f"{name} must have the shape {needed} to fit the rest, but has {_shape(x)}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
