"""State of a stream that is processed in segments, and the continuous memory into which full segments are written.

Equation numbers refer to Martins et al. 2022, *Infinity-former: Infinite Memory Transformer*.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops.autocast import precise, product
from subquad.ops.memory import Basis, Factors, draw, evaluate_basis, ridge
from subquad.ops.packing import Packed, pack, pick


class Memory(NamedTuple):
    """The part of a state that changes with each full segment."""

    signal: Float[Tensor, "b h m f"]  # coefficients of keys and values, f = d + e, in float32 or float64
    histogram: Float[Tensor, "b bins"]  # attention mass by position since the signal was written
    written: Int[Tensor, "b"]  # number of segments in the signal


class InfinityState(NamedTuple):
    """State of constant size: the current segment, and the signal of all segments before it.

    `keys` and `values` hold the previous segment, if it is attended to, then the current one, then zeros.
    """

    keys: Tensor  # b h r d
    values: Tensor  # b h r e
    signal: Tensor  # b h m d+e, the coefficients of keys and values, in float32 or float64
    histogram: Tensor  # b bins, attention mass by position since the signal was written
    filled: Tensor  # b, number of keys
    written: Tensor  # b, number of segments in the signal


def memory_of(state: InfinityState) -> Memory:
    """Returns the memory of the segments before the current one."""
    return Memory(state.signal, state.histogram, state.written)


class Points(NamedTuple):
    """Points at which a sticky memory is read before it is rewritten: more of them where attention was high."""

    basis: Basis
    places: Float[Tensor, "p"]  # shares of the attention up to each point, in order
    within: Float[Tensor, "p"]  # place of each point within its bin of the histogram


def empty_state(
    k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], length: int, *, basis: int, bins: int
) -> InfinityState:
    """Returns the state before the first position, with space for the keys and values of `length` positions."""
    b, h, _, d = k.shape
    tensor_options: dict[str, Any] = {"dtype": precise(k.dtype), "device": k.device}
    counts = torch.zeros(b, dtype=torch.long, device=k.device)
    return InfinityState(
        k.new_zeros(b, h, length, d),
        v.new_zeros(b, h, length, v.shape[3]),
        torch.zeros(b, h, basis, d + v.shape[3], **tensor_options),
        torch.zeros(b, bins, **tensor_options),
        counts,
        counts,
    )


def continue_state(q: Tensor, k: Tensor, v: Tensor, state: InfinityState, keep: Tensor | None) -> Packed:
    """Packs the current segment of a state together with new positions."""
    length = state.keys.shape[2]
    held = torch.arange(length, device=q.device) < state.filled[:, None]
    new = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device) if keep is None else keep
    k, v = torch.cat([state.keys, k], dim=2), torch.cat([state.values, v], dim=2)
    return pack(F.pad(q, (0, 0, length, 0)), k, v, torch.cat([held, new], dim=1))


def last_state(packed: Packed, held: Memory, segment: int, length: int) -> InfinityState:
    """Returns the state after the last segment, with the keys and values of up to `length` positions."""
    start = packed.total // segment * segment
    if length > segment:
        start = (start - segment).clamp_min(0)
    places = start[:, None] + torch.arange(length, device=start.device)
    held_places = places < packed.total[:, None]
    last = max(0, packed.k.shape[2] - 1)
    k, v = (F.pad(x, (0, 0, 0, 1)) if x.shape[2] == 0 else x for x in (packed.k, packed.v))
    keys, values = (pick(x, places.clamp(max=last)) * held_places[:, None, :, None] for x in (k, v))
    return InfinityState(keys, values, *held[:2], packed.total - start, held.written)


def last_segment(filled: Int[Tensor, "b"], segment: int) -> Int[Tensor, "b c"]:
    """Returns the places of the last `segment` positions in a state."""
    return (filled - segment).clamp_min(0)[:, None] + torch.arange(segment, device=filled.device)


def make_space(
    keys: Float[Tensor, "b h r d"],
    values: Float[Tensor, "b h r e"],
    filled: Int[Tensor, "b"],
    full: Bool[Tensor, "b"],
    segment: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Drops the first segment if a full segment leaves no space for the next; returns keys, values and their number."""
    shift = full & (filled == keys.shape[2])  # with a previous segment, the first one stays in its place
    moved = [F.pad(x[:, :, segment:], (0, 0, 0, segment)) for x in (keys, values)]
    keys, values = (torch.where(shift[:, None, None, None], to, x) for to, x in zip(moved, (keys, values), strict=True))
    return keys, values, torch.where(shift, filled - segment, filled)


def write(
    held: Memory, k: Tensor, v: Tensor, factors: Factors, points: Points | None, full: bool | Tensor, *, first: bool = False
) -> Memory:
    """Writes a segment into the memory of sequences whose segment is full. `first` says that the memory is empty."""
    if full is False:
        return held
    if not held.signal.shape[2]:
        return held._replace(written=held.written + full)
    segment = torch.cat([k, v], dim=3).to(held.signal.dtype)
    alone = product(factors.first, segment)
    signal = alone
    if not first:
        begun = (held.written > 0)[:, None, None, None]
        signal = torch.where(begun, _contracted(held, factors, points) + product(factors.new, segment), alone)
    histogram, written = torch.zeros_like(held.histogram), held.written + 1
    if full is True:
        return Memory(signal, histogram, written)
    return Memory(
        torch.where(full[:, None, None, None], signal, held.signal),
        torch.where(full[:, None], histogram, held.histogram),
        torch.where(full, written, held.written),
    )


def fit_end(
    basis: Basis, segment: Float[Tensor, "b h s f"], count: Int[Tensor, "b"], penalty: float
) -> Float[Tensor, "b h m f"]:
    """Returns the signal of a segment of which only the last `count` positions are real."""
    length = segment.shape[2]
    place = torch.arange(length, device=segment.device) - (length - count[:, None])
    t = (place.to(segment.dtype) + 0.5) / count.clamp_min(1)[:, None]
    return product(ridge(basis, t.masked_fill(place < 0, torch.nan), penalty)[:, None], segment)


def _contracted(held: Memory, factors: Factors, points: Points | None) -> Float[Tensor, "b h m f"]:
    """Returns the signal contracted to [0, tau], read at points; parts with much attention get more points."""
    if points is None:
        return product(factors.past, held.signal)
    with torch.no_grad():
        drawn = draw(held.histogram, points.places.to(held.signal), points.within.to(held.signal))
        bumps = evaluate_basis(points.basis, drawn)[:, None]  # b 1 p m
    return product(factors.points, product(bumps, held.signal))
