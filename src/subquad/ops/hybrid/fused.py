"""The causal hybrid from the first position on, with features inside of the kernels: one call of a kernel for each pass.

With 128 positions a pass takes some hundred microseconds, and every operation of PyTorch one or more. Hence the kernel
writes the whole state, sees whether the result is finite, and has its own memory for what its passes note for each other.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad import native
from subquad.ops.autocast import is_asked_for, needs_gradient, precise
from subquad.ops.hybrid.calls import LEAST_GROUP, Side
from subquad.ops.hybrid.state import HybridState
from subquad.ops.linear.fused import ResultNotFiniteError, new_state
from subquad.ops.linear.layout import NO_VIEW, NOT_FINITE, NUMBERS, TYPES, dense
from subquad.ops.linear.native import both_or_none, serves
from subquad.ops.linear.sums import LinearState, new_mixed
from subquad.types import Maps

FIRST_WEIGHT = 6  # place of the weights among the inputs of _FusedHybrid
NO_FEATURES = (*NO_VIEW * 4, 0, 0, 0, 0)  # given features, their gradients and places


def quick_causal(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, log_gain: Tensor, block: int
) -> tuple[Tensor, HybridState] | None:
    """Returns the mixed values and the state after them if kernels compute it all and find it finite; else None."""
    if not serves(q) or maps.queries.fused() is None or maps.keys.fused() is None:
        return None
    weights = maps.weights()
    try:
        if needs_gradient(q, k, v, log_gain, *weights):
            mixed, *state = _FusedHybrid.apply(q, k, v, log_gain, maps, block, *weights)  # type: ignore[no-untyped-call]
        else:
            mixed, *state = FusedHybrid(q, k, v, maps, log_gain, block).mix(None)
    except ResultNotFiniteError:
        return None
    keys, values, sums, norms, peak = state
    filled = torch.full((q.shape[0],), _held(q.shape[2], block))
    return mixed, HybridState(keys, values, sums, norms, peak, filled)


def _held(length: int, block: int) -> int:
    """Number of positions that a state holds apart: those of the current block and of the one before."""
    return length - max(0, length // block - 1) * block


class HybridGradients(NamedTuple):
    """Gradients of the inputs, in full precision."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_gain: Tensor
    weights: list[Tensor]


