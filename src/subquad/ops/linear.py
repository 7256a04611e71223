"""Linear attention in which every query sees every key.

The equation (Katharopoulos et al. 2020, equation 5), with S = sum over j of phi(k_j) v_j^T and z = sum over j of phi(k_j):

    out_i = phi(q_i) S / phi(q_i) z

Two forms of it, the same to rounding. In *blocks*, for a CPU: the features of a few hundred positions at a time, in cache
and never stored; the backward computes them again. *Parallel*, for a GPU and for compilers: everything at once, in plain
PyTorch. `attend` picks; a faster kernel takes its place here.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient, outside_autocast, product, without_autocast
from subquad.ops.scratch import Scratch
from subquad.ops.sums import (
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
    precise,
    reciprocal,
)
from subquad.types import FeatureFunction


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """out_i = phi(q_i) S / phi(q_i) z."""
    if prefers_parallel(q):
        return attend_parallel(q, k, v, phi_q, phi_k, keep)
    return attend_in_blocks(q, k, v, phi_q, phi_k, keep)


def prefers_parallel(q: Tensor) -> bool:
    """Loops over blocks suit a CPU; a GPU, and a compiler that would unroll them, want everything at once."""
    return q.device.type != "cpu" or torch.compiler.is_compiling()


def attend_parallel(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """Everything at once."""
    with without_autocast(q):
        everything = slice(0, k.shape[2])
        values, exponent = kept_features(phi_k, kept(k, keep, everything), keep, everything)
        if exponent is not None:
            peak = finite(exponent.detach().amax(2, keepdim=True)) if k.shape[2] else 0.0
            values = values * torch.exp2(exponent - peak)
        queries = phi_q(q.to(precise(q.dtype))).values
        total = along(queries, values.sum(2))
        mixed = product(queries, product(values.mT, kept(v, keep, everything))) * reciprocal(total)
        return mixed.to(v.dtype)


def attend_in_blocks(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """A block at a time."""
    weights = (*phi_q.weights(), *phi_k.weights())
    with without_autocast(q):
        if not needs_gradient(q, k, v, *weights):
            return _mix(q, k, v, keep, phi_q, phi_k)[0]
        mixed: Tensor = _Blocks.apply(q, k, v, keep, phi_q, phi_k, *weights)  # type: ignore[no-untyped-call]
        return mixed


class _Blocks(torch.autograd.Function):
    """dq' = G S^T + e z^T, dk' = v dS^T + dz and dv = k' dS, with G and e the gradients of numerator and denominator."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        phi_q: FeatureFunction,
        phi_k: FeatureFunction,
        *weights: Tensor,
    ) -> Tensor:
        inverse = q.new_empty(*q.shape[:3], 1, dtype=precise(q.dtype))
        mixed, *state = _mix(q, k, v, keep, phi_q, phi_k, inverse)
        ctx.save_for_backward(q, k, v, keep, mixed, inverse, *state, *weights)
        ctx.maps = phi_q, phi_k
        return mixed

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, mixed, inverse, sums, norms, peak, *_ = ctx.saved_tensors
        phi_q, phi_k = ctx.maps
        heads, dtype = q.shape[:2], inverse.dtype
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        d_sums, d_norms = torch.zeros_like(sums), torch.zeros_like(norms)
        for_q, for_k = WeightGradients(phi_q), WeightGradients(phi_k)
        room = Scratch(dtype)

        for block in blocks(q.shape[2], block_length(q, norms.shape[-1], most=512)):
            room.start()
            x = q[:, :, block].to(dtype)
            features = phi_q(x, room)
            queries = features.values.flatten(0, 1)
            parts = quotient(gradient[:, :, block], mixed[:, :, block], inverse[:, :, block], room)
            d_mixed, d_total = (part.flatten(0, 1) for part in parts)
            d_sums.baddbmm_(queries.mT, d_mixed)
            d_norms += across(queries, d_total)
            d_queries = torch.mul(d_total, norms[:, None], out=room.take(*queries.shape)).baddbmm_(d_mixed, sums.mT)
            dq[:, :, block] = for_q.pullback(x, features, d_queries.unflatten(0, heads))

        for block in blocks(k.shape[2], block_length(k, norms.shape[-1], most=512)):
            room.start()
            x, values = kept(k, keep, block), kept(v, keep, block).flatten(0, 1)
            features = kept_features(phi_k, x, keep, block, room)
            keys = features.values.flatten(0, 1)
            d_keys = torch.bmm(values, d_sums.mT, out=room.take(*keys.shape)).add_(d_norms[:, None])
            d_values = torch.bmm(keys, d_sums, out=landing(dv, block, room))
            if features.exponent is not None:
                share = torch.exp2(features.exponent.flatten(0, 1) - finite(peak))
                d_keys.mul_(share)
                d_values.mul_(share)
            land(dv, block, d_values)
            d_features = d_keys.unflatten(0, heads)
            if keep is not None:
                d_features.masked_fill_(~keep[:, None, block, None], 0.0)
            dk[:, :, block] = for_k.pullback(x, features, d_features)
        return dq, dk, dv, None, None, None, *for_q.totals, *for_k.totals


