"""Causal linear attention one chunk after the other, for a CPU.

Inside a chunk by the equation, across chunks by the sums, so that everything stays in cache:

    out_i = phi(q_i) S + sum over j <= i in the chunk of (phi(q_i) . phi(k_j)) v_j, over the same with 1 for v

The feature maps run on a block of several chunks, which takes fewer and larger operations.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.linear import quotient
from subquad.ops.scratch import Scratch
from subquad.ops.sums import (
    LinearState,
    WeightGradients,
    across,
    along,
    block_length,
    blocks,
    finite,
    kept,
    kept_features,
    land,
    landing,
    needs_gradient,
    new_mixed,
    precise,
    reciprocal,
)
from subquad.types import FeatureFunction

CHUNK = 64  # positions that attend to each other by the equation
BLOCK = 256  # positions whose features are computed at once, at most; more of them need more memory in training


def attend_in_chunks(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    state: LinearState,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """One chunk after the other."""
    weights = (*phi_q.weights(), *phi_k.weights())
    if needs_gradient(q, k, v, *state, *weights):
        mixed, *after = _Chunks.apply(q, k, v, keep, *state, phi_q, phi_k, *weights)  # type: ignore[no-untyped-call]
    else:
        mixed, _, *after = _mix(q, k, v, keep, *state, phi_q, phi_k)
    return mixed, LinearState(*after)


class _Fade(NamedTuple):
    """By how much a chunk's parts count relative to each other: 2 to a difference of exponents, at most 1."""

    pairs: Float[Tensor, "bh c c"]  # key j for query i; zero where j is after i
    rows: Float[Tensor, "bh c 1"]  # the state before the chunk for query i
    keys: Float[Tensor, "bh c 1"]  # key j in the state after the chunk
    state: Float[Tensor, "bh 1 1"]  # the state before the chunk in the state after it


def _fades(exponent: Float[Tensor, "bh c 1"], peak: Float[Tensor, "bh 1 1"]) -> tuple[list[_Fade | None], Tensor]:
    """The fades of each chunk in a block, and the peak after it."""
    running = torch.maximum(exponent.cummax(1).values, peak)
    fades: list[_Fade | None] = []
    for chunk in blocks(exponent.shape[1], CHUNK):
        own, highest = exponent[:, chunk], finite(running[:, chunk])
        after = running[:, chunk.stop - 1 : chunk.stop]
        pairs = own.mT - highest
        future = torch.ones(pairs.shape[-2:], dtype=torch.bool, device=pairs.device).triu_(1)
        fades.append(
            _Fade(
                pairs.masked_fill_(future, -math.inf).exp2_(),
                torch.exp2(peak - highest),
                torch.exp2(own - finite(after)),
                torch.exp2(peak - finite(after)),
            )
        )
        peak = after
    return fades, peak


class _Chunk(NamedTuple):
    """What a chunk of positions needs, batch and heads in one dimension. Feature maps run on a whole block of chunks."""

    queries: Float[Tensor, "bh c m"]
    keys: Float[Tensor, "bh c m"]
    values: Float[Tensor, "bh c e"]
    fade: _Fade | None

    def visible(self, scores: Float[Tensor, "bh c c"]) -> Float[Tensor, "bh c c"]:
        """The scores of the chunk's pairs without those that look ahead, in place."""
        return scores.tril_() if self.fade is None else scores.mul_(self.fade.pairs)

    def join(self, sums: Float[Tensor, "bh m e"], norms: Float[Tensor, "bh m"]) -> None:
        """Takes the chunk into the sums, in place."""
        values = self.values
        if self.fade is None:
            norms.add_(self.keys.sum(1))
        else:
            norms.mul_(self.fade.state[..., 0]).add_(across(self.keys, self.fade.keys))
            sums.mul_(self.fade.state)
            values = values * self.fade.keys
        sums.baddbmm_(self.keys.mT, values)


