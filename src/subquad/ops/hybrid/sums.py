"""Sums of far keys' features and values, for each block."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from subquad.ops.autocast import outside_autocast, prefers_parallel, product
from subquad.ops.linear.scan import running_sums
from subquad.ops.linear.sums import LinearState, finite
from subquad.ops.scratch import Scratch
from subquad.types import FeatureFunction, Features


def features_of(phi: FeatureFunction, x: Tensor, scratch: Scratch | None) -> Features:
    """Returns the features of a block, in scratch memory if given."""
    if scratch is None:
        return phi(x)
    scratch.start()
    return phi(x, scratch)


def far_sums(
    k: Tensor,
    v: Tensor,
    phi: FeatureFunction,
    state: LinearState | None,
    valid: Bool[Tensor, "b n"] | None,
    total: Int[Tensor, "b"],
    block: int,
    parts: Sequence[tuple[slice, slice]],
    scratch: Scratch | None,
) -> tuple[Float[Tensor, "b h t m f"], Float[Tensor, "b h t"], LinearState | None]:
    """Returns for each block the sums over far blocks and their peaks, and the final state if `state` is given."""
    part_sums = [
        _block_sums(features_of(phi, k[:, :, at], scratch), v[:, :, at], None if valid is None else valid[:, at], block)
        for _, at in parts
    ]
    blocks, peaks = (
        torch.cat(tensors, dim=2) if len(tensors) > 1 else tensors[0] for tensors in zip(*part_sums, strict=True)
    )
    if state is None and not phi.has_exponent and not prefers_parallel(k):
        return _Around.apply(blocks), peaks, None  # type: ignore[no-untyped-call]
    sums, peak = _before(blocks, peaks, state)  # t + 1 entries
    if state is not None:
        last = total // block
        return sums[:, :, :-1], peak[:, :, :-1], _state(_at(sums, last), _at(peak, last))
    later, later_peak = _before(blocks.flip(2), peaks.flip(2), None)
    return *_add(sums[:, :, :-1], peak[:, :, :-1], later[:, :, :-1].flip(2), later_peak[:, :, :-1].flip(2)), None


class _Around(torch.autograd.Function):
    """Sum over all blocks except a block and its neighbours, for each block, for features without exponents.

    Its gradient is the same sum, since being near is symmetric.
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


def fold(state: LinearState, k: Float[Tensor, "b h c d"], v: Float[Tensor, "b h c e"], phi: FeatureFunction) -> LinearState:
    """Returns the state with one more block added to its sums."""
    valid = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    sums, peaks = _block_sums(phi(k.to(state.sums.dtype)), v.to(state.sums.dtype), valid, k.shape[2])
    return _state(*_add(_join(state)[:, :, None], state.peak[:, :, None], sums, peaks))


def _block_sums(keys: Features, v: Tensor, valid: Bool[Tensor, "b n"] | None, block: int) -> tuple[Tensor, Tensor]:
    """Returns what each block adds (values and norms in one tensor) relative to 2**peak, and the peaks."""
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
    """Returns sums over the blocks up to two before, with their peaks, for each block and one after the last."""
    first = torch.zeros_like(blocks[:, :, :1]) if state is None else _join(state)[:, :, None]
    lowest = torch.full_like(peaks[:, :, :1], -math.inf) if state is None else state.peak[:, :, None]
    if not blocks.shape[2]:
        return first, lowest
    added, heights = torch.cat([first, blocks[:, :, :-1]], dim=2), torch.cat([lowest, peaks[:, :, :-1]], dim=2)
    highest = heights.cummax(2).values
    shares = torch.exp2(heights - finite(highest))[..., None, None]
    if prefers_parallel(blocks):
        summed = running_sums((added * shares).flatten(3), highest).unflatten(3, added.shape[3:])
    else:
        fades = torch.exp2(F.pad(highest, (1, 0), value=-math.inf)[..., :-1] - finite(highest))[..., None, None]
        parts = [added[:, :, 0] * shares[:, :, 0]]
        for at in range(1, added.shape[2]):
            parts.append(torch.addcmul(parts[-1] * fades[:, :, at], added[:, :, at], shares[:, :, at]))
        summed = torch.stack(parts, dim=2)
    # nothing comes before the first two blocks except the state
    return torch.cat([first, summed], dim=2), torch.cat([lowest, highest], dim=2)


def _add(sums: Tensor, peak: Tensor, others: Tensor, other_peak: Tensor) -> tuple[Tensor, Tensor]:
    """Adds two sums that are relative to different peaks; returns the sum and its peak."""
    higher = torch.maximum(peak, other_peak)
    fades = (torch.exp2(part_peak - finite(higher))[..., None, None] for part_peak in (peak, other_peak))
    return sums * next(fades) + others * next(fades), higher


def add_state(
    sums: Float[Tensor, "b h t m f"], peak: Float[Tensor, "b h t"], state: LinearState
) -> tuple[Float[Tensor, "b h t m f"], Float[Tensor, "b h t"]]:
    """Adds the sums of a state to those of each block; returns the sums and their peaks."""
    return _add(sums, peak, _join(state)[:, :, None], state.peak.detach()[:, :, None])


def _join(state: LinearState) -> Float[Tensor, "b h m f"]:
    return torch.cat([state.sums, state.norms[..., None]], dim=-1)


def _state(sums: Float[Tensor, "b h 1 m f"], peak: Float[Tensor, "b h 1"]) -> LinearState:
    return LinearState(sums[:, :, 0, :, :-1], sums[:, :, 0, :, -1], peak[:, :, 0])


def _at(x: Float[Tensor, "b h t *m"], place: Int[Tensor, "b"]) -> Float[Tensor, "b h 1 *m"]:
    """Returns x[b, :, place[b]] for each b, as one block."""
    where = place.view(-1, *[1] * (x.ndim - 1)).expand(-1, x.shape[1], 1, *x.shape[3:])
    return x.gather(2, where)


def cut_features(features: Features, block: int) -> Features:
    """Cuts features into blocks; the last block is padded."""
    exponent = features.exponent
    return Features(cut(features.values, block), None if exponent is None else cut(exponent, block))


def cut(x: Shaped[Tensor, "b h n m"], block: int, padding: float = 0.0) -> Shaped[Tensor, "b h t c m"]:
    """Cuts positions into blocks; the last block is filled with `padding`."""
    count = -(-x.shape[2] // block)
    missing = count * block - x.shape[2]
    filled = F.pad(x, (0, 0, 0, missing), value=padding) if missing else x
    return filled.unflatten(2, (count, block))
