"""Causal linear attention one block after the other, for a CPU.

A block is a few chunks. Inside a chunk by the equation, across chunks by the sums, so that everything stays in cache:

    out_i = phi(q_i) S + sum over j <= i in the chunk of (phi(q_i) . phi(k_j)) v_j, over the same with 1 for v

The chunks of a block are worked on at once where they can be, which takes fewer and larger operations. In "t b h c d", t is
the chunk and c the position in it; products have all chunks and heads in one batch, "tbh c d".
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient, outside_autocast
from subquad.ops.linear import quotient
from subquad.ops.scratch import Scratch
from subquad.ops.sums import (
    LinearState,
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
    new_mixed,
    precise,
    reciprocal,
)
from subquad.types import FeatureFunction, Features

CHUNK = 64  # positions that attend to each other by the equation
BLOCK = 256  # positions in a block, at most; more of them need more memory
WHOLE = slice(None)


def attend_in_chunks(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    state: LinearState | None = None,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """One block after the other."""
    weights = (*phi_q.weights(), *phi_k.weights())
    given = (None, None, None) if state is None else state
    if needs_gradient(q, k, v, *(state or ()), *weights):
        mixed, *after = _Chunks.apply(q, k, v, keep, *given, phi_q, phi_k, *weights)  # type: ignore[no-untyped-call]
    else:
        mixed, *after = _mix(q, k, v, keep, _start(k, v, phi_k, given), phi_q, phi_k)
    return mixed, LinearState(*after)


class _Chunks(torch.autograd.Function):
    """The gradient of a causal sum is a causal sum, reversed in time for k and v.

    With G and e the gradients of numerator and denominator, and P_ij = G_i . v_j + e_i:
    dq'_i = sum over j <= i of P_ij k'_j, dk'_j = sum over i >= j of P_ij q'_i, dv_j = sum over i >= j of (q'_i . k'_j) G_i.
    Features, denominators and most states are computed again. Beside q, k, v and the result no more is saved than the state
    that was given, and others with half a number for each position in all. Fused softmax attention saves a whole one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        sums: Tensor | None,
        norms: Tensor | None,
        peak: Tensor | None,
        phi_q: FeatureFunction,
        phi_k: FeatureFunction,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        saved: list[_State] = []
        mixed, *after = _mix(q, k, v, keep, _start(k, v, phi_k, (sums, norms, peak)), phi_q, phi_k, saved)
        ctx.save_for_backward(q, k, v, keep, mixed, sums, norms, peak, *itertools.chain(*saved))
        ctx.maps = phi_q, phi_k
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
        phi_q, phi_k = ctx.maps
        b, h, _, d = q.shape
        m, made = phi_k.feature_count(d), {"dtype": precise(q.dtype), "device": q.device}
        # the sums of q'_i G_i^T and q'_i e_i over later positions; the state that is handed on is one of those
        later = torch.zeros(b * h, m, v.shape[-1], **made) if d_sums is None else d_sums.flatten(0, 1).clone()
        later_norms = torch.zeros(b * h, m, **made) if d_norms is None else d_norms.flatten(0, 1)
        gradient = torch.zeros_like(mixed) if gradient is None else gradient
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for_q, for_k = WeightGradients(phi_q), WeightGradients(phi_k)

        room = Scratch(precise(q.dtype))
        starts = [_start(k, v, phi_k, saved[:3]), *map(_State, saved[3::3], saved[4::3], saved[5::3])]
        for run, start in reversed(list(zip(_runs(q, v, m), starts, strict=False))):  # an empty sequence has no runs
            states = _states(k, v, keep, phi_k, start, run, room)
            for position, state in reversed(list(zip(run, states, strict=True))):
                room.start()
                block, _ = _read(q, k, v, keep, phi_q, phi_k, state.peak, position, room)
                scores, norms, inverse, _ = _weigh(block, state.norms, room)
                parts = quotient(_cut(gradient, position), _cut(mixed, position), block.split(inverse), room)
                g, e = (part.flatten(0, 2) for part in parts)
                pairs = block.visible(_product(g, block.values.mT, room).add_(e))
                d_queries = _back_to_queries(block, norms, g, e, pairs, state.sums, room)
                d_keys, d_values, later_norms = _back_to_keys(block, scores, g, e, pairs, later, later_norms, room)
                if block.seen is not None:
                    d_keys.masked_fill_(~block.seen[:, None, :, None], 0.0)
                _place(dq, position, for_q.pullback(block.x_q, block.features_q, d_queries))
                _place(dk, position, for_k.pullback(block.x_k, block.features_k, d_keys))
                _place(dv, position, d_values)
        for_state = (later.unflatten(0, (b, h)), later_norms.unflatten(0, (b, h))) if saved[0] is not None else (None, None)
        return dq, dk, dv, None, *for_state, None, None, None, *for_q.totals, *for_k.totals