class _Chunks(torch.autograd.Function):
    """The gradient of a causal sum is a causal sum, reversed in time for k and v.

    With G and e the gradients of numerator and denominator, and P_ij = G_i . v_j + e_i:
    dq'_i = sum over j <= i of P_ij k'_j, dk'_j = sum over i >= j of P_ij q'_i, dv_j = sum over i >= j of (q'_i . k'_j) G_i.
    The state is saved once for each block; inside a block states and features are computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        sums: Tensor,
        norms: Tensor,
        peak: Tensor,
        phi_q: FeatureFunction,
        phi_k: FeatureFunction,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        starts: list[Tensor] = []
        mixed, inverse, sums, norms, peak = _mix(q, k, v, keep, sums, norms, peak, phi_q, phi_k, starts)
        ctx.save_for_backward(q, k, v, keep, mixed, inverse, *starts)
        ctx.maps = phi_q, phi_k
        ctx.mark_non_differentiable(peak)
        ctx.set_materialize_grads(False)
        return mixed, sums, norms, peak

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor | None, d_sums: Tensor | None, d_norms: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, keep, mixed, inverse, *starts = ctx.saved_tensors
        phi_q, phi_k = ctx.maps
        b, h, n, d = q.shape
        m, made = phi_k.width(d), {"dtype": inverse.dtype, "device": q.device}
        # the sums of q'_i G_i^T and q'_i e_i over later positions; the state that is handed on is one of those
        later = torch.zeros(b * h, m, v.shape[-1], **made) if d_sums is None else d_sums.flatten(0, 1).clone()
        later_norms = torch.zeros(b * h, m, **made) if d_norms is None else d_norms.flatten(0, 1).clone()
        gradient = torch.zeros_like(mixed) if gradient is None else gradient
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for_q, for_k = WeightGradients(phi_q), WeightGradients(phi_k)

        room = Scratch(inverse.dtype)
        for index, position in reversed(list(enumerate(blocks(n, block_length(q, m, BLOCK))))):
            sums, norms, peak = starts[3 * index : 3 * index + 3]
            room.start()
            chunks, _, x_q, x_k, features_q, features_k = _read(q, k, v, keep, phi_q, phi_k, peak, position, room)
            g, e = (part.split(CHUNK, dim=1) for part in quotient(gradient, mixed, inverse, position, room))
            d_queries, d_keys = room.take(*features_q.values.shape), room.take(*features_k.values.shape)
            d_values = landing(dv, position, room)
            pairs = _back_to_queries(chunks, g, e, sums.clone(), norms.clone(), d_queries.flatten(0, 1))
            _back_to_keys(chunks, g, e, pairs, later, later_norms, d_keys.flatten(0, 1), d_values)
            land(dv, position, d_values)
            if keep is not None:
                d_keys.masked_fill_(~keep[:, None, position, None], 0.0)
            dq[:, :, position] = for_q.pullback(x_q, features_q, d_queries)
            dk[:, :, position] = for_k.pullback(x_k, features_k, d_keys)
        d_sums, d_norms = later.unflatten(0, (b, h)), later_norms.unflatten(0, (b, h))
        return dq, dk, dv, None, d_sums, d_norms, None, None, None, *for_q.totals, *for_k.totals


def _read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    peak: Tensor,
    position: slice,
    room: Scratch,
) -> tuple[Any, ...]:
    """The chunks of a block, the peak after it, and what its features were computed from."""
    x_q, x_k = q[:, :, position].to(precise(q.dtype)), kept(k, keep, position)
    features_q, features_k = phi_q(x_q, room), kept_features(phi_k, x_k, keep, position, room)
    parts = (features_q.values, features_k.values, kept(v, keep, position))
    queries, keys, values = (part.flatten(0, 1).split(CHUNK, dim=1) for part in parts)
    fades: list[_Fade | None] = [None] * len(queries)
    if features_k.exponent is not None:
        fades, peak = _fades(features_k.exponent.flatten(0, 1), peak)
    chunks = [_Chunk(*parts) for parts in zip(queries, keys, values, fades, strict=True)]
    return chunks, peak, x_q, x_k, features_q, features_k


def _mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    sums: Tensor,
    norms: Tensor,
    peak: Tensor,
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    starts: list[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """The mixed values, 1 / denominator, and the state after. `starts`, if given, collects the state before each block."""
    b, h, n, _ = q.shape
    mixed, inverse = new_mixed(q, v), sums.new_empty(b, h, n, 1)
    sums, norms, peak = sums.flatten(0, 1).clone(), norms.flatten(0, 1).clone(), peak.reshape(b * h, 1, 1)
    room = Scratch(sums.dtype)
    for position in blocks(n, block_length(q, norms.shape[1], BLOCK)):
        if starts is not None:
            starts += [sums.clone(), norms.clone(), peak]
        room.start()
        chunks, peak, *_ = _read(q, k, v, keep, phi_q, phi_k, peak, position, room)
        out, factor = landing(mixed, position, room), landing(inverse, position, room)
        _mix_block(chunks, sums, norms, out, factor)
        land(mixed, position, out)
        land(inverse, position, factor)
    return mixed, inverse, sums.unflatten(0, (b, h)), norms.unflatten(0, (b, h)), peak.reshape(b, h)


def _mix_block(chunks: list[_Chunk], sums: Tensor, norms: Tensor, out: Tensor, factor: Tensor) -> None:
    """Writes the mixed values of a block and 1 / denominator. Sums and norms move on past the block.

    A batched product into a slice is done one matrix at a time: here and below, results get a tensor of their own first.
    """
    for chunk, mixed, total in zip(chunks, out.split(CHUNK, dim=1), factor.split(CHUNK, dim=1), strict=True):
        scores = chunk.visible(torch.bmm(chunk.queries, chunk.keys.mT))
        past, past_total = torch.bmm(chunk.queries, sums), along(chunk.queries, norms)
        if chunk.fade is not None:
            past.mul_(chunk.fade.rows)
            past_total = past_total * chunk.fade.rows
        torch.add(past_total, scores.sum(-1, keepdim=True), out=total)
        mixed.copy_(past.baddbmm_(scores, chunk.values))
        chunk.join(sums, norms)
    factor.copy_(reciprocal(factor))
    out.mul_(factor)


def _back_to_queries(
    chunks: list[_Chunk],
    d_mixed: Sequence[Tensor],
    d_total: Sequence[Tensor],
    sums: Tensor,
    norms: Tensor,
    d_queries: Tensor,
) -> list[Tensor]:
    """Writes dq' of a block, forwards in time, and gives P of each chunk."""
    pairs = []
    for chunk, g, e, d_query in zip(chunks, d_mixed, d_total, d_queries.split(CHUNK, dim=1), strict=True):
        p = chunk.visible(torch.bmm(g, chunk.values.mT).add_(e))
        past = torch.mul(e, norms[:, None]).baddbmm_(g, sums.mT)
        if chunk.fade is not None:
            past.mul_(chunk.fade.rows)
        d_query.copy_(past.baddbmm_(p, chunk.keys))
        chunk.join(sums, norms)
        pairs.append(p)
    return pairs