class FusedHybrid:
    """Queries, keys and values of a call, and the kernels on them."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, maps: Maps, log_gain: Tensor, block: int) -> None:
        self.q, self.k, self.v = dense(q), dense(k), dense(v)
        self.dtype, self.block = precise(q.dtype), block
        self.log_gain = log_gain.detach().to(self.dtype).contiguous()
        self.m = maps.keys.feature_count(k.shape[-1])
        self.queries = Side(maps.queries, self.dtype)
        self.keys = self.queries if maps.keys is maps.queries else Side(maps.keys, self.dtype)

    def new_state(self) -> LinearState:
        """Memory for the sums of a state."""
        return new_state(self.q, self.v, self.m)

    def _run(
        self, name: str, views: tuple[int, ...], inverse: Tensor | None, pointers: tuple[int, ...], ends: tuple[int, ...]
    ) -> None:
        """Calls a kernel with the arguments of `hybrid_call` in native/hybrid.h, in its order.

        Raises `ResultNotFiniteError` if the result is not finite.
        """
        q, k, v, block = self.q, self.k, self.v, self.block
        b, h, n, d = q.shape
        sizes = (b, h, n, d, v.shape[-1], self.m, block, TYPES[q.dtype], TYPES[v.dtype], torch.get_num_threads())
        maps = (0, -(-n // block), *self.queries.arguments(None), *self.keys.arguments(None))
        inputs = (q.data_ptr(), *q.stride()[:3], k.data_ptr(), *k.stride()[:3], v.data_ptr(), *v.stride()[:3])
        rest = (0, self.log_gain.data_ptr(), 0 if inverse is None else inverse.data_ptr(), *pointers)
        arguments = (*sizes, *maps, *inputs, *views, *NO_FEATURES, *rest, LEAST_GROUP, 0, 0, *ends, 0, 0, 0, 0, 0)
        if native.call(name, NUMBERS[self.dtype], arguments) == NOT_FINITE:
            raise ResultNotFiniteError

    def mix(self, inverse: Tensor | None) -> tuple[Tensor, ...]:
        """Returns the mixed values, and keys, values, sums, norms and peak of the state after them."""
        b, h, _, d = self.q.shape
        mixed, state = new_mixed(self.q, self.v), self.new_state()
        keys = torch.empty(b, h, 2 * self.block, d, dtype=self.k.dtype)
        values = torch.empty(b, h, 2 * self.block, self.v.shape[-1], dtype=self.v.dtype)
        views = (mixed.data_ptr(), *mixed.stride()[:3], *NO_VIEW * 4)
        pointers = (0, 0, 0, *(x.data_ptr() for x in state), 0, 0, 0, 0, 0, 0)
        self._run("hybrid_causal", views, inverse, pointers, (keys.data_ptr(), values.data_ptr(), 0, 0))
        return mixed, keys, values, *state

    def back(
        self, mixed: Tensor, gradient: Tensor, inverse: Tensor, later: tuple[Tensor | None, ...], *, with_weights: bool
    ) -> HybridGradients:
        """Returns all gradients, those of weights only `with_weights`.

        `later` holds those of the sums and norms of the state after.
        """
        b, h = self.q.shape[:2]
        gradient = dense(gradient)
        dq, dk, dv = (torch.empty_like(x, dtype=self.dtype) for x in (self.q, self.k, self.v))
        gain, of_queries, of_keys = (
            torch.zeros(b, h, dtype=self.dtype),
            self.queries.new_slopes(b, h) if with_weights else None,
            self.keys.new_slopes(b, h) if with_weights else None,
        )
        views = tuple(number for x in (mixed, gradient, dq, dk, dv) for number in (x.data_ptr(), *x.stride()[:3]))
        slopes = (0 if x is None else x.data_ptr() for x in (gain, of_queries, of_keys))
        d_state = tuple(0 if x is None else x.data_ptr() for x in later[:2])
        self._run("hybrid_causal_back", views, inverse, (0, 0, 0, 0, 0, 0, 0, 0, 0, *slopes), (0, 0, *d_state))
        weights = [*self.queries.gradients(of_queries), *self.keys.gradients(of_keys)]
        return HybridGradients(dq, dk, dv, gain.sum(0), weights)


class _FusedHybrid(torch.autograd.Function):
    """See native/hybrid_back.h for the gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor, maps: Maps, block: int, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        inputs = FusedHybrid(q, k, v, maps, log_gain, block)
        inverse = torch.empty(q.shape[:3], dtype=inputs.dtype)
        mixed, *state = inputs.mix(inverse)
        ctx.maps, ctx.block = maps, block
        ctx.save_for_backward(q, k, v, log_gain, mixed, inverse)
        ctx.mark_non_differentiable(state[4])
        ctx.set_materialize_grads(False)
        return mixed, *state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *for_state: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, log_gain, mixed, inverse = ctx.saved_tensors
        inputs = FusedHybrid(q, k, v, ctx.maps, log_gain, ctx.block)
        gradient = torch.zeros_like(mixed) if gradient is None else gradient
        d_keys, d_values, d_sums, d_norms, _ = for_state
        later, weights = both_or_none(d_sums, d_norms, inputs), range(FIRST_WEIGHT, len(ctx.needs_input_grad))
        with_weights = any(is_asked_for(ctx, index, others=2) for index in weights)
        to = inputs.back(mixed, gradient, inverse, later, with_weights=with_weights)
        held = _held(q.shape[2], ctx.block)
        for total, part in ((to.k, d_keys), (to.v, d_values)):
            if part is not None and held:
                total[:, :, -held:] += part[:, :, :held]
        for_inputs = (to.q.to(q.dtype), to.k.to(k.dtype), to.v.to(v.dtype), to.log_gain.to(log_gain.dtype))
        return *for_inputs, None, None, *(to.weights if with_weights else (None for _ in weights))
