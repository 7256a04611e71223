"""Bidirectional linear attention for a CPU, in blocks of a few hundred positions.

With S = sum over j of phi(k_j) v_j^T and z = sum over j of phi(k_j) (Katharopoulos et al. 2020, equation 5):

    out_i = phi(q_i) S / phi(q_i) z

The features of a block stay in cache and are not saved; the backward recomputes them.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient, outside_autocast, precise, without_autocast
from subquad.ops.linear.sums import (
    WeightGradients,
    across,
    add_block,
    along,
    block_length,
    blocks,
    empty_state,
    finite,
    flat_keys,
    kept,
    kept_features,
    land,
    landing,
    new_mixed,
    quotient,
    reciprocal,
)
from subquad.ops.scratch import Scratch
from subquad.types import FeatureFunction, Maps


def attend_in_blocks(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    maps: Maps,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values, where every query sees every kept key, computed block by block."""
    weights = maps.weights()
    with without_autocast(q):
        if not needs_gradient(q, k, v, *weights):
            return _mix(q, k, v, maps, keep)[0]
        mixed: Tensor = _Blocks.apply(q, k, v, maps, keep, *weights)  # type: ignore[no-untyped-call]
        return mixed


class _Blocks(torch.autograd.Function):
    """Autograd function with q' = phi(q), k' = phi(k), and G and e the gradients of numerator and denominator:

    dq' = G S^T + e z^T, dk' = v dS^T + dz and dv = k' dS.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None, *weights: Tensor) -> Tensor:
        inverse = q.new_empty(*q.shape[:3], 1, dtype=precise(q.dtype))
        mixed, *state = _mix(q, k, v, maps, keep, inverse)
        ctx.save_for_backward(q, k, v, keep, mixed, inverse, *state, *weights)
        ctx.maps = maps
        return mixed

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, mixed, inverse, sums, norms, peak, *_ = ctx.saved_tensors
        maps: Maps = ctx.maps
        scratch = Scratch(inverse.dtype)
        for_q, for_k = WeightGradients(maps.queries), WeightGradients(maps.keys)
        dq, d_sums, d_norms = back_to_queries(q, gradient, mixed, inverse, sums, norms, for_q, scratch)
        dk, dv = back_to_keys(k, v, keep, d_sums, d_norms, peak, for_k, scratch)
        return dq, dk, dv, None, None, *for_q.totals, *for_k.totals


def back_to_queries(
    q: Tensor,
    gradient: Tensor,
    mixed: Tensor,
    inverse: Tensor,
    sums: Tensor,
    norms: Tensor,
    for_q: WeightGradients,
    scratch: Scratch,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes dq, dS and dz, one block of queries at a time."""
    heads, dq = q.shape[:2], torch.empty_like(q)
    d_sums, d_norms = torch.zeros_like(sums), torch.zeros_like(norms)
    for block in blocks(q.shape[2], block_length(q, norms.shape[-1], most=512)):
        scratch.start()
        x = q[:, :, block].to(inverse.dtype)
        features = for_q.phi(x, scratch)
        queries = features.values.flatten(0, 1)
        parts = quotient(gradient[:, :, block], mixed[:, :, block], inverse[:, :, block], scratch)
        d_mixed, d_total = (part.flatten(0, 1) for part in parts)
        d_sums.baddbmm_(queries.mT, d_mixed)
        d_norms += across(queries, d_total)
        d_queries = torch.mul(d_total, norms[:, None], out=scratch.take(*queries.shape)).baddbmm_(d_mixed, sums.mT)
        dq[:, :, block] = for_q.pullback(x, features, d_queries.unflatten(0, heads))
    return dq, d_sums, d_norms


def back_to_keys(
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    d_sums: Tensor,
    d_norms: Tensor,
    peak: Tensor,
    for_k: WeightGradients,
    scratch: Scratch,
) -> tuple[Tensor, Tensor]:
    """Computes dk and dv, one block of keys at a time."""
    heads, dk, dv = k.shape[:2], torch.empty_like(k), torch.empty_like(v)
    for block in blocks(k.shape[2], block_length(k, d_norms.shape[-1], most=512)):
        scratch.start()
        x, values = kept(k, keep, block), kept(v, keep, block).flatten(0, 1)
        features = kept_features(for_k.phi, x, keep, block, scratch)
        keys = features.values.flatten(0, 1)
        d_keys = torch.bmm(values, d_sums.mT, out=scratch.take(*keys.shape)).add_(d_norms[:, None])
        d_values = torch.bmm(keys, d_sums, out=landing(dv, block, scratch))
        if features.exponent is not None:
            share = torch.exp2(features.exponent.flatten(0, 1) - finite(peak))
            d_keys.mul_(share)
            d_values.mul_(share)
        land(dv, block, d_values)
        d_features = d_keys.unflatten(0, heads)
        if keep is not None:
            d_features.masked_fill_(~keep[:, None, block, None], 0.0)
        dk[:, :, block] = for_k.pullback(x, features, d_features)
    return dk, dv


def _mix(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None, inverse: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Returns the mixed values and the results of `sum_keys`; writes 1 / denominator into `inverse`, if given."""
    most = 1024 if inverse is None else 512  # training needs more memory for other tensors
    scratch = Scratch(precise(q.dtype))
    sums, norms, peak = sum_keys(k, v, maps.keys, keep, scratch, most)
    return read_sums(q, v, sums, norms, maps, inverse, scratch, most), sums, norms, peak


def read_sums(
    q: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h s e"],
    sums: Float[Tensor, "bh m e"],
    norms: Float[Tensor, "bh m"],
    maps: Maps,
    inverse: Float[Tensor, "b h n 1"] | None,
    scratch: Scratch,
    most: int,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values of queries that see these sums; writes 1 / denominator into `inverse`, if given."""
    mixed = new_mixed(q, v)
    for block in blocks(q.shape[2], block_length(q, norms.shape[-1], most)):
        scratch.start()
        queries = maps.queries(q[:, :, block].to(norms.dtype), scratch).values.flatten(0, 1)
        out, factor = landing(mixed, block, scratch), reciprocal(along(queries, norms))
        torch.bmm(queries, sums, out=out).mul_(factor)
        land(mixed, block, out)
        if inverse is not None:
            land(inverse, block, factor)
    return mixed


def sum_keys(
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    phi: FeatureFunction,
    keep: Bool[Tensor, "b s"] | None,
    scratch: Scratch,
    most: int,
) -> tuple[Float[Tensor, "bh m e"], Float[Tensor, "bh m"], Float[Tensor, "bh 1 1"]]:
    """Returns S and z over all keys, and the largest exponent, to which they are relative, with shapes "bh ..."."""
    state: tuple[Tensor, Tensor, Tensor] | None = None
    for block in blocks(k.shape[2], block_length(k, phi.feature_count(k.shape[-1]), most)):
        scratch.start()
        read = flat_keys(k, v, phi, keep, block, scratch)
        state = _sum_block(*read) if state is None else add_block(*state, *read)
    if state is None:
        sums, norms, peak = (part.flatten(0, 1) for part in empty_state(k, v, phi))
        state = sums, norms, peak[:, None, None]
    return state


def _sum_block(keys: Tensor, values: Tensor, exponent: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the sums, norms and peak of the first block."""
    if exponent is None:
        return torch.bmm(keys.mT, values), keys.sum(1), keys.new_zeros(len(keys), 1, 1)
    peak = exponent.amax(1, keepdim=True)
    share = torch.exp2(exponent - finite(peak))
    return torch.bmm(keys.mT, values * share), across(keys, share), peak
