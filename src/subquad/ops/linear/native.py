"""Linear attention by kernels: native ones on a CPU (see `subquad.native`), Triton's on a GPU (`subquad.ops.linear.gpu`).

elu+1, ReLU and FAVOR+'s positive and hyperbolic features are computed inside the kernels and never written to memory. The
features of other maps are computed by PyTorch, for a few hundred positions at a time.

Besides q, k, v, the result and a given state, one number for each position is saved for the backward, as fused softmax
attention does.
"""

from typing import Any, Protocol, TypeGuard

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad import native
from subquad.ops.autocast import is_traced, needs_gradient, outside_autocast, precise
from subquad.ops.linear import gpu
from subquad.ops.linear.calls import Inputs, given_arguments
from subquad.ops.linear.fused import (
    Back,
    FusedInputs,
    FusedMaps,
    ResultNotFiniteError,
    fused_by_kernels,
    fused_maps,
    map_arguments,
    new_state,
)
from subquad.ops.linear.layout import (
    NO_STATE,
    NUMBERS,
    TYPES,
    Parts,
    are_plain,
    contiguous,
    dense,
    dense_features,
    with_type,
)
from subquad.ops.linear.sums import LinearState, new_mixed
from subquad.ops.threads import share_with_pytorch
from subquad.types import Fused, Maps


def serves(q: Tensor) -> bool:
    """Whether kernels take these inputs: native ones that are there and chosen on a CPU, or Triton's on a GPU.

    Compilers do not see through the calls of kernels, so that compiled code does without (but see `custom`).
    """
    if is_traced():
        return False
    if gpu.serves(q):
        return True
    if not q.is_cpu or q.dtype not in TYPES or not native.is_chosen():
        return False
    share_with_pytorch()
    return True


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    maps: Maps,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values, where every query sees every kept key."""
    return _attend(q, k, v, _kernel_maps(q, maps) or maps, keep, must_be_finite=False)


def _attend(q: Tensor, k: Tensor, v: Tensor, maps: Maps | FusedMaps, keep: Tensor | None, *, must_be_finite: bool) -> Tensor:
    weights = maps.weights() if isinstance(maps, Maps) else ()
    if needs_gradient(q, k, v, *weights):
        mixed: Tensor = _Bidirectional.apply(q, k, v, maps, keep, must_be_finite, *weights)  # type: ignore[no-untyped-call]
        return mixed
    inputs = new_inputs(q, k, v, maps, keep, must_be_finite)
    return inputs.mix_only() if isinstance(inputs, FusedInputs) else inputs.mix(None)[0]


def _kernel_maps(q: Tensor, maps: Maps) -> FusedMaps | None:
    """Returns the feature functions as the kernels for these queries compute them; None if they cannot compute both."""
    fused = fused_maps(maps)
    return fused if fused is None or not gpu.serves(q) or gpu.computes(q, fused) else None


def new_inputs(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps | FusedMaps, keep: Tensor | None, must_be_finite: bool = False
) -> Any:  # Inputs | FusedInputs | GpuInputs, of which the last is imported only where there is Triton
    """Returns the calls of kernels that compute the features themselves, or take those that PyTorch computes."""
    if gpu.serves(q):
        return gpu.new_inputs(q, k, v, maps, keep)
    if isinstance(maps, FusedMaps):
        return FusedInputs(q, k, v, maps, keep, must_be_finite=must_be_finite)
    return Inputs(q, k, v, maps, keep)


def sum_keys(
    k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s e"], maps: Maps, keep: Bool[Tensor, "b s"] | None = None
) -> LinearState:
    """Returns the sums over all kept keys, without gradients."""
    return new_inputs(k[:, :, :0], k, v, _kernel_maps(k, maps) or maps, keep).sum_keys()


def read_sums(
    q: Float[Tensor, "b h n d"], v: Float[Tensor, "b h s e"], state: LinearState, maps: Maps
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values of queries that see all keys in `state`, without gradients; `v` tells their type."""
    return new_inputs(q, q[:, :, :0], v[:, :, :0], _kernel_maps(q, maps) or maps, None).mix_sums(state)


