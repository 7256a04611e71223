"""Exchanges of states: sums over keys, and the signal of a continuous memory."""

import math

import torch
from torch import Tensor

from subquad.ops.linear import LinearState
from subquad.ops.linear.sums import finite
from subquad.parallel.group import flat, unflat
from subquad.parallel.prefixes import sum_before
from subquad.parallel.stretches import Stretch
from subquad.parallel.trips import Exchange, Tensors, Trip


def states_before(state: LinearState, stretch: Stretch, *, has_exponent: bool, after: bool = False) -> Trip:
    """Begins to fetch the sums over the keys of all stretches before this one, or after it.

    `has_exponent` says whether features have exponents, and the sums thus a peak that is -inf where there are no keys.
    """
    return Trip(stretch.group, _StatesBefore(stretch, -math.inf if has_exponent else 0.0, after=after), *state)


def whole_state(state: LinearState, stretch: Stretch) -> Trip:
    """Begins to fetch the sums over the keys of all stretches."""
    return Trip(stretch.group, _WholeState(stretch), *state)


def signals_before(signal: Tensor, past: Tensor, segment: int, stretch: Stretch) -> Trip:
    """Begins to fetch the signal of a continuous memory after all stretches before this one.

    Args:
        signal: the signal after this stretch if nothing was written before it, or for the first stretch simply after it.
        past: the matrix that contracts a signal when a segment is written.
        segment: number of positions of a segment; stretches begin at multiples of it.
        stretch: the stretch that this process holds.
    """
    return Trip(stretch.group, _SignalsBefore(stretch, past, segment), signal)


def total(stretch: Stretch, *tensors: Tensor) -> Trip:
    """Begins to sum tensors over all processes."""
    return Trip(stretch.group, _Total(stretch), *tensors)


class _StatesBefore(Exchange):
    """P_r = sum over s < r of 2^(peak_s - peak of P_r) S_s, for sums and norms S_s relative to 2^peak_s.

    Thus dS_s = sum over r > s of 2^(peak_s - peak of P_r) dP_r: the same kind of sum from the other side, of gradients
    relative to 2^(-peak of P_r). As P_s+1 has the lowest peak of these, which is at least peak_s, no factor exceeds 1.
    """

    constant = (2,)

    def __init__(self, stretch: Stretch, lowest: float, *, after: bool) -> None:
        self.stretch, self.lowest, self.after = stretch, lowest, after

    def forward(self, *tensors: Tensor) -> Tensors:
        sums, norms, peak = tensors
        self.peak = peak
        before = self._sum(sums, norms, peak, self.after)
        if before is None:
            self.summed_peak = torch.full_like(peak, -math.inf)
            return torch.zeros_like(sums), torch.zeros_like(norms), torch.full_like(peak, self.lowest)
        self.summed_peak = before[2]
        return before

    def backward(self, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_sums, d_norms, _ = gradients
        level = torch.where(self.summed_peak == -math.inf, -math.inf, -self.summed_peak)
        later = self._sum(d_sums, d_norms, level, not self.after)
        if later is None:
            return torch.zeros_like(d_sums), torch.zeros_like(d_norms), None
        factor = torch.exp2(self.peak + later[2])
        return later[0] * factor[..., None, None], later[1] * factor[..., None], None

    def _sum(self, sums: Tensor, norms: Tensor, peak: Tensor, backwards: bool) -> tuple[Tensor, Tensor, Tensor] | None:
        like = sums, norms, peak

        def join(near: Tensor, far: Tensor, _: range) -> Tensor:
            return flat(*add_states(LinearState(*unflat(near, *like)), LinearState(*unflat(far, *like))))

        message = sum_before(self.stretch.group, flat(*like), join, backwards=backwards)
        if message is None:
            return None
        summed = unflat(message, *like)
        return summed[0], summed[1], summed[2]


def add_states(state: LinearState, other: LinearState) -> LinearState:
    """Adds two sums over keys that are relative to different peaks."""
    peak = torch.maximum(state.peak, other.peak)
    share, other_share = (torch.exp2(part.peak - finite(peak)) for part in (state, other))
    return LinearState(
        state.sums * share[..., None, None] + other.sums * other_share[..., None, None],
        state.norms * share[..., None] + other.norms * other_share[..., None],
        peak,
    )


class _WholeState(Exchange):
    """W = sum over s of 2^(peak_s - peak) S_s with the largest peak, so dS_s = 2^(peak_s - peak) sum over r of dW_r."""

    constant = (2,)

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch

    def forward(self, *tensors: Tensor) -> Tensors:
        sums, norms, peak = tensors
        highest = self.stretch.group.largest(peak.clone())
        self.share = torch.exp2(peak - finite(highest))
        faded = flat(sums * self.share[..., None, None], norms * self.share[..., None])
        whole = unflat(self.stretch.group.sum(faded), sums, norms)
        return whole[0], whole[1], highest

    def backward(self, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_sums, d_norms, _ = gradients
        summed = unflat(self.stretch.group.sum(flat(d_sums, d_norms)), d_sums, d_norms)
        return summed[0] * self.share[..., None, None], summed[1] * self.share[..., None], None


class _SignalsBefore(Exchange):
    """B_r = A^n_(r-1) B_(r-1) + b_(r-1), with A the contraction, n_s the segments of stretch s and b_s what it adds.

    Joining two runs of stretches takes the power of A for all segments of the nearer one; gradients take its transpose.
    """

    def __init__(self, stretch: Stretch, past: Tensor, segment: int) -> None:
        self.stretch, self.past, self.segment = stretch, past.detach(), segment

    def forward(self, *tensors: Tensor) -> Tensors:
        (signal,) = tensors
        before = self._sum(signal, backwards=False)
        return (torch.zeros_like(signal) if before is None else before,)

    def backward(self, *gradients: Tensor) -> tuple[Tensor, ...]:
        (gradient,) = gradients
        later = self._sum(gradient, backwards=True)
        return (torch.zeros_like(gradient) if later is None else later,)

    def _sum(self, signal: Tensor, *, backwards: bool) -> Tensor | None:
        def join(near: Tensor, far: Tensor, ranks: range) -> Tensor:
            written = (self.stretch.points[ranks[-1] + 1] - self.stretch.points[ranks[0]]) // self.segment
            power = torch.linalg.matrix_power(self.past, written)
            faded = (power.mT if backwards else power) @ far.view(signal.shape)
            return (near.view(signal.shape) + faded).reshape(-1)

        message = sum_before(self.stretch.group, signal.reshape(-1), join, backwards=backwards)
        return None if message is None else message.view(signal.shape)


class _Total(Exchange):
    """The sum over all processes, whose gradient is the sum of the gradients of all processes."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch

    def forward(self, *tensors: Tensor) -> Tensors:
        return tuple(unflat(self.stretch.group.sum(flat(*tensors)), *tensors))

    def backward(self, *gradients: Tensor) -> Tensors:
        return self.forward(*gradients)
