"""Linear attention with ReLU features of vectors that are turned by the angles of their positions, by native kernels.

Vectors x are turned to [x cos a, x sin a]. Cosine and sine of angles between 0 and pi/2 are not negative, so that

    relu([q cos a, q sin a]) . relu([k cos b, k sin b]) = relu(q) . relu(k) cos(a - b)

Turned vectors are twice as wide as their inputs. They are made for one block of positions at a time, and again in the
backward, so that they stay in the cache and none are kept.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops import pages
from subquad.ops.autocast import needs_gradient, outside_autocast, precise
from subquad.ops.linear.fused import Back, FusedInputs, FusedMaps
from subquad.ops.linear.layout import NO_STATE, Parts
from subquad.ops.linear.native import both_or_none
from subquad.ops.linear.sums import LinearState, block_length, blocks
from subquad.ops.scratch import Scratch
from subquad.types import Fused

BLOCK = 2048
"""Largest number of positions whose vectors are turned together."""
RELU = FusedMaps(Fused("relu"), Fused("relu"))


class Turns(NamedTuple):
    """Cosine and sine of the angle of each position."""

    queries: Float[Tensor, "b n 2"]
    keys: Float[Tensor, "b s 2"]


def turn(x: Float[Tensor, "b h n d"], by: Float[Tensor, "b n 2"]) -> Float[Tensor, "b h n d2"]:
    """Returns [x cos a, x sin a] of each position, in the type of sums."""
    # the heads of a position are next to each other in memory, so that merging heads is free
    by_position = x.transpose(1, 2).to(precise(x.dtype))
    return (by_position[..., None, :] * by[:, :, None, :, None]).flatten(-2).transpose(1, 2)


def turn_back(gradient: Float[Tensor, "b h n d2"], by: Float[Tensor, "b n 2"]) -> Float[Tensor, "b h n d"]:
    """Returns the gradient of x from that of the turned x."""
    cosine, sine = by[:, None].chunk(2, dim=-1)
    along, across = gradient.chunk(2, dim=-1)
    return torch.mul(along, cosine).addcmul_(across, sine)


def attend(q: Tensor, k: Tensor, v: Tensor, turns: Turns, keep: Bool[Tensor, "b s"] | None = None) -> Tensor:
    """Returns the mixed values, where every query sees every kept key. There must be keys."""
    if needs_gradient(q, k, v):
        mixed: Tensor = _Bidirectional.apply(q, k, v, *turns, keep)  # type: ignore[no-untyped-call]
        return mixed
    return _read(q, v, turns.queries, _sum_keys(k, v, turns.keys, keep), None)


def attend_causal(
    q: Tensor, k: Tensor, v: Tensor, turns: Turns, state: LinearState | None = None, keep: Bool[Tensor, "b n"] | None = None
) -> tuple[Tensor, LinearState]:
    """Returns the mixed values and the new state; position i sees the keys in `state` and those up to i. Not for none."""
    before: Parts = NO_STATE if state is None else state
    if needs_gradient(q, k, v, *(state or ())):
        mixed, *after = _Causal.apply(q, k, v, *turns, keep, *before)  # type: ignore[no-untyped-call]
        return mixed, LinearState(*after)
    mixed, states = _mix_causal(q, k, v, turns, keep, before, None)
    return mixed, states[-1]


class _Blocks:
    """Blocks of positions, and memory that each of them uses again: large memory costs more to get than to use."""

    def __init__(self, x: Tensor) -> None:
        self.scratch = Scratch(precise(x.dtype))
        self.size = min(BLOCK, block_length(x, 2 * x.shape[-1], BLOCK))

    def of(self, length: int) -> Iterator[slice]:
        """Yields the blocks of so many positions. The memory of one is free when the next one begins."""
        for block in blocks(length, self.size):
            self.scratch.start()
            yield block

    def turn(self, x: Tensor, by: Tensor, block: slice) -> Tensor:
        """Returns the turned vectors of a block, without gradients."""
        part = x[:, :, block].transpose(1, 2)
        b, n, h, d = part.shape
        out = self.scratch.take(b, n, h, 2, d)
        torch.mul(part[..., None, :], by[:, block, None, :, None], out=out)
        return out.flatten(-2).transpose(1, 2)

    def new_like(self, x: Tensor) -> Tensor:
        """Returns memory of the shape and type of x."""
        b, h, n, d = x.shape
        is_ours = x.dtype == precise(x.dtype)
        return self.scratch.take(b, n, h, d).transpose(1, 2) if is_ours else torch.empty_like(x)

    def inputs(
        self, q: Tensor, k: Tensor, v: Tensor, turns: Turns, keep: Tensor | None, queries: slice, keys: slice
    ) -> FusedInputs:
        """Returns the calls of kernels on some queries and keys, which are turned for them."""
        turned_q, turned_k = self.turn(q, turns.queries, queries), self.turn(k, turns.keys, keys)
        return FusedInputs(turned_q, turned_k, v[:, :, keys], RELU, None if keep is None else keep[:, keys])


NO_POSITIONS = slice(0, 0)


def _sum_keys(k: Tensor, v: Tensor, by: Tensor, keep: Tensor | None) -> LinearState:
    state: Parts = NO_STATE
    by_block = _Blocks(k)
    for block in by_block.of(k.shape[2]):
        state = by_block.inputs(k, k, v, Turns(by, by), keep, NO_POSITIONS, block).sum_keys(state)
    return LinearState(*state)  # type: ignore[arg-type]


def _read(q: Tensor, v: Tensor, by: Tensor, state: LinearState, inverse: Tensor | None) -> Tensor:
    """Returns the mixed values of queries that see all keys in `state`, and writes 1 / denominators into `inverse`."""
    mixed, by_block = _new_mixed(q, v), _Blocks(q)
    for block in by_block.of(q.shape[2]):
        inputs = by_block.inputs(q, q, v, Turns(by, by), None, block, NO_POSITIONS)
        mixed[:, :, block] = inputs.mix_sums(state, None if inverse is None else _part_of(inverse, q, block))
    return mixed


def _mix_causal(
    q: Tensor, k: Tensor, v: Tensor, turns: Turns, keep: Tensor | None, before: Parts, inverse: Tensor | None
) -> tuple[Tensor, list[LinearState]]:
    """Returns the mixed values, and the state after each block."""
    mixed, state, states, by_block = _new_mixed(q, v), before, [], _Blocks(q)
    for block in by_block.of(q.shape[2]):
        inputs = by_block.inputs(q, k, v, turns, keep, block, block)
        mixed[:, :, block], state = inputs.mix_causal(state, None if inverse is None else _part_of(inverse, q, block))
        states.append(state)
    return mixed, states


def _new_mixed(q: Tensor, v: Tensor) -> Float[Tensor, "b h n e"]:
    """Memory for mixed values, with the heads of a position next to each other, so that merging heads is free."""
    b, h, n, _ = q.shape
    return pages.new_empty(v, b, n, h, v.shape[3]).transpose(1, 2)


def _new_inverse(q: Tensor) -> Float[Tensor, "bhn"]:
    """Memory for 1 / denominators, block after block."""
    return torch.empty(q.shape[:3].numel(), dtype=precise(q.dtype))


def _part_of(inverse: Tensor, q: Tensor, block: slice) -> Tensor:
    """Returns the 1 / denominators of a block."""
    heads = q.shape[0] * q.shape[1]
    return inverse[heads * block.start : heads * block.stop]


def _new_like(x: Tensor) -> Tensor:
    return pages.in_large_pages(torch.empty_like(x))


class _Bidirectional(torch.autograd.Function):
    """With G and e the gradients of numerator and denominator: dq' = G S^T + e z^T, dk' = v dS^T + dz and dv = k' dS."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, by_queries: Tensor, by_keys: Tensor, keep: Tensor | None
    ) -> Tensor:
        state, inverse = _sum_keys(k, v, by_keys, keep), _new_inverse(q)
        mixed = _read(q, v, by_queries, state, inverse)
        ctx.save_for_backward(q, k, v, by_queries, by_keys, keep, mixed, inverse, *state)
        return mixed

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, by_queries, by_keys, keep, mixed, inverse, *held = ctx.saved_tensors
        state, (dq, dk, dv) = LinearState(*held), map(_new_like, (q, k, v))
        d_state = LinearState(torch.zeros_like(state.sums), torch.zeros_like(state.norms), state.peak)
        by_block = _Blocks(q)
        for block in by_block.of(q.shape[2]):
            inputs = by_block.inputs(q, q, v, Turns(by_queries, by_queries), None, block, NO_POSITIONS)
            back = Back(mixed[:, :, block], gradient[:, :, block], _part_of(inverse, q, block))
            turned = inputs.back_to_queries(back, state, d_state, by_block.new_like)
            dq[:, :, block] = turn_back(turned, by_queries[:, block])
        for block in by_block.of(k.shape[2]):
            inputs = by_block.inputs(k, k, v, Turns(by_keys, by_keys), keep, NO_POSITIONS, block)
            turned, dv[:, :, block] = inputs.back_to_keys(d_state, by_block.new_like)
            dk[:, :, block] = turn_back(turned, by_keys[:, block])
        return dq, dk, dv, None, None, None


