"""Causal linear attention for a CPU, one block after the other.

A block consists of a few chunks. Within a chunk the equation is used, across chunks the sums, so that all stays in cache:

    out_i = phi(q_i) S + sum over j <= i in the chunk of (phi(q_i) . phi(k_j)) v_j, over the same with 1 for v

The chunks of a block are processed at once where possible, in fewer and larger operations. In shapes such as "t b h c d", t
is the chunk and c the position in the chunk; products have all chunks and heads in one batch dimension, "tbh c d".
"""

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient, outside_autocast, precise
from subquad.ops.linear.blocks import (
    Block,
    Fade,
    FlatState,
    cut,
    first_state,
    multiply,
    place,
    read_block,
    runs_of,
    states_before,
)
from subquad.ops.linear.sums import LinearState, WeightGradients, across, along, new_mixed, quotient, reciprocal
from subquad.ops.scratch import Scratch
from subquad.types import Maps


def attend_in_chunks(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    maps: Maps,
    state: LinearState | None = None,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """Returns the mixed values and the new state, computed block by block."""
    weights = maps.weights()
    before = (None, None, None) if state is None else state
    if needs_gradient(q, k, v, *(state or ()), *weights):
        mixed, *after = _Chunks.apply(q, k, v, maps, *before, keep, *weights)  # type: ignore[no-untyped-call]
    else:
        mixed, *after = _mix(q, k, v, maps, first_state(k, v, maps.keys, before), keep)
    return mixed, LinearState(*after)


class _Chunks(torch.autograd.Function):
    """The gradient of a causal sum is a causal sum, reversed in time for k and v.

    With G and e the gradients of numerator and denominator, and P_ij = G_i . v_j + e_i:
    dq'_i = sum over j <= i of P_ij k'_j, dk'_j = sum over i >= j of P_ij q'_i, dv_j = sum over i >= j of (q'_i . k'_j) G_i.
    Features, denominators and most states are recomputed. Besides q, k, v and the result, the initial state is saved, and
    further states with half a number for each position in total. Fused softmax attention saves one number for each position.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        maps: Maps,
        sums: Tensor | None,
        norms: Tensor | None,
        peak: Tensor | None,
        keep: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        saved: list[FlatState] = []
        mixed, *after = _mix(q, k, v, maps, first_state(k, v, maps.keys, (sums, norms, peak)), keep, saved)
        ctx.save_for_backward(q, k, v, keep, mixed, sums, norms, peak, *itertools.chain(*saved))
        ctx.maps = maps
        ctx.mark_non_differentiable(after[2])
        ctx.set_materialize_grads(False)
        return mixed, *after

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor | None, d_sums: Tensor | None, d_norms: Tensor | None, _d_peak: None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, keep, mixed, *saved = ctx.saved_tensors
        maps: Maps = ctx.maps
        b, h, _, d = q.shape
        m, tensor_options = maps.keys.feature_count(d), {"dtype": precise(q.dtype), "device": q.device}
        # sums of q'_i G_i^T and q'_i e_i over later positions, starting from the gradient of the final state
        later = torch.zeros(b * h, m, v.shape[-1], **tensor_options) if d_sums is None else d_sums.flatten(0, 1).clone()
        later_norms = torch.zeros(b * h, m, **tensor_options) if d_norms is None else d_norms.flatten(0, 1)
        gradient = torch.zeros_like(mixed) if gradient is None else gradient
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for_q, for_k = WeightGradients(maps.queries), WeightGradients(maps.keys)

        scratch = Scratch(precise(q.dtype))
        starts = [first_state(k, v, maps.keys, saved[:3]), *map(FlatState, saved[3::3], saved[4::3], saved[5::3])]
        for run, start in reversed(
            list(zip(runs_of(q, v, m), starts, strict=False))
        ):  # an empty sequence has a start but no runs
            states = states_before(k, v, maps.keys, start, keep, run, scratch)
            for position, state in reversed(list(zip(run, states, strict=True))):
                scratch.start()
                block, _ = read_block(q, k, v, maps, state.peak, keep, position, scratch)
                scores, norms, inverse, _ = _weigh(block, state.norms, scratch)
                parts = quotient(cut(gradient, position), cut(mixed, position), block.split(inverse), scratch)
                g, e = (part.flatten(0, 2) for part in parts)
                pairs = block.visible(multiply(g, block.values.mT, scratch).add_(e))
                d_queries = _back_to_queries(block, norms, g, e, pairs, state.sums, scratch)
                d_keys, d_values, later_norms = _back_to_keys(block, scores, g, e, pairs, later, later_norms, scratch)
                if block.seen is not None:
                    d_keys.masked_fill_(~block.seen[:, None, :, None], 0.0)
                place(dq, position, for_q.pullback(block.x_q, block.features_q, d_queries))
                place(dk, position, for_k.pullback(block.x_k, block.features_k, d_keys))
                place(dv, position, d_values)
        for_state = (later.unflatten(0, (b, h)), later_norms.unflatten(0, (b, h))) if saved[0] is not None else (None, None)
        return dq, dk, dv, None, *for_state, None, None, *for_q.totals, *for_k.totals


def _mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    maps: Maps,
    start: FlatState,
    keep: Tensor | None,
    saved: list[FlatState] | None = None,
) -> tuple[Tensor, ...]:
    """Returns the mixed values and the final state. `saved`, if given, collects the states before all runs but the first."""
    b, h, _, _ = q.shape
    sums, norms, peak = start.sums.clone(), start.norms.clone(), start.peak
    mixed, scratch = new_mixed(q, v), Scratch(sums.dtype)
    for index, run in enumerate(runs_of(q, v, norms.shape[1])):
        if saved is not None and index:
            saved.append(FlatState(sums.clone(), norms, peak))
        for position in run:
            scratch.start()
            block, peak = read_block(q, k, v, maps, peak, keep, position, scratch)
            scores, _, inverse, norms = _weigh(block, norms, scratch)
            out = _mix_block(block, scores, sums, scratch)
            torch.mul(block.split(out), block.split(inverse), out=cut(mixed, position))
    return mixed, sums.unflatten(0, (b, h)), norms.unflatten(0, (b, h)), peak.reshape(b, h)


def _weigh(block: Block, norms: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the scores within chunks, the norms before each chunk, 1 / denominator, and the norms after the block."""
    fade, keys, queries = block.fade, block.keys, block.queries
    added = keys.sum(1) if fade is None else across(keys, fade.keys)
    before, after = _running(norms, block.apart(added), fade, range(len(added) // len(norms)))
    scores, past = block.visible(multiply(queries, keys.mT, scratch)), along(queries, before.flatten(0, 1))
    if fade is not None:
        past = past * fade.rows
    return scores, before, reciprocal(past + scores.sum(-1, keepdim=True)), after


def _running(
    total: Float[Tensor, "bh m"], added: Float[Tensor, "t bh m"], fade: Fade | None, order: Iterable[int]
) -> tuple[Float[Tensor, "t bh m"], Float[Tensor, "bh m"]]:
    """Returns the running total before each chunk, in this order of chunks, and after the last."""
    totals = torch.empty_like(added)
    for t in order:
        totals[t] = total
        total = added[t] + (total if fade is None else total * fade.state[t, ..., 0])
    return totals, total


def _join(sums: Tensor, keys: Tensor, values: Tensor, fade: Fade | None, t: int) -> None:
    """Adds chunk t to the sums, in place."""
    if fade is not None:
        sums.mul_(fade.state[t])
    sums.baddbmm_(keys.mT, values)


def _mix_block(block: Block, scores: Tensor, sums: Tensor, scratch: Scratch) -> Tensor:
    """Returns the numerators of a block, and advances the sums past it in place."""
    mixed = scratch.take(*block.values.shape)
    parts = zip(*map(block.apart, (block.queries, block.keys, block.faded_values, mixed)), strict=True)
    for t, (queries, keys, values, out) in enumerate(parts):
        torch.bmm(queries, sums, out=out)
        _join(sums, keys, values, block.fade, t)
    if block.fade is not None:
        mixed.mul_(block.fade.rows)
    return mixed.baddbmm_(scores, block.values)


def _back_to_queries(
    block: Block, norms: Tensor, d_mixed: Tensor, d_total: Tensor, pairs: Tensor, sums: Tensor, scratch: Scratch
) -> Float[Tensor, "tb h c m"]:
    """Returns dq' of a block, forwards in time, and advances the sums past it in place."""
    d_queries = torch.mul(d_total, norms.flatten(0, 1)[:, None], out=scratch.take(*block.queries.shape))
    parts = zip(*map(block.apart, (block.keys, block.faded_values, d_mixed, d_queries)), strict=True)
    for t, (keys, values, g, out) in enumerate(parts):
        out.baddbmm_(g, sums.mT)
        _join(sums, keys, values, block.fade, t)
    if block.fade is not None:
        d_queries.mul_(block.fade.rows)
    return d_queries.baddbmm_(pairs, block.keys).view_as(block.features_q.values)


def _back_to_keys(
    block: Block,
    scores: Tensor,
    d_mixed: Tensor,
    d_total: Tensor,
    pairs: Tensor,
    later: Tensor,
    later_norms: Tensor,
    scratch: Scratch,
) -> tuple[Float[Tensor, "tb h c m"], Float[Tensor, "tbh c e"], Float[Tensor, "bh m"]]:
    """Returns dk' and dv of a block, backwards in time, and the new later norms; updates the later sums in place."""
    fade, keys, values, queries = block.fade, block.keys, block.values, block.queries
    g, e = (d_mixed, d_total) if fade is None else (d_mixed * fade.rows, d_total * fade.rows)
    d_keys, d_values = scratch.take(*keys.shape), scratch.take(*values.shape)
    parts = zip(*map(block.apart, (queries, keys, values, g, d_keys, d_values)), strict=True)
    for t, (query, key, value, rows, for_key, for_value) in reversed(list(enumerate(parts))):
        torch.bmm(value, later.mT, out=for_key)
        torch.bmm(key, later, out=for_value)
        _join(later, query, rows, fade, t)
    added = block.apart(across(queries, e))
    norms, later_norms = _running(later_norms, added, fade, reversed(range(len(added))))
    d_keys.add_(norms.flatten(0, 1)[:, None])
    if fade is not None:
        d_keys.mul_(fade.keys)
        d_values.mul_(fade.keys)
    d_keys.baddbmm_(pairs.mT, queries)
    return d_keys.view_as(block.features_k.values), d_values.baddbmm_(scores.mT, d_mixed), later_norms