def attend_causal(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    maps: Maps,
    state: LinearState | None = None,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """Returns the mixed values and the new state; position i sees the keys in `state` and those up to i."""
    return _attend_causal(q, k, v, _kernel_maps(q, maps) or maps, state, keep, must_be_finite=False)


def _attend_causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    maps: Maps | FusedMaps,
    state: LinearState | None,
    keep: Tensor | None,
    *,
    must_be_finite: bool,
) -> tuple[Tensor, LinearState]:
    weights, before = maps.weights() if isinstance(maps, Maps) else (), NO_STATE if state is None else state
    if needs_gradient(q, k, v, *(state or ()), *weights):
        inputs = (q, k, v, maps, keep, must_be_finite, *before, *weights)
        mixed, *after = _Causal.apply(*inputs)  # type: ignore[no-untyped-call]
        return mixed, LinearState(*after)
    return new_inputs(q, k, v, maps, keep, must_be_finite).mix_causal(before, None)


def quick_attend(q: Tensor, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None) -> Tensor | None:
    """Returns what `attend` does if kernels compute it all and find it finite; else None.

    Kernels see whether a result is finite while they write it. Reading it again for that takes a tenth of their time.
    """
    fused = fused_maps(maps) if serves(q) and not gpu.serves(q) else None
    if fused is None:
        return None
    try:
        return _attend(q, k, v, fused, keep, must_be_finite=True)
    except ResultNotFiniteError:
        return None


def quick_causal(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, state: LinearState | None, keep: Tensor | None
) -> tuple[Tensor, LinearState] | None:
    """Returns what `attend_causal` does if kernels compute it all and find it finite, as `quick_attend`; else None."""
    fused = fused_maps(maps) if serves(q) and not gpu.serves(q) else None
    if fused is None:
        return None
    try:
        return _attend_causal(q, k, v, fused, state, keep, must_be_finite=True)
    except ResultNotFiniteError:
        return None


def step(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    maps: Maps,
    state: LinearState | None,
    reuse: bool,
) -> tuple[Float[Tensor, "b h 1 e"], LinearState]:
    """Attends from one position, without gradients. With `reuse`, the new state overwrites the old one."""
    if gpu.serves(q):
        return gpu.step(q, k, v, maps, _kernel_maps(q, maps), state, reuse)
    fused, dtype, m = fused_maps(maps), precise(q.dtype), maps.keys.feature_count(k.shape[-1])
    before: Parts = NO_STATE if state is None else contiguous(state)
    after = new_state(q, v, m) if state is None or not reuse else LinearState(*before)  # type: ignore[arg-type]
    mixed, v = new_mixed(q, v), dense(v)
    if fused is None:
        queries, keys = (dense_features(phi(x.to(dtype))) for phi, x in zip(maps, (q, k), strict=True))
        rows, of_maps = (queries.values, keys.values), (*given_arguments(queries), *given_arguments(keys))
    else:
        phi_q, phi_k = with_type(fused.queries, dtype), with_type(fused.keys, dtype)
        rows, of_maps = (dense(q), dense(k)), (*map_arguments(phi_q), *map_arguments(phi_k))
    b, h, _, d = rows[0].shape
    arguments = [b, h, d, v.shape[-1], m, TYPES[rows[0].dtype], TYPES[v.dtype], torch.get_num_threads(), *of_maps]
    for view in (*rows, v, mixed):
        arguments += (view.data_ptr(), *view.stride()[:3])
    arguments += [0 if x is None else x.data_ptr() for x in (*before, *after)]
    native.call("step", NUMBERS[dtype], [*arguments, 0])
    return mixed, after