class _Causal(torch.autograd.Function):
    """The gradient of a causal sum is a causal sum, reversed in time for k and v. States before blocks are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        by_queries: Tensor,
        by_keys: Tensor,
        keep: Tensor | None,
        sums: Tensor | None,
        norms: Tensor | None,
        peak: Tensor | None,
    ) -> tuple[Tensor, ...]:
        turns, inverse = Turns(by_queries, by_keys), _new_inverse(q)
        mixed, states = _mix_causal(q, k, v, turns, keep, (sums, norms, peak), inverse)
        starts = [part for state in states[:-1] for part in state]
        ctx.save_for_backward(q, k, v, *turns, keep, mixed, inverse, sums, norms, peak, *starts)
        ctx.mark_non_differentiable(states[-1].peak)
        ctx.set_materialize_grads(False)
        return mixed, *states[-1]

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor | None, d_sums: Tensor | None, d_norms: Tensor | None, _d_peak: None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, by_queries, by_keys, keep, mixed, inverse, *held = ctx.saved_tensors
        turns, (dq, dk, dv) = Turns(by_queries, by_keys), map(_new_like, (q, k, v))
        gradient = torch.zeros_like(mixed) if gradient is None else gradient
        later: Parts | None = None
        by_block = _Blocks(q)
        for number, block in reversed(list(enumerate(blocks(q.shape[2], by_block.size)))):
            by_block.scratch.start()
            inputs, before = by_block.inputs(q, k, v, turns, keep, block, block), held[3 * number : 3 * number + 3]
            back = Back(mixed[:, :, block], gradient[:, :, block], _part_of(inverse, q, block))
            later = both_or_none(d_sums, d_norms, inputs) if later is None else later
            turned_q, turned_k, dv[:, :, block], sums, norms = inputs.back_causal(
                back, before, later, has_state=before[0] is not None, new_like=by_block.new_like
            )
            dq[:, :, block] = turn_back(turned_q, by_queries[:, block])
            dk[:, :, block] = turn_back(turned_k, by_keys[:, block])
            later = (sums, norms, None)
        return dq, dk, dv, None, None, None, sums, norms, None