def _mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    inverse: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The mixed values, and what `sum_keys` gave. Writes 1 / denominator into `inverse`, if given, for the backward."""
    most = 1024 if inverse is None else 512  # a training step has less memory to spare
    room = Scratch(precise(q.dtype))
    sums, norms, peak = sum_keys(k, v, phi_k, keep, room, most)
    mixed = new_mixed(q, v)
    for block in blocks(q.shape[2], block_length(q, norms.shape[-1], most)):
        room.start()
        queries = phi_q(q[:, :, block].to(norms.dtype), room).values.flatten(0, 1)
        out, factor = landing(mixed, block, room), reciprocal(along(queries, norms))
        torch.bmm(queries, sums, out=out).mul_(factor)
        land(mixed, block, out)
        if inverse is not None:
            land(inverse, block, factor)
    return mixed, sums, norms, peak


def sum_keys(
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    phi: FeatureFunction,
    keep: Bool[Tensor, "b s"] | None,
    room: Scratch,
    most: int,
) -> tuple[Float[Tensor, "bh m e"], Float[Tensor, "bh m"], Float[Tensor, "bh 1 1"]]:
    """S and z over all the keys, a block at a time, relative to the largest exponent so far; batch and heads in one."""
    state: tuple[Tensor, Tensor, Tensor] | None = None
    for block in blocks(k.shape[2], block_length(k, phi.feature_count(k.shape[-1]), most)):
        room.start()
        read = flat_keys(k, v, phi, keep, block, room)
        state = _sum_block(*read) if state is None else add_block(*state, *read)
    if state is None:
        sums, norms, peak = (part.flatten(0, 1) for part in empty_state(k, v, phi))
        state = sums, norms, peak[:, None, None]
    return state


def _sum_block(keys: Tensor, values: Tensor, exponent: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The first block: its own sums."""
    if exponent is None:
        return torch.bmm(keys.mT, values), keys.sum(1), keys.new_zeros(len(keys), 1, 1)
    peak = exponent.amax(1, keepdim=True)
    share = torch.exp2(exponent - finite(peak))
    return torch.bmm(keys.mT, values * share), across(keys, share), peak


def quotient(
    gradient: Float[Tensor, "*b c e"], mixed: Float[Tensor, "*b c e"], inverse: Float[Tensor, "*b c 1"], room: Scratch
) -> tuple[Float[Tensor, "*b c e"], Float[Tensor, "*b c 1"]]:
    """G and e: the gradients of numerator and denominator from that of their quotient."""
    d_mixed = torch.mul(gradient.to(inverse.dtype), inverse, out=room.take(*gradient.shape))
    return d_mixed, torch.linalg.vecdot(d_mixed, mixed.to(inverse.dtype)).neg_()[..., None]
