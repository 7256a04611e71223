"""Checks of a mechanism's inputs, with errors that name the argument, what it is and what it must be."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from subquad.errors import NotFiniteError, SubquadError
from subquad.ops.autocast import is_traced, needs_gradient, precise

State = TypeVar("State", bound=tuple[Tensor, ...])


class Part(NamedTuple):
    """Required shape and allowed dtypes of one tensor of a state."""

    shape: tuple[int, ...]
    types: tuple[torch.dtype, ...]


COUNTS = (torch.int64,)
FLAGS = (torch.bool,)


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, *, heads: int, head_dim: int, causal: bool = False
) -> None:
    """Checks the shapes, dtypes and devices of queries, keys, values and mask."""
    if keep is None and _are_usual(q, k, v, heads, head_dim):
        return
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise SubquadError(f"{name} must be (batch, heads, positions, head_dim), but its shape is {_shape(x)}")
        if not x.is_floating_point():
            raise SubquadError(f"{name} must hold floating-point numbers, but holds {x.dtype}: convert it with .float()")
        if x.device != q.device or x.dtype != q.dtype:
            raise SubquadError(
                f"{name} is {x.dtype} on {x.device}, but q is {q.dtype} on {q.device}: all three must be alike"
            )
    b, _, n, _ = q.shape
    s = k.shape[2]
    _check_shape("q", q, (b, heads, n, head_dim))
    _check_shape("k", k, (b, heads, s, head_dim))
    _check_shape("v", v, (b, heads, s, v.shape[3]))
    if causal and s != n:
        raise SubquadError(f"k has {s} positions and q has {n}: the causal form needs as many keys as queries")
    if keep is not None:
        if keep.dtype != torch.bool:
            raise SubquadError(f"keep must hold booleans, true where a key is real, but holds {keep.dtype}")
        if keep.device != q.device:
            raise SubquadError(f"keep is on {keep.device}, but q is on {q.device}")
        _check_shape("keep", keep, (b, s))


def _are_usual(q: Tensor, k: Tensor, v: Tensor, heads: int, head_dim: int) -> bool:
    """Whether q, k and v are alike and of the right shape. It is asked often, and a microsecond or two matter."""
    shape, dtype = q.shape, q.dtype
    if len(shape) != 4 or shape[1] != heads or shape[3] != head_dim or k.shape != shape or v.shape != shape:
        return False
    if k.dtype is not dtype or v.dtype is not dtype or not dtype.is_floating_point:
        return False
    return (q.is_cpu and k.is_cpu and v.is_cpu) or q.device == k.device == v.device


def as_state(kind: type[State], state: Any) -> State:
    """Returns a state as its named tuple of tensors, from a plain tuple or list too, as read from a file."""
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    if not isinstance(state, kind):
        plain = isinstance(state, (tuple, list)) and not hasattr(state, "_fields")
        if not plain or len(state) != len(names):
            raise SubquadError(
                f"state must be the {kind.__name__} that an earlier call returned, or its parts ({', '.join(names)}), "
                f"but is of type {type(state).__name__}" + (f" with {len(state)} parts" if plain else "")
            )
        state = kind(*state)
    for name, part in zip(names, state, strict=True):
        if not isinstance(part, Tensor):
            raise SubquadError(f"state.{name} must be a tensor, but is of type {type(part).__name__}")
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or not any(part.is_inference() for part in state):
        return state
    return kind(*(part.clone() for part in state))  # autograd cannot use tensors made in inference mode


def check_state(state: tuple[Tensor, ...], v: Tensor, parts: Mapping[str, Part]) -> None:
    """Checks that the shapes, dtypes and devices of a state fit the inputs that continue it."""
    for part, (name, (needed, types)) in zip(state, parts.items(), strict=True):
        _check_shape(f"state.{name}", part, needed)
        if part.dtype not in types or part.device != v.device:
            right = part.dtype if part.dtype in types else types[0]
            raise SubquadError(
                f"state.{name} is {part.dtype} on {part.device}, but must be {right} on {v.device} to go with the inputs: "
                "convert it with .to, or start without a state"
            )


def sums_like(v: Tensor) -> tuple[torch.dtype, ...]:
    """Returns the allowed dtypes of sums in a state that `v` continues."""
    return (precise(v.dtype),)


def held_like(v: Tensor) -> tuple[torch.dtype, ...]:
    """Returns the allowed dtypes of keys and values in a state that `v` continues."""
    return (torch.float64,) if v.dtype == torch.float64 else (torch.float32, torch.bfloat16, torch.float16)


def reusable(attend: nn.Module, state: State | None, q: Tensor, k: Tensor, v: Tensor) -> State | None:
    """Returns a state that can be overwritten. Raises `SubquadError` while gradients are recorded for it.

    Tensors in which sequences share memory, as made by `expand`, are copied.
    """
    if torch.is_grad_enabled() and needs_gradient(q, k, v, *(state or ()), *attend.parameters()):
        raise SubquadError(
            "reuse=True writes over the state, which gradients are being recorded for: "
            "leave reuse out, or call step under torch.no_grad()"
        )
    if state is None or all(part.is_contiguous() for part in state):
        return state
    return type(state)(*(part.clone() if 0 in part.stride() else part for part in state))


def check_result(
    mixed: Tensor, q: Tensor, k: Tensor, v: Tensor, *also: Tensor, state: tuple[Tensor, ...] | None = None
) -> Tensor:
    """Returns the result; raises `NotFiniteError` on a CPU if an input was not finite, which the sum of the result shows.

    `also` holds further tensors to sum, since PyTorch's fused attention may turn NaN into zeros. On a GPU the check is left
    out, as it would have to wait for the result, and where operations are traced.
    """
    if mixed.device.type != "cpu" or is_traced():
        return mixed
    if all(part.detach().sum().isfinite() for part in (mixed, *also)):
        return mixed
    held = {} if state is None else state._asdict()  # type: ignore[attr-defined]
    for name, x in {"q": q, "k": k, "v": v, **{f"state.{name}": part for name, part in held.items()}}.items():
        infinite = x == torch.inf if name == "state.peak" else x.isinf()  # the peak is -inf before the first key
        for problem, is_bad in (("NaN", x.isnan()), ("infinite numbers", infinite)):
            if is_bad.any():
                place = tuple(is_bad.nonzero()[0].tolist())
                raise NotFiniteError(
                    f"{name} holds {problem}, first at {place} of its shape {_shape(x)}: look at what made it"
                )
    return mixed


def _check_shape(name: str, x: Tensor, needed: tuple[int, ...]) -> None:
    if x.shape != needed:
        raise SubquadError(f"{name} must have the shape {needed} to fit the rest, but has {_shape(x)}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
