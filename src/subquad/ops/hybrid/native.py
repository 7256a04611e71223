"""The hybrid by native kernels on a CPU: its gradient, and one position.

Besides q, k, v, the result and a given state, one number for each position is saved for the backward, as fused softmax
attention does. Features and near weights are computed again.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad import native
from subquad.ops.autocast import is_traced, needs_gradient, outside_autocast, precise
from subquad.ops.hybrid.calls import Back, Inputs, Side
from subquad.ops.hybrid.state import HybridState
from subquad.ops.linear.layout import NO_STATE, NOT_FINITE, NUMBERS, TYPES, are_plain, dense
from subquad.ops.linear.native import both_or_none
from subquad.ops.linear.sums import LinearState
from subquad.types import Maps


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    maps: Maps,
    state: LinearState | None,
    total: Int[Tensor, "b"],
    log_gain: Float[Tensor, "h"],
    block: int,
) -> tuple[Float[Tensor, "b h n e"], LinearState | None]:
    """Returns the mixed values of sequences whose first `total` positions are real; causal if `state` is given.

    The returned state sums all blocks before the last two; the last one may be empty. Other positions get zeros.
    """
    weights, before = maps.weights(), NO_STATE if state is None else state
    if needs_gradient(q, k, v, log_gain, *(state or ()), *weights):
        mixed, *after = _Hybrid.apply(q, k, v, log_gain, *before, maps, total, block, *weights)  # type: ignore[no-untyped-call]
        return mixed, LinearState(*after) if after else None
    inputs = Inputs(q, k, v, maps, total, log_gain, block)
    return inputs.mix_causal(before, None) if state is not None else (inputs.mix_both(None), None)


class _Hybrid(torch.autograd.Function):
    """See native/hybrid_back.h for the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_gain: Tensor,
        sums: Tensor | None,
        norms: Tensor | None,
        peak: Tensor | None,
        maps: Maps,
        total: Tensor,
        block: int,
        *weights: Tensor,
    ) -> Tensor | tuple[Tensor, ...]:
        inputs = Inputs(q, k, v, maps, total, log_gain, block)
        inverse = inputs.for_each_position()
        ctx.maps, ctx.block = maps, block
        ctx.set_materialize_grads(False)
        after: tuple[Tensor, ...] = ()
        if sums is None:
            mixed = inputs.mix_both(inverse)
        else:
            mixed, after = inputs.mix_causal((sums, norms, peak), inverse)
            ctx.mark_non_differentiable(after[2])
        ctx.save_for_backward(q, k, v, log_gain, total, mixed, inverse, sums, norms, peak)
        return mixed, *after

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *for_state: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, log_gain, total, mixed, inverse, sums, norms, peak = ctx.saved_tensors
        inputs = Inputs(q, k, v, ctx.maps, total, log_gain, ctx.block)
        back = Back(mixed, torch.zeros_like(mixed) if gradient is None else dense(gradient), inverse)
        if sums is None:
            to = inputs.back_both(back)
        else:
            to = inputs.back_causal(back, (sums, norms, peak), both_or_none(for_state[0], for_state[1], inputs))
        d_gain = to.slopes[0].sum(0).to(log_gain.dtype)
        state = to.state if to.state is not None else (None, None)
        inner = (x.to(like.dtype) for x, like in ((to.q, q), (to.k, k), (to.v, v)))
        return *inner, d_gain, *state, None, None, None, None, *to.weights


def step_serves(q: Tensor, k: Tensor, v: Tensor, maps: Maps, state: HybridState, log_gain: Tensor) -> bool:
    """Whether the kernel of one position takes these: known feature maps, no gradients, and one type of numbers."""
    same = q.dtype == k.dtype == state.keys.dtype and v.dtype == state.values.dtype and state.sums.dtype == precise(q.dtype)
    fused = maps.queries.fused() is not None and maps.keys.fused() is not None
    return same and fused and not needs_gradient(q, k, v, log_gain, *state, *maps.weights())