def _back_to_keys(
    chunks: list[_Chunk],
    d_mixed: Sequence[Tensor],
    d_total: Sequence[Tensor],
    pairs: list[Tensor],
    later: Tensor,
    later_norms: Tensor,
    d_keys: Tensor,
    d_values: Tensor,
) -> None:
    """Writes dk' and dv of a block, backwards in time. The sums over later positions move on to before it."""
    written = d_keys.split(CHUNK, dim=1), d_values.split(CHUNK, dim=1)
    for chunk, g, e, p, d_key, d_value in reversed(list(zip(chunks, d_mixed, d_total, pairs, *written, strict=True))):
        scores = chunk.visible(torch.bmm(chunk.queries, chunk.keys.mT))
        for_keys = torch.bmm(chunk.values, later.mT).add_(later_norms[:, None])
        for_values = torch.bmm(chunk.keys, later)
        g_past, e_past = g, e
        if chunk.fade is not None:
            for_keys.mul_(chunk.fade.keys)
            for_values.mul_(chunk.fade.keys)
            later.mul_(chunk.fade.state)
            later_norms.mul_(chunk.fade.state[..., 0])
            g_past, e_past = g * chunk.fade.rows, e * chunk.fade.rows
        d_key.copy_(for_keys.baddbmm_(p.mT, chunk.queries))
        d_value.copy_(for_values.baddbmm_(scores.mT, g))
        later.baddbmm_(chunk.queries.mT, g_past)
        later_norms.add_(across(chunk.queries, e_past))
