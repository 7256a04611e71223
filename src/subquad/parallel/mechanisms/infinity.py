"""The infinity-former over several processes: the signal of the continuous memory travels, and with `previous` a segment."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subquad.attention.checks import check_inputs, check_result
from subquad.ops import streams
from subquad.ops.autocast import needs_gradient, precise, without_autocast
from subquad.ops.memory import Factors
from subquad.ops.packing import Packed
from subquad.ops.streams import InfinityState, Memory
from subquad.parallel.mechanisms.base import Cut, MakeQueries, refuse
from subquad.parallel.positions import edges
from subquad.parallel.states import signals_before
from subquad.parallel.stretches import Stretch


class InfinityCut(Cut):
    """Stretches begin with a segment. Writing is linear in the signal, so each process writes its own segments first."""

    def check(self, options: Any, *, causal: bool) -> None:
        if options.sticky:
            raise refuse(options, "with a sticky memory, which depends on the attention of all queries before")
        if options.divergence:
            raise refuse(options, "with a divergence in the loss, which is a mean over all queries")
        if options.previous and not causal:
            raise refuse(options, "with exact attention to the previous segment in both directions")
        if options.both and not causal:
            raise refuse(options, "with a memory of later segments")

    def multiple(self, options: Any) -> int:
        return int(options.segment)

    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        options = attend.options
        with without_autocast(k):
            trip = signals_before(_written(attend, k, v, stretch), attend.past, options.segment, stretch)
            beside = edges(stretch, options.segment, 0, k, v) if options.previous else None
            q = make_q()
            (signal,) = trip.finish()
            memory = _memory(signal, stretch.start // options.segment, options.bins)
            if causal:
                left = None if beside is None else beside.finish()[:2]
                mixed: Tensor = attend.causal(q, k, v, _state(attend, memory, k, v, left))[0]
                return mixed
            check_inputs(q, k, v, keep, heads=attend.heads, head_dim=attend.head_dim)
            packed = Packed(q, k, v, torch.full((len(k),), k.shape[2], device=k.device), None)
            mixed = attend.aligned(packed, None, memory)
        return check_result(mixed.to(v.dtype), q, k, v, q, k, v)


def _written(attend: Any, k: Tensor, v: Tensor, stretch: Stretch) -> Tensor:
    """Returns the signal after the full segments of the stretch, if nothing was written before it."""
    options = attend.options
    if options.detached:
        k, v = k.detach(), v.detach()
    b, h, n, d = k.shape
    signal = torch.zeros(b, h, options.basis, d + v.shape[3], dtype=precise(k.dtype), device=k.device)
    memory = _memory(signal, 0 if stretch.is_first else 1, options.bins)
    factors = Factors(attend.first, attend.new, attend.kept, attend.past)
    for start in range(0, n - options.segment + 1, options.segment):
        segment = slice(start, start + options.segment)
        is_first = stretch.is_first and start == 0
        memory = streams.write(memory, k[:, :, segment], v[:, :, segment], factors, None, True, first=is_first)
    if n < options.segment and needs_gradient(k, v):
        memory.signal.requires_grad_()  # gradients for earlier stretches pass through every process
    return memory.signal


def _memory(signal: Tensor, written: int, bins: int) -> Memory:
    """Returns a memory of so many segments with this signal."""
    count = torch.full((len(signal),), written, device=signal.device)
    return Memory(signal, signal.new_zeros(len(signal), bins), count)


def _state(attend: Any, memory: Memory, k: Tensor, v: Tensor, left: tuple[Tensor, ...] | None) -> InfinityState:
    """Returns the state before the stretch; `left` holds the keys and values of the segment before it, if it is seen."""
    length = attend.options.segment * (2 if attend.options.previous else 1)
    held_k, held_v = (k[:, :, :0], v[:, :, :0]) if left is None else left
    filled = torch.full((len(k),), held_k.shape[2], device=k.device)
    keys, values = (F.pad(x, (0, 0, 0, length - x.shape[2])) for x in (held_k, held_v))
    return InfinityState(keys, values, memory.signal, memory.histogram, filled, memory.written)
