"""Native kernels as operators of PyTorch, for compiled code.

Compilers keep an operator of `torch.library` as one node of their graph: its fake implementation tells shapes and types, and
its gradient is an operator again. Plain calls do without, since going through an operator takes some ten microseconds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from subquad import native as library
from subquad.ops.autocast import precise
from subquad.ops.linear.calls import TYPES, Back, Inputs, fused_by_kernels
from subquad.ops.linear.sums import LinearState, WeightGradients, new_mixed
from subquad.types import Features, Fused, Maps, Scratch


def serves(q: Tensor, maps: Maps) -> bool:
    """Whether these operators take the inputs in compiled code: on a CPU, for maps that kernels compute themselves.

    Exported programs do without them, so that they run where this package is not installed.
    """
    if torch.compiler.is_exporting() or not torch.compiler.is_compiling() or not q.is_cpu or q.dtype not in TYPES:
        return False
    return fused_by_kernels(maps.queries) is not None and fused_by_kernels(maps.keys) is not None and _is_chosen()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_chosen() -> bool:
    """Whether native kernels are there and chosen, asked once when code is compiled."""
    return library.is_chosen()


def attend(q: Tensor, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None) -> Tensor:
    """Returns the mixed values, where every query sees every kept key."""
    mixed: Tensor = bidirectional(q, k, v, keep, *_flat(maps))[0]
    return mixed


def attend_causal(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, state: LinearState | None, keep: Tensor | None
) -> tuple[Tensor, LinearState]:
    """Returns the mixed values and the new state; position i sees the keys in `state` and those up to i."""
    before = (None, None, None) if state is None else (state.sums, state.norms, state.peak.detach())
    mixed, sums, norms, peak, _ = causal(q, k, v, keep, *before, *_flat(maps))
    return mixed, LinearState(sums, norms, peak)


def _flat(maps: Maps) -> tuple[str, Tensor | None, str, Tensor | None]:
    """Returns maps as arguments of an operator: names, and random directions."""
    queries, keys = maps.queries.fused(), maps.keys.fused()
    assert queries is not None
    assert keys is not None
    return queries.kind, queries.omega, keys.kind, keys.omega


class _Side:
    """A map that kernels compute themselves, as an operator gets it."""

    def __init__(self, kind: str, omega: Tensor | None) -> None:
        self._fused = Fused(kind, omega)  # type: ignore[arg-type]
        self.has_exponent = omega is not None

    def fused(self) -> Fused:
        return self._fused

    def feature_count(self, d: int) -> int:
        omega = self._fused.omega
        return d if omega is None else omega.shape[-1] * (2 if self._fused.kind == "hyperbolic" else 1)

    def weights(self) -> Sequence[Tensor]:
        return ()

    def __call__(self, x: Tensor, scratch: Scratch | None = None) -> Features:
        raise NotImplementedError("kernels compute these features themselves")

    def pullback(self, x: Tensor, features: Features, gradient: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError("kernels compute this gradient themselves")


def _maps(queries: str, omega_q: Tensor | None, keys: str, omega_k: Tensor | None) -> Maps:
    return Maps(_Side(queries, omega_q), _Side(keys, omega_k))


def _new_state(q: Tensor, v: Tensor, maps: Maps) -> LinearState:
    """Returns memory for a state."""
    b, h, _, d = q.shape
    m, dtype = maps.keys.feature_count(d), precise(q.dtype)
    return LinearState(
        q.new_empty(b, h, m, v.shape[-1], dtype=dtype), q.new_empty(b, h, m, dtype=dtype), q.new_empty(b, h, dtype=dtype)
    )


# ---- the causal form


@torch.library.custom_op("subquad::linear_causal", mutates_args=())
def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    sums: Tensor | None,
    norms: Tensor | None,
    peak: Tensor | None,
    queries: str,
    omega_q: Tensor | None,
    keys: str,
    omega_k: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the mixed values, the state after them, and 1 / denominators."""
    inputs = Inputs(q, k, v, _maps(queries, omega_q, keys, omega_k), keep)
    inverse = inputs.new_inverse()
    mixed, after = inputs.mix_causal((sums, norms, peak), inverse)
    return mixed, *after, inverse


@causal.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, keep: Any, sums: Any, norms: Any, peak: Any, *maps: Any) -> tuple[Tensor, ...]:
    state = _new_state(q, v, _maps(*maps))
    return new_mixed(q, v), *state, q.new_empty(q.shape[:3].numel(), dtype=precise(q.dtype))


