"""What a mechanism says of input that it cannot use: the argument, what it got and what it needs, in one sentence."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from subquad.errors import NotFiniteError, SubquadError
from subquad.ops.autocast import needs_gradient, precise

State = TypeVar("State", bound=tuple[Tensor, ...])


class Part(NamedTuple):
    """What a part of a state must be."""

    shape: tuple[int, ...]
    types: tuple[torch.dtype, ...]


COUNTS = (torch.int64,)
FLAGS = (torch.bool,)


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, *, heads: int, head_dim: int, causal: bool = False
) -> None:
    """Shapes, types and devices."""
    alike = q.shape == k.shape == v.shape and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device
    if alike and keep is None and q.ndim == 4 and q.shape[1] == heads and q.shape[3] == head_dim and q.is_floating_point():
        return  # the usual case in a microsecond or two, which a step of decoding notices
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


def as_state(kind: type[State], state: Any) -> State:
    """The state as a named tuple of tensors, also where its parts came in a plain tuple or list, as from a file."""
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
    return kind(*(part.clone() for part in state))  # autograd takes no tensor that was made in inference mode


def check_state(state: tuple[Tensor, ...], v: Tensor, parts: Mapping[str, Part]) -> None:
    """Whether a state fits the inputs that are to continue it: shapes, types and devices."""
    for part, (name, (needed, types)) in zip(state, parts.items(), strict=True):
        _check_shape(f"state.{name}", part, needed)
        if part.dtype not in types or part.device != v.device:
            right = part.dtype if part.dtype in types else types[0]
            raise SubquadError(
                f"state.{name} is {part.dtype} on {part.device}, but must be {right} on {v.device} to go with the inputs: "
                "convert it with .to, or start without a state"
            )


def sums_like(v: Tensor) -> tuple[torch.dtype, ...]:
    """The type of sums in a state that v can continue."""
    return (precise(v.dtype),)


def held_like(v: Tensor) -> tuple[torch.dtype, ...]:
    """The types of keys and values in a state that v can continue: they are kept as they came."""
    return (torch.float64,) if v.dtype == torch.float64 else (torch.float32, torch.bfloat16, torch.float16)


def reusable(attend: nn.Module, state: State | None, q: Tensor, k: Tensor, v: Tensor) -> State | None:
    """A state that may be written over: refused while autograd may come back for what it holds.

    Parts in which sequences share memory, as `expand` makes them, are copied.
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
    """The result, unless what went in was not finite. A sum over the result tells; a GPU, which would wait, is not asked.

    `also` holds what else to sum: PyTorch's fused attention may turn a NaN into zeros, so its result alone does not tell.
    """
    if mixed.device.type != "cpu" or torch.compiler.is_compiling():
        return mixed
    if all(part.detach().sum().isfinite() for part in (mixed, *also)):
        return mixed
    held = {} if state is None else state._asdict()  # type: ignore[attr-defined]
    for name, x in {"q": q, "k": k, "v": v, **{f"state.{name}": part for name, part in held.items()}}.items():
        infinite = x == torch.inf if name == "state.peak" else x.isinf()  # the peak of no keys is minus infinity
        for what, found in (("NaN", x.isnan()), ("infinite numbers", infinite)):
            if found.any():
                place = tuple(found.nonzero()[0].tolist())
                raise NotFiniteError(f"{name} holds {what}, first at {place} of its shape {_shape(x)}: look at what made it")
    return mixed


def _check_shape(name: str, x: Tensor, needed: tuple[int, ...]) -> None:
    if x.shape != needed:
        raise SubquadError(f"{name} must have the shape {needed} to fit the rest, but has {_shape(x)}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