class _State(NamedTuple):
    """A `LinearState` with batch and heads in one dimension."""

    sums: Float[Tensor, "bh m e"]
    norms: Float[Tensor, "bh m"]
    peak: Float[Tensor, "bh 1 1"]


class _Fade(NamedTuple):
    """By how much the parts of a chunk count relative to each other: 2 to a difference of exponents, at most 1."""

    pairs: Float[Tensor, "tbh c c"]  # key j for query i; zero where j is after i
    rows: Float[Tensor, "tbh c 1"]  # the state before the chunk for query i
    keys: Float[Tensor, "tbh c 1"]  # key j in the state after the chunk
    state: Float[Tensor, "t bh 1 1"]  # the state before the chunk in the state after it


class _Block(NamedTuple):
    """The chunks of a block: what their features are computed from, their features and values, and how they fade."""

    x_q: Float[Tensor, "tb h c d"]
    x_k: Float[Tensor, "tb h c d"]
    features_q: Features
    features_k: Features
    values: Float[Tensor, "tbh c e"]
    fade: _Fade | None
    seen: Bool[Tensor, "tb c"] | None
    batch: int

    @property
    def queries(self) -> Float[Tensor, "tbh c m"]:
        return self.features_q.values.flatten(0, 1)

    @property
    def keys(self) -> Float[Tensor, "tbh c m"]:
        return self.features_k.values.flatten(0, 1)

    @property
    def faded_values(self) -> Float[Tensor, "tbh c e"]:
        """The values as they go into the sums."""
        return self.values if self.fade is None else self.values * self.fade.keys

    def split(self, x: Float[Tensor, "tbh c x"]) -> Float[Tensor, "t b h c x"]:
        return x.view(-1, self.batch, self.x_q.shape[1], *x.shape[1:])

    def apart(self, x: Float[Tensor, "tbh *x"]) -> Float[Tensor, "t bh *x"]:
        """One chunk after the other."""
        return x.view(-1, self.batch * self.x_q.shape[1], *x.shape[1:])

    def visible(self, scores: Float[Tensor, "tbh c c"]) -> Float[Tensor, "tbh c c"]:
        """The scores of pairs without those that look ahead, in place."""
        return scores.tril_() if self.fade is None else scores.mul_(self.fade.pairs)


def _cut(x: Shaped[Tensor, "b h n d"], position: slice) -> Shaped[Tensor, "t b h c d"]:
    """A view of a block, cut into chunks."""
    b, h, _, d = x.shape
    n = position.stop - position.start
    return x[:, :, position].view(b, h, -1, min(CHUNK, n), d).permute(2, 0, 1, 3, 4)


def _gather(x: Float[Tensor, "b h n d"], position: slice, room: Scratch) -> Float[Tensor, "tb h c d"]:
    """A block, cut into chunks, in the precise type. A view, where that can be."""
    part = _cut(x, position)
    if len(x) == 1 and x.dtype == precise(x.dtype):
        return part[:, 0]
    return room.take(*part.shape).copy_(part).flatten(0, 1)


def _product(x: Float[Tensor, "tbh c x"], y: Float[Tensor, "tbh x y"], room: Scratch) -> Float[Tensor, "tbh c y"]:
    """x y, in scratch memory."""
    return torch.bmm(x, y, out=room.take(*x.shape[:2], y.shape[2]))