def quick_step(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, state: LinearState, reuse: bool
) -> tuple[Tensor, LinearState] | None:
    """Attends from one position without gradients, if all is as it is while a model generates; else returns None.

    Checking inputs and results one by one takes longer than a step, so that this checks everything at once: shapes, types,
    memory, and whether the result is finite. When it returns None, the caller takes the slow path, which finds out why; a
    result that is not finite has been written over the state by then if `reuse` is set, as the slow path does too.
    """
    if torch.is_grad_enabled() or type(state) is not LinearState or is_traced() or not native.is_chosen():
        return None
    sums, norms, peak = state
    shape, phi_q = q.shape, fused_by_kernels(maps.queries)
    phi_k = phi_q if maps.keys is maps.queries else fused_by_kernels(maps.keys)
    if k.shape != shape or v.shape != shape or not _is_usual(phi_q) or not _is_usual(phi_k):
        return None
    b, h, n, d = shape
    m = maps.keys.feature_count(d)
    if n != 1 or sums.shape != (b, h, m, d) or norms.shape != (b, h, m) or peak.shape != (b, h):
        return None
    if not are_plain(q, k, v, sums, norms, peak):
        return None
    mixed, row = torch.empty_like(q), h * d
    after = state if reuse else LinearState(torch.empty_like(sums), torch.empty_like(norms), torch.empty_like(peak))
    before_at = (sums.data_ptr(), norms.data_ptr(), peak.data_ptr())
    after_at = before_at if reuse else tuple(x.data_ptr() for x in after)
    of_queries = map_arguments(phi_q)
    of_keys = of_queries if phi_k is phi_q else map_arguments(phi_k)
    sizes = (b, h, d, d, m, 0, 0, torch.get_num_threads(), *of_queries, *of_keys)
    inputs = (q.data_ptr(), row, d, d, k.data_ptr(), row, d, d, v.data_ptr(), row, d, d)
    arguments = (*sizes, *inputs, mixed.data_ptr(), row, d, d, *before_at, *after_at, 0)
    return None if native.call("step", "float", arguments) else (mixed, after)


def _is_usual(fused: Fused | None) -> TypeGuard[Fused]:
    """Whether kernels compute a map themselves, from random directions of the usual type if it has any."""
    return fused is not None and (fused.omega is None or are_plain(fused.omega))


class _Causal(torch.autograd.Function):
    """The gradient of a causal sum is a causal sum, reversed in time for k and v. See native/linear.h for the sums."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        maps: Maps | FusedMaps,
        keep: Tensor | None,
        must_be_finite: bool,
        sums: Tensor | None,
        norms: Tensor | None,
        peak: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        inputs = new_inputs(q, k, v, maps, keep, must_be_finite)
        inverse = inputs.new_inverse()
        mixed, after = inputs.mix_causal((sums, norms, peak), inverse)
        ctx.save_for_backward(q, k, v, keep, mixed, inverse, sums, norms, peak)
        ctx.maps = maps
        ctx.mark_non_differentiable(after.peak)
        ctx.set_materialize_grads(False)
        return mixed, *after

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor | None, d_sums: Tensor | None, d_norms: Tensor | None, _d_peak: None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, keep, mixed, inverse, sums, norms, peak = ctx.saved_tensors
        inputs = new_inputs(q, k, v, ctx.maps, keep)
        back = Back(mixed, torch.zeros_like(mixed) if gradient is None else gradient, inverse)
        later = both_or_none(d_sums, d_norms, inputs)
        to = inputs.back_causal(back, (sums, norms, peak), later, has_state=sums is not None)
        dq, dk, dv, for_sums, for_norms = to
        return dq, dk, dv, None, None, None, for_sums, for_norms, None, *inputs.weight_gradients


class _Bidirectional(torch.autograd.Function):
    """With G and e the gradients of numerator and denominator: dq' = G S^T + e z^T, dk' = v dS^T + dz and dv = k' dS."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        maps: Maps | FusedMaps,
        keep: Tensor | None,
        must_be_finite: bool,
        *weights: Tensor,
    ) -> Tensor:
        inputs = new_inputs(q, k, v, maps, keep, must_be_finite)
        inverse = inputs.new_inverse()
        mixed, state = inputs.mix(inverse)
        ctx.save_for_backward(q, k, v, keep, mixed, inverse, *state)
        ctx.maps = maps
        return mixed

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, mixed, inverse, *state = ctx.saved_tensors
        inputs = new_inputs(q, k, v, ctx.maps, keep)
        dq, dk, dv = inputs.back(Back(mixed, gradient, inverse), LinearState(*state))
        return dq, dk, dv, None, None, None, *inputs.weight_gradients


class MakesStates(Protocol):
    """Inputs of kernels, for which there is memory for states."""

    def new_state(self) -> LinearState: ...


def both_or_none(d_sums: Tensor | None, d_norms: Tensor | None, inputs: MakesStates) -> Parts:
    """Returns the gradients of sums and norms as kernels read them: none, or both, with zeros for one that is None."""
    if d_sums is None and d_norms is None:
        return NO_STATE
    sums, norms, _ = inputs.new_state()
    return (
        sums.zero_() if d_sums is None else d_sums.contiguous(),
        norms.zero_() if d_norms is None else d_norms.contiguous(),
        None,
    )
