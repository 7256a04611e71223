"""Exact attention to what is near, linear attention to the rest, under one normaliser.

Positions are cut into blocks of equal length. A position sees its own block and its neighbours exactly, all others through
features, with a gain g::

    out_i = sum over j of w_ij v_j / sum over j of w_ij
    w_ij = exp(q_i . k_j / sqrt d) for near j, g phi(q_i) . phi(k_j) for others

The causal form has the block before and its own up to i as near. Every weight of a row is relative to the row's largest, so
nothing overflows, and where the features of the rest underflow the near keys are left.

Where a gradient is wanted, on a GPU and for compilers, all blocks are worked on at once; without, a CPU takes a few at a
time, whose scores stay in its cache.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from subquad.ops.autocast import needs_gradient, outside_autocast, product
from subquad.ops.linear import prefers_parallel
from subquad.ops.scratch import WORKING_SET, Scratch
from subquad.ops.sums import LinearState, finite, precise, reciprocal
from subquad.types import FeatureFunction, Features

LOG2_E = math.log2(math.e)
HIGHEST = 100.0  # of the rest's factor 2**x: what needs a higher one has underflowed
HIGHEST_OF_NONE = 60.0  # where there is no rest: only its gradient is multiplied, and must not overflow


class Near(NamedTuple):
    """Which keys a query sees exactly, as logarithms of weights to base 2, -inf where it does not see one."""

    scores: Float[Tensor, "b h t c w"]
    values: Float[Tensor, "b h t w e"]


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    log_gain: Float[Tensor, "h"],
    total: Int[Tensor, "b"],
    block: int,
    before: LinearState | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState | None]:
    """Of sequences whose first `total` positions are real. Causal if there is a state of what came `before`.

    The state after is that of all blocks before the last two, of which the very last one may be empty.
    """
    n, dtype, causal = k.shape[2], precise(k.dtype), before is not None
    q, k, v = (x.to(dtype) for x in (q, k, v))
    valid = torch.arange(n, device=k.device) < total[:, None]
    at_once = prefers_parallel(q) or needs_gradient(q, k, v, log_gain, *phi_q.weights(), *phi_k.weights())
    room = None if at_once else Scratch(dtype)
    parts = _stretches(q, block, at_once=at_once)
    full = not at_once and bool(valid.all())
    sums, peak, after = _far(k, v, phi_k, None if full else valid, total, block, before, parts, room)
    mixed = []
    for part, rows in parts:
        queries = cut_features(_features(phi_q, q[:, :, rows], room), block)
        near = _near(q, k, v, None if full else valid, block, part, causal=causal)
        done = mix(queries, sums[:, :, part], peak[:, :, part], near, log_gain)
        mixed.append(done.flatten(2, 3)[:, :, : q[:, :, rows].shape[2]].transpose(1, 2))
    # with the heads of a position beside each other, as they are merged
    return torch.cat(mixed, dim=1).transpose(1, 2), after


def _stretches(q: Tensor, block: int, *, at_once: bool) -> list[tuple[slice, slice]]:
    """What is worked on together: which blocks, and which positions."""
    b, h, n, _ = q.shape
    count = -(-n // block)
    size = count if at_once else max(1, WORKING_SET // max(1, b * h * block * 3 * block))
    starts = range(0, count, size) if size < count else [0]
    return [(slice(at, min(count, at + size)), slice(at * block, min(n, (at + size) * block))) for at in starts]


def _features(phi: FeatureFunction, x: Tensor, room: Scratch | None) -> Features:
    if room is None:
        return phi(x)
    room.start()
    return phi(x, room)


def _far(
    k: Tensor,
    v: Tensor,
    phi: FeatureFunction,
    valid: Bool[Tensor, "b n"] | None,
    total: Int[Tensor, "b"],
    block: int,
    before: LinearState | None,
    parts: Sequence[tuple[slice, slice]],
    room: Scratch | None,
) -> tuple[Float[Tensor, "b h t m f"], Float[Tensor, "b h t"], LinearState | None]:
    """For each block the sums of what is neither in it nor beside it, and the state after all if it is causal."""
    made = [
        _block_sums(_features(phi, k[:, :, at], room), v[:, :, at], None if valid is None else valid[:, at], block)
        for _, at in parts
    ]
    blocks, peaks = (torch.cat(each, dim=2) if len(each) > 1 else each[0] for each in zip(*made, strict=True))
    if before is None and not phi.has_exponent and not prefers_parallel(k):
        return _Around.apply(blocks), peaks, None  # type: ignore[no-untyped-call]
    sums, peak = _before(blocks, peaks, before)  # of t + 1 blocks
    if before is not None:
        last = total // block
        return sums[:, :, :-1], peak[:, :, :-1], _state(_at(sums, last), _at(peak, last))
    later, later_peak = _before(blocks.flip(2), peaks.flip(2), None)
    return *_add(sums[:, :, :-1], peak[:, :, :-1], later[:, :, :-1].flip(2), later_peak[:, :, :-1].flip(2)), None


class _Around(torch.autograd.Function):
    """For each block the sum of all but itself and its neighbours: what `_before` gives from both ends, where all is of one
    scale. Its gradient is the same sum, as it is mutual who is near.
    """

    @staticmethod
    def forward(ctx: Any, blocks: Tensor) -> Tensor:
        count = blocks.shape[2]
        sums = torch.empty_like(blocks)
        sums[:, :, :2] = 0.0
        for at in range(2, count):
            torch.add(sums[:, :, at - 1], blocks[:, :, at - 2], out=sums[:, :, at])
        behind = torch.zeros_like(blocks[:, :, :1]).squeeze(2)
        for at in range(count - 3, -1, -1):
            sums[:, :, at] += behind.add_(blocks[:, :, at + 2])
        return sums

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed: Tensor = _Around.apply(gradient)  # type: ignore[no-untyped-call]
        return summed


def mix(
    queries: Features,
    sums: Float[Tensor, "b h t m f"],
    peak: Float[Tensor, "b h t"],
    near: Near,
    log_gain: Float[Tensor, "h"],
) -> Float[Tensor, "b h t c e"]:
    """Blocks of queries over what is near and the sums of the rest, whose last column is that of the norms."""
    rest = product(queries.values, sums)
    level = finite(peak)[..., None, None] + (LOG2_E * log_gain)[:, None, None, None]
    level = level if queries.exponent is None else level + queries.exponent
    height = level.detach() + rest[..., -1:].detach().abs().log2()  # -inf where there is no rest
    top = finite(torch.maximum(near.scores.detach().amax(-1, keepdim=True), height))
    weights = near.scores.sub_(top).exp2_()  # in place: they are as large as all the rest together
    limit = torch.where(height == -math.inf, HIGHEST_OF_NONE, HIGHEST)
    rest = rest * torch.exp2(torch.minimum(level - top, limit))
    mixed = product(weights, near.values) + rest[..., :-1]
    return mixed * reciprocal(weights.sum(-1, keepdim=True) + rest[..., -1:])


def fold(state: LinearState, k: Float[Tensor, "b h c d"], v: Float[Tensor, "b h c e"], phi: FeatureFunction) -> LinearState:
    """The state with one more block in it."""
    valid = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    sums, peaks = _block_sums(phi(k.to(state.sums.dtype)), v.to(state.sums.dtype), valid, k.shape[2])
    return _state(*_add(_join(state)[:, :, None], state.peak[:, :, None], sums, peaks))


def _near(
    q: Tensor, k: Tensor, v: Tensor, valid: Bool[Tensor, "b n"] | None, block: int, part: slice, *, causal: bool
) -> Near:
    """Own block and neighbours, before and, unless causal, behind: of some of the blocks. Without `valid` all is real."""
    keys, values = (_beside(x, block, part, causal=causal) for x in (k, v))
    queries = cut(q[:, :, part.start * block : part.stop * block] * (LOG2_E / math.sqrt(q.shape[-1])), block)
    scores = product(queries, keys.mT)
    inside = part.start > 0 and (part.stop + 1) * block <= k.shape[2]
    if valid is None and inside and not causal:
        return Near(scores, values)
    real = torch.ones_like(k[:, 0, :, 0], dtype=torch.bool) if valid is None else valid
    seen = _beside(real[:, None, :, None], block, part, causal=causal).mT  # b 1 t 1 w
    if causal:
        own = torch.ones(block, block, dtype=torch.bool, device=k.device).tril()
        seen = seen & torch.cat([torch.ones_like(own), own], dim=1)
    return Near(scores.masked_fill(~seen, -math.inf), values)


def _beside(x: Shaped[Tensor, "b h n m"], block: int, part: slice, *, causal: bool) -> Shaped[Tensor, "b h t w m"]:
    """Every block with the one before it in front, and the one behind it unless causal; zeros where there is none."""
    behind = 0 if causal else 1
    first = max(0, part.start - 1)
    blocks = cut(x[:, :, first * block : (part.stop + behind) * block], block)
    count = part.stop - part.start + 1 + behind
    front = first - part.start + 1
    blocks = F.pad(blocks, (0, 0, 0, 0, front, count - front - blocks.shape[2]))
    return torch.cat([blocks[:, :, at : at + count - 1 - behind] for at in range(2 + behind)], dim=3)


def _block_sums(keys: Features, v: Tensor, valid: Bool[Tensor, "b n"] | None, block: int) -> tuple[Tensor, Tensor]:
    """What each block adds, values and norms side by side, relative to 2**its peak; and the peaks."""
    padding = None if valid is None else ~valid[:, None, :, None]
    values = cut(keys.values if padding is None else keys.values.masked_fill(padding, 0.0), block)
    ones = cut(F.pad(v, (0, 1), value=1.0), block)
    if keys.exponent is None:
        empty = values.new_zeros(values.shape[:3])
        return product(values.mT, ones), empty
    exponent = keys.exponent if padding is None else keys.exponent.masked_fill(padding, -math.inf)
    exponent = cut(exponent, block, -math.inf)
    peaks = exponent.detach().amax(3)[..., 0]
    faded = values * torch.exp2(exponent - finite(peaks)[..., None, None])
    return product(faded.mT, ones), peaks


def _before(
    blocks: Float[Tensor, "b h t m f"], peaks: Float[Tensor, "b h t"], state: LinearState | None
) -> tuple[Float[Tensor, "b h u m f"], Float[Tensor, "b h u"]]:
    """For each block, and for one behind the last, the sum of all blocks but itself and the one before it."""
    first = torch.zeros_like(blocks[:, :, :1]) if state is None else _join(state)[:, :, None]
    lowest = torch.full_like(peaks[:, :, :1], -math.inf) if state is None else state.peak[:, :, None]
    if not blocks.shape[2]:
        return first, lowest
    added, heights = torch.cat([first, blocks[:, :, :-1]], dim=2), torch.cat([lowest, peaks[:, :, :-1]], dim=2)
    highest = heights.cummax(2).values
    if prefers_parallel(blocks):  # one product over pairs of blocks, which compilers and GPUs like better than a loop
        fade = torch.exp2(heights[..., None, :] - finite(highest)[..., None]).tril()
        summed = product(fade, added.flatten(3)).unflatten(3, added.shape[3:])
    else:
        fades = torch.exp2(F.pad(highest, (1, 0), value=-math.inf)[..., :-1] - finite(highest))[..., None, None]
        shares = torch.exp2(heights - finite(highest))[..., None, None]
        parts = [added[:, :, 0] * shares[:, :, 0]]
        for at in range(1, added.shape[2]):
            parts.append(torch.addcmul(parts[-1] * fades[:, :, at], added[:, :, at], shares[:, :, at]))
        summed = torch.stack(parts, dim=2)
    # the first block has nothing before its neighbour, either
    return torch.cat([first, summed], dim=2), torch.cat([lowest, highest], dim=2)


def _add(one: Tensor, peak: Tensor, other: Tensor, other_peak: Tensor) -> tuple[Tensor, Tensor]:
    """Two sums, each relative to its own peak."""
    higher = torch.maximum(peak, other_peak)
    fades = (torch.exp2(each - finite(higher))[..., None, None] for each in (peak, other_peak))
    return one * next(fades) + other * next(fades), higher


def _join(state: LinearState) -> Float[Tensor, "b h m f"]:
    return torch.cat([state.sums, state.norms[..., None]], dim=-1)


def _state(sums: Float[Tensor, "b h 1 m f"], peak: Float[Tensor, "b h 1"]) -> LinearState:
    return LinearState(sums[:, :, 0, :, :-1], sums[:, :, 0, :, -1], peak[:, :, 0])


def _at(x: Float[Tensor, "b h t *m"], place: Int[Tensor, "b"]) -> Float[Tensor, "b h 1 *m"]:
    """x[b, :, place[b]]."""
    where = place.view(-1, *[1] * (x.ndim - 1)).expand(-1, x.shape[1], 1, *x.shape[3:])
    return x.gather(2, where)


def cut_features(features: Features, block: int) -> Features:
    """The same of features."""
    exponent = features.exponent
    return Features(cut(features.values, block), None if exponent is None else cut(exponent, block))


def cut(x: Shaped[Tensor, "b h n m"], block: int, padding: float = 0.0) -> Shaped[Tensor, "b h t c m"]:
    """In blocks, the last one filled up."""
    count = -(-x.shape[2] // block)
    missing = count * block - x.shape[2]
    filled = F.pad(x, (0, 0, 0, missing), value=padding) if missing else x
    return filled.unflatten(2, (count, block))
