"""Native kernels as operators of PyTorch, for compiled code.

Compilers keep an operator of `torch.library` as one node of their graph: its fake implementation tells shapes and types, and
its gradient is an operator again. Plain calls do without, since going through an operator takes some ten microseconds.
"""

from typing import Any

import torch
from torch import Tensor

from subquad import native as library
from subquad.ops.autocast import precise
from subquad.ops.linear import gpu
from subquad.ops.linear.fused import Back, FusedMaps, fused_maps, new_state
from subquad.ops.linear.layout import TYPES
from subquad.ops.linear.native import new_inputs
from subquad.ops.linear.sums import LinearState, new_mixed
from subquad.types import Fused, Maps


def serves(q: Tensor, maps: Maps) -> bool:
    """Whether these operators take the inputs in compiled code: on a CPU or CUDA, for maps that kernels compute themselves.

    Exported programs do without them, so that they run where this package is not installed.
    """
    if torch.compiler.is_exporting() or not torch.compiler.is_compiling() or q.dtype not in TYPES:
        return False
    fused = fused_maps(maps)
    if fused is None or (q.is_cpu and not _is_chosen()):
        return False
    return q.is_cpu or (gpu.takes(q) and gpu.computes(q, fused) and _is_chosen_on_gpu())


def _is_chosen() -> bool:
    """Whether native kernels are there and chosen, asked once when code is compiled."""
    return library.is_chosen()


def _is_chosen_on_gpu() -> bool:
    """Whether Triton kernels are there and chosen, asked once when code is compiled."""
    return gpu.is_chosen()


for _asked in (_is_chosen, _is_chosen_on_gpu):
    # What torch.compiler.assume_constant_result does. That function imports the compiler, which takes a second or two.
    _asked.__dict__["_dynamo_marked_constant"] = True


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


def _maps(queries: str, omega_q: Tensor | None, keys: str, omega_k: Tensor | None) -> FusedMaps:
    """Returns maps from the arguments of an operator."""
    return FusedMaps(Fused(queries, omega_q), Fused(keys, omega_k))  # type: ignore[arg-type]


def _new_results(q: Tensor, v: Tensor, maps: FusedMaps) -> tuple[Tensor, ...]:
    """Memory for the mixed values, a state and 1 / denominators."""
    state = new_state(q, v, maps.feature_count(q.shape[-1]))
    return new_mixed(q, v), *state, q.new_empty(q.shape[:3].numel(), dtype=precise(q.dtype))


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
    inputs = new_inputs(q, k, v, _maps(queries, omega_q, keys, omega_k), keep)
    inverse = inputs.new_inverse()
    mixed, after = inputs.mix_causal((sums, norms, peak), inverse)
    return mixed, *after, inverse


@causal.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, keep: Any, sums: Any, norms: Any, peak: Any, *maps: Any) -> tuple[Tensor, ...]:
    return _new_results(q, v, _maps(*maps))


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
    inputs = new_inputs(q, k, v, _maps(queries, omega_q, keys, omega_k), keep)
    back, before, later = Back(mixed, gradient, inverse), (sums, norms, peak), (d_sums, d_norms, None)
    dq, dk, dv, for_sums, for_norms = inputs.back_causal(back, before, later, has_state=True)
    assert for_sums is not None
    assert for_norms is not None
    return dq, dk, dv, for_sums, for_norms


@causal_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    sums, norms, _ = new_state(q, v, _maps(*rest[4:8]).feature_count(q.shape[-1]))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), sums, norms


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
    inputs = new_inputs(q, k, v, _maps(queries, omega_q, keys, omega_k), keep)
    inverse = inputs.new_inverse()
    mixed, state = inputs.mix(inverse)
    return mixed, *state, inverse


@bidirectional.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, keep: Any, *maps: Any) -> tuple[Tensor, ...]:
    return _new_results(q, v, _maps(*maps))


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
    inputs = new_inputs(q, k, v, _maps(queries, omega_q, keys, omega_k), keep)
    return inputs.back(Back(mixed, gradient, inverse), LinearState(sums, norms, peak))


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
