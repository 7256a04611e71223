"""Bidirectional linear attention in two halves, each with its gradient: the sums over keys, and reading them by queries.

The sums of several stretches of a sequence can be added between the halves, as processes do that hold a stretch each.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient, outside_autocast, precise, prefers_parallel, product, without_autocast
from subquad.ops.linear import native
from subquad.ops.linear.bidirectional import back_to_keys, back_to_queries
from subquad.ops.linear.bidirectional import read_sums as read_in_blocks
from subquad.ops.linear.bidirectional import sum_keys as sum_in_blocks
from subquad.ops.linear.sums import LinearState, WeightGradients, along, finite, kept, kept_features, reciprocal
from subquad.ops.scratch import Scratch
from subquad.types import Maps


def sum_keys(
    k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s e"], maps: Maps, keep: Bool[Tensor, "b s"] | None = None
) -> LinearState:
    """Returns the sums over all kept keys, with gradients for keys, values and the weights of the feature map."""
    with without_autocast(k):
        if prefers_parallel(k):
            return _sum_at_once(k, v, maps, keep)
        weights = maps.keys.weights()
        if needs_gradient(k, v, *weights):
            return LinearState(*_Sum.apply(k, v, maps, keep, *weights))  # type: ignore[no-untyped-call]
        return _sum(k, v, maps, keep)


def read(
    q: Float[Tensor, "b h n d"], v: Float[Tensor, "b h s e"], state: LinearState, maps: Maps
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values of queries that see all keys in `state`; `v` tells their type."""
    with without_autocast(q):
        if prefers_parallel(q):
            queries = maps.queries(q.to(precise(q.dtype))).values
            return (product(queries, state.sums) * reciprocal(along(queries, state.norms))).to(v.dtype)
        weights = maps.queries.weights()
        if needs_gradient(q, *state[:2], *weights):
            mixed: Tensor = _Read.apply(q, v, maps, *state, *weights)  # type: ignore[no-untyped-call]
            return mixed
        return _read(q, v, state, maps)[0]


class _Sum(torch.autograd.Function):
    """With dS and dz the gradients of sums and norms: dk' = v dS^T + dz and dv = k' dS."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        state = _sum(k, v, maps, keep)
        ctx.save_for_backward(k, v, keep, state.peak)
        ctx.maps = maps
        ctx.mark_non_differentiable(state.peak)
        return state.sums, state.norms, state.peak

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, d_sums: Tensor, d_norms: Tensor, _d_peak: Tensor) -> tuple[Tensor | None, ...]:
        k, v, keep, peak = ctx.saved_tensors
        for_k = WeightGradients(ctx.maps.keys)
        flat = d_sums.flatten(0, 1), d_norms.flatten(0, 1), peak.flatten()[:, None, None]
        dk, dv = back_to_keys(k, v, keep, *flat, for_k, Scratch(precise(k.dtype)))
        return dk, dv, None, None, *for_k.totals


class _Read(torch.autograd.Function):
    """With G and e the gradients of numerator and denominator: dq' = G S^T + e z^T, dS = q'^T G and dz = q'^T e."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, v: Tensor, maps: Maps, sums: Tensor, norms: Tensor, peak: Tensor, *weights: Tensor
    ) -> Tensor:
        mixed, inverse = _read(q, v, LinearState(sums, norms, peak), maps)
        ctx.save_for_backward(q, mixed, inverse, sums, norms)
        ctx.maps = maps
        return mixed

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, mixed, inverse, sums, norms = ctx.saved_tensors
        for_q = WeightGradients(ctx.maps.queries)
        flat = sums.flatten(0, 1), norms.flatten(0, 1)
        dq, d_sums, d_norms = back_to_queries(q, gradient, mixed, inverse, *flat, for_q, Scratch(inverse.dtype))
        return dq, None, None, d_sums.view_as(sums), d_norms.view_as(norms), None, *for_q.totals


def _sum(k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None) -> LinearState:
    """Returns the sums over all kept keys, without gradients."""
    if native.serves(k) and k.shape[2]:
        return native.sum_keys(k, v, maps, keep)
    sums, norms, peak = sum_in_blocks(k, v, maps.keys, keep, Scratch(precise(k.dtype)), most=512)
    heads = k.shape[:2]
    return LinearState(sums.unflatten(0, heads), norms.unflatten(0, heads), peak.reshape(heads))


def _sum_at_once(k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None) -> LinearState:
    everything = slice(0, k.shape[2])
    values, exponent = kept_features(maps.keys, kept(k, keep, everything), keep, everything)
    peak = values.new_zeros(values.shape[:2])
    if exponent is not None:
        peak = exponent.detach().amax((2, 3))
        values = values * torch.exp2(exponent - finite(peak)[..., None, None])
    return LinearState(product(values.mT, kept(v, keep, everything)), values.sum(2), peak)


def _read(q: Tensor, v: Tensor, state: LinearState, maps: Maps) -> tuple[Tensor, Tensor]:
    """Returns the mixed values and 1 / denominator of each query."""
    sums, norms = state.sums.flatten(0, 1), state.norms.flatten(0, 1)
    inverse = q.new_empty(*q.shape[:3], 1, dtype=norms.dtype)
    return read_in_blocks(q, v, sums, norms, maps, inverse, Scratch(norms.dtype), most=512), inverse