def _place(x: Float[Tensor, "b h n d"], position: slice, found: Tensor) -> None:
    """Writes a block that was cut into chunks."""
    part = _cut(x, position)
    part.copy_(found.reshape(part.shape))


def _runs(q: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], features: int) -> list[list[slice]]:
    """The blocks of a sequence, in runs, with a state to save between runs: half a number for each position in all.

    No sequences have no blocks. Every block has whole chunks, but for the last one, which has the positions that are left.
    """
    n, numbers = q.shape[2] if len(q) else 0, features * (v.shape[-1] + 1)
    whole = n - n % CHUNK
    found = [*blocks(whole, block_length(q, features, BLOCK)), *([slice(whole, n)] if whole < n else [])]
    length = math.ceil(len(found) / max(1, n // (2 * numbers)))
    return [found[part] for part in blocks(len(found), max(1, length))]


def _start(k: Tensor, v: Tensor, phi_k: FeatureFunction, given: Sequence[Any]) -> _State:
    """The state that was given, or the empty one for None: that one need not be saved."""
    sums, norms, peak = empty_state(k, v, phi_k) if given[0] is None else given
    return _State(sums.flatten(0, 1), norms.flatten(0, 1), peak.reshape(-1, 1, 1))


def _states(
    k: Tensor, v: Tensor, keep: Tensor | None, phi_k: FeatureFunction, start: _State, run: list[slice], room: Scratch
) -> list[_State]:
    """The states before each block of a run, of which the first was saved."""
    found = [start._replace(sums=start.sums.clone())]
    for position in run[:-1]:
        room.start()
        sums, norms, peak = found[-1]
        read = flat_keys(k, v, phi_k, keep, position, room)
        found.append(_State(*add_block(sums.clone(), norms.clone(), peak, *read)))
    return found


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
) -> tuple[_Block, Tensor]:
    """A block, and the peak after it."""
    seen = None if keep is None else _cut(keep[:, None, :, None], position).flatten(0, 1)[:, 0, :, 0]
    x_q, x_k = _gather(q, position, room), kept(_gather(k, position, room), seen, WHOLE)
    features_q, features_k = phi_q(x_q, room), kept_features(phi_k, x_k, seen, WHOLE, room)
    values = kept(_gather(v, position, room), seen, WHOLE).flatten(0, 1)
    block = _Block(x_q, x_k, features_q, features_k, values, None, seen, q.shape[0])
    if features_k.exponent is None:
        return block, peak
    fade, peak = _fades(block.apart(features_k.exponent.flatten(0, 1)), peak, room)
    return block._replace(fade=fade), peak


def _fades(exponent: Float[Tensor, "t bh c 1"], peak: Float[Tensor, "bh 1 1"], room: Scratch) -> tuple[_Fade, Tensor]:
    """The fades of the chunks in a block, and the peak after it."""
    t, heads, c, _ = exponent.shape
    running = torch.maximum(exponent.transpose(0, 1).flatten(1).cummax(1).values, peak[..., 0])
    highest = running.view(heads, t, c, 1).transpose(0, 1)
    after = highest[:, :, -1:]
    before = torch.cat([peak[None], after[:-1]])
    pairs = torch.sub(exponent.mT, finite(highest), out=room.take(t, heads, c, c))
    fade = _Fade(
        pairs.exp2_().tril_().flatten(0, 1),  # a later key may be infinitely loud
        torch.exp2(before - finite(highest)).flatten(0, 1),
        torch.exp2(exponent - finite(after)).flatten(0, 1),
        torch.exp2(before - finite(after)),
    )
    return fade, after[-1].clone()


def _mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    start: _State,
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    saved: list[_State] | None = None,
) -> tuple[Tensor, ...]:
    """The mixed values and the state after. `saved`, if given, collects the states before each run but the first."""
    b, h, _, _ = q.shape
    sums, norms, peak = start.sums.clone(), start.norms.clone(), start.peak
    mixed, room = new_mixed(q, v), Scratch(sums.dtype)
    for index, run in enumerate(_runs(q, v, norms.shape[1])):
        if saved is not None and index:
            saved.append(_State(sums.clone(), norms, peak))
        for position in run:
            room.start()
            block, peak = _read(q, k, v, keep, phi_q, phi_k, peak, position, room)
            scores, _, inverse, norms = _weigh(block, norms, room)
            out = _mix_block(block, scores, sums, room)
            torch.mul(block.split(out), block.split(inverse), out=_cut(mixed, position))
    return mixed, sums.unflatten(0, (b, h)), norms.unflatten(0, (b, h)), peak.reshape(b, h)