def step(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    maps: Maps,
    state: HybridState,
    log_gain: Float[Tensor, "h"],
    block: int,
    *,
    reuse: bool,
) -> tuple[Float[Tensor, "b h 1 e"], HybridState]:
    """Attends from one position, in time that does not depend on the number of positions before it."""
    if not reuse:
        leaves = bool((state.filled + 1 == 2 * block).any())
        sums, norms, peak = (x.clone() if leaves else x for x in (state.sums, state.norms, state.peak))
        state = HybridState(state.keys.clone(), state.values.clone(), sums, norms, peak, state.filled)
    state = HybridState(*(x.contiguous() for x in state))
    filled, mixed, dtype = torch.empty_like(state.filled), torch.empty_like(v), state.sums.dtype
    q, k, v, gain = dense(q), dense(k), dense(v), log_gain.to(dtype)
    (b, h, _, d), (e, m) = q.shape, (v.shape[3], state.sums.shape[2])
    arguments = [b, h, d, e, m, block, TYPES[q.dtype], TYPES[v.dtype], torch.get_num_threads()]
    queries = Side(maps.queries, dtype)
    keys = queries if maps.keys is maps.queries else Side(maps.keys, dtype)
    arguments += [*queries.arguments(None), *keys.arguments(None)]
    for view in (q, k, v, mixed, state.keys, state.values):
        arguments += (view.data_ptr(), *view.stride()[:3])
    arguments += [x.data_ptr() for x in (state.filled, filled, gain, state.sums, state.norms, state.peak)]
    native.call("hybrid_step", NUMBERS[dtype], [*arguments, 0])
    return mixed, state._replace(filled=filled)


def quick_step(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, state: HybridState, log_gain: Tensor, block: int
) -> tuple[Tensor, HybridState, bool] | None:
    """Attends from one position and overwrites the state, if all is as it is while a model generates; else returns None.

    As `subquad.ops.linear.quick_step`, this checks everything at once, and leaves it to the slow path to find out what is
    wrong. Returns the mixed values, the state, and whether the values are finite.
    """
    if is_traced() or torch.is_grad_enabled() or type(state) is not HybridState or not native.is_chosen():
        return None
    shape, keys, filled = q.shape, Side(maps.keys, torch.float32), state.filled
    queries = keys if maps.keys is maps.queries else Side(maps.queries, torch.float32)
    if k.shape != shape or v.shape != shape or queries.fused is None or keys.fused is None:
        return None
    b, h, _, d = shape
    m, near = maps.keys.feature_count(d), (b, h, 2 * block, d)
    if state.keys.shape != near or state.values.shape != near or filled.shape != (b,) or filled.dtype is not torch.int64:
        return None
    if state.sums.shape != (b, h, m, d) or state.norms.shape != (b, h, m) or state.peak.shape != (b, h):
        return None
    if not are_plain(q, k, v, log_gain, *state[:5]) or not filled.is_contiguous():
        return None
    mixed, filled_after, row, held = torch.empty_like(q), torch.empty_like(filled), h * d, 2 * block * d
    sizes = (b, h, d, d, m, block, 0, 0, torch.get_num_threads(), *queries.arguments(None), *keys.arguments(None))
    inputs = (q.data_ptr(), row, d, d, k.data_ptr(), row, d, d, v.data_ptr(), row, d, d, mixed.data_ptr(), row, d, d)
    blocks = (state.keys.data_ptr(), h * held, held, d, state.values.data_ptr(), h * held, held, d)
    pointers = [x.data_ptr() for x in (filled, filled_after, log_gain, *state[2:5])]
    status = native.call("hybrid_step", "float", (*sizes, *inputs, *blocks, *pointers, 0))
    return mixed, HybridState(*state[:5], filled_after), status != NOT_FINITE