@torch.library.custom_op("subquad::linear_causal_backward", mutates_args=())
def causal_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    sums: Tensor | None,
    norms: Tensor | None,
    peak: Tensor | None,
    queries: str,
    omega_q: Tensor | None,
    keys: str,
    omega_k: Tensor | None,
    mixed: Tensor,
    inverse: Tensor,
    gradient: Tensor,
    d_sums: Tensor,
    d_norms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of q, k, v, and of the sums and norms before."""
    maps = _maps(queries, omega_q, keys, omega_k)
    inputs, back = Inputs(q, k, v, maps, keep), Back(mixed, gradient, inverse)
    dq, peaks = inputs.back_to_queries_causal(back, (sums, norms, peak), WeightGradients(maps.queries))
    later = (d_sums.contiguous(), d_norms.contiguous(), None)
    dk, dv, for_sums, for_norms = inputs.back_to_keys_causal(back, later, peaks, WeightGradients(maps.keys))
    assert for_sums is not None
    assert for_norms is not None
    return dq, dk, dv, for_sums, for_norms


@causal_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    state = _new_state(q, v, _maps(*rest[4:8]))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), state.sums, state.norms


def _save_causal(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, keep, sums, norms, peak, queries, omega_q, keys, omega_k = inputs
    ctx.save_for_backward(q, k, v, keep, sums, norms, peak, omega_q, omega_k, output[0], output[4])
    ctx.kinds = (queries, keys)


def _causal_gradient(
    ctx: Any, gradient: Tensor, d_sums: Tensor, d_norms: Tensor, _d_peak: Tensor, _d_inverse: Tensor
) -> tuple[Tensor | None, ...]:
    q, k, v, keep, sums, norms, peak, omega_q, omega_k, mixed, inverse = ctx.saved_tensors
    queries, keys = ctx.kinds
    saved = (q, k, v, keep, sums, norms, peak, queries, omega_q, keys, omega_k, mixed, inverse)
    dq, dk, dv, for_sums, for_norms = causal_backward(*saved, gradient, d_sums, d_norms)
    for_state = (None, None) if sums is None else (for_sums, for_norms)
    return dq, dk, dv, None, *for_state, None, None, None, None, None


causal.register_autograd(_causal_gradient, setup_context=_save_causal)


# ---- the bidirectional form


@torch.library.custom_op("subquad::linear_bidirectional", mutates_args=())
def bidirectional(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    queries: str,
    omega_q: Tensor | None,
    keys: str,
    omega_k: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the mixed values, the sums over all keys, and 1 / denominators."""
    inputs = Inputs(q, k, v, _maps(queries, omega_q, keys, omega_k), keep)
    inverse, state = inputs.new_inverse(), inputs.sum_keys()
    return inputs.mix(state, inverse), *state, inverse


@bidirectional.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, keep: Any, *maps: Any) -> tuple[Tensor, ...]:
    state = _new_state(q, v, _maps(*maps))
    return new_mixed(q, v), *state, q.new_empty(q.shape[:3].numel(), dtype=precise(q.dtype))


@torch.library.custom_op("subquad::linear_bidirectional_backward", mutates_args=())
def bidirectional_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    queries: str,
    omega_q: Tensor | None,
    keys: str,
    omega_k: Tensor | None,
    mixed: Tensor,
    sums: Tensor,
    norms: Tensor,
    peak: Tensor,
    inverse: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of q, k and v."""
    maps = _maps(queries, omega_q, keys, omega_k)
    inputs, back = Inputs(q, k, v, maps, keep), Back(mixed, gradient, inverse)
    dq, d_state = inputs.back_to_queries(back, LinearState(sums, norms, peak), WeightGradients(maps.queries))
    return dq, *inputs.back_to_keys(d_state, WeightGradients(maps.keys))


@bidirectional_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save_bidirectional(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, keep, queries, omega_q, keys, omega_k = inputs
    ctx.save_for_backward(q, k, v, keep, omega_q, omega_k, *output)
    ctx.kinds = (queries, keys)


def _bidirectional_gradient(ctx: Any, gradient: Tensor, *_rest: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, keep, omega_q, omega_k, *output = ctx.saved_tensors
    queries, keys = ctx.kinds
    for_inputs = bidirectional_backward(q, k, v, keep, queries, omega_q, keys, omega_k, *output, gradient)
    return *for_inputs, None, None, None, None, None


bidirectional.register_autograd(_bidirectional_gradient, setup_context=_save_bidirectional)