def _weigh(block: _Block, norms: Tensor, room: Scratch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The scores inside the chunks, the norms before each chunk, 1 / denominator, and the norms after the block."""
    fade, keys, queries = block.fade, block.keys, block.queries
    added = keys.sum(1) if fade is None else across(keys, fade.keys)
    before, after = _running(norms, block.apart(added), fade, range(len(added) // len(norms)))
    scores, past = block.visible(_product(queries, keys.mT, room)), along(queries, before.flatten(0, 1))
    if fade is not None:
        past = past * fade.rows
    return scores, before, reciprocal(past + scores.sum(-1, keepdim=True)), after


def _running(
    total: Float[Tensor, "bh m"], added: Float[Tensor, "t bh m"], fade: _Fade | None, order: Iterable[int]
) -> tuple[Float[Tensor, "t bh m"], Float[Tensor, "bh m"]]:
    """The total that each chunk finds, in this order of chunks, and the one after the last."""
    found = torch.empty_like(added)
    for t in order:
        found[t] = total
        total = added[t] + (total if fade is None else total * fade.state[t, ..., 0])
    return found, total


def _join(sums: Tensor, left: Tensor, right: Tensor, fade: _Fade | None, t: int) -> None:
    """Takes chunk t into the sums, in place."""
    if fade is not None:
        sums.mul_(fade.state[t])
    sums.baddbmm_(left.mT, right)


def _mix_block(block: _Block, scores: Tensor, sums: Tensor, room: Scratch) -> Tensor:
    """The numerators of a block. The sums move on past it."""
    mixed = room.take(*block.values.shape)
    parts = zip(*map(block.apart, (block.queries, block.keys, block.faded_values, mixed)), strict=True)
    for t, (queries, keys, values, out) in enumerate(parts):
        torch.bmm(queries, sums, out=out)
        _join(sums, keys, values, block.fade, t)
    if block.fade is not None:
        mixed.mul_(block.fade.rows)
    return mixed.baddbmm_(scores, block.values)


def _back_to_queries(
    block: _Block, norms: Tensor, d_mixed: Tensor, d_total: Tensor, pairs: Tensor, sums: Tensor, room: Scratch
) -> Float[Tensor, "tb h c m"]:
    """dq' of a block, forwards in time. The sums move on past it."""
    found = torch.mul(d_total, norms.flatten(0, 1)[:, None], out=room.take(*block.queries.shape))
    parts = zip(*map(block.apart, (block.keys, block.faded_values, d_mixed, found)), strict=True)
    for t, (keys, values, g, out) in enumerate(parts):
        out.baddbmm_(g, sums.mT)
        _join(sums, keys, values, block.fade, t)
    if block.fade is not None:
        found.mul_(block.fade.rows)
    return found.baddbmm_(pairs, block.keys).view_as(block.features_q.values)


def _back_to_keys(
    block: _Block,
    scores: Tensor,
    d_mixed: Tensor,
    d_total: Tensor,
    pairs: Tensor,
    later: Tensor,
    later_norms: Tensor,
    room: Scratch,
) -> tuple[Float[Tensor, "tb h c m"], Float[Tensor, "tbh c e"], Float[Tensor, "bh m"]]:
    """dk' and dv of a block, backwards in time, and the later norms before it. The later sums move on to before it."""
    fade, keys, values, queries = block.fade, block.keys, block.values, block.queries
    g, e = (d_mixed, d_total) if fade is None else (d_mixed * fade.rows, d_total * fade.rows)
    d_keys, d_values = room.take(*keys.shape), room.take(*values.shape)
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
