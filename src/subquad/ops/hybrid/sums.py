"""The sums of far keys' features and values, block by block."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from subquad.ops.autocast import outside_autocast, prefers_parallel, product
from subquad.ops.linear.sums import LinearState, finite
from subquad.ops.scratch import Scratch
from subquad.types import FeatureFunction, Features


def features_of(phi: FeatureFunction, x: Tensor, scratch: Scratch | None) -> Features:
    """The features of a block, in scratch memory if there is some."""
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
    """For each block the sums of what is neither in it nor beside it, and the state after all if it is causal."""
    made = [
        _block_sums(features_of(phi, k[:, :, at], scratch), v[:, :, at], None if valid is None else valid[:, at], block)
        for _, at in parts
    ]
    blocks, peaks = (torch.cat(each, dim=2) if len(each) > 1 else each[0] for each in zip(*made, strict=True))
    if state is None and not phi.has_exponent and not prefers_parallel(k):
        return _Around.apply(blocks), peaks, None  # type: ignore[no-untyped-call]
    sums, peak = _before(blocks, peaks, state)  # of t + 1 blocks
    if state is not None:
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


def fold(state: LinearState, k: Float[Tensor, "b h c d"], v: Float[Tensor, "b h c e"], phi: FeatureFunction) -> LinearState:
    """The state with one more block in it."""
    valid = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    sums, peaks = _block_sums(phi(k.to(state.sums.dtype)), v.to(state.sums.dtype), valid, k.shape[2])
    return _state(*_add(_join(state)[:, :, None], state.peak[:, :, None], sums, peaks))


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


def _add(sums: Tensor, peak: Tensor, others: Tensor, other_peak: Tensor) -> tuple[Tensor, Tensor]:
    """Two sums, each relative to its own peak."""
    higher = torch.maximum(peak, other_peak)
    fades = (torch.exp2(each - finite(higher))[..., None, None] for each in (peak, other_peak))
    return sums * next(fades) + others * next(fades), higher


def _join(state: LinearState) -> Float[Tensor, "b h m f"]:
    return torch.cat([state.sums, state.norms[..., None]], dim=-1)


def _state(sums: Float[Tensor, "b h 1 m f"], peak: Float[Tensor, "b h 1"]) -> LinearState:
    return LinearState(sums[:, :, 0, :, :-1], sums[:, :, 0, :, -1], peak[:, :, 0])


def _at(x: Float[Tensor, "b h t *m"], place: Int[Tensor, "b"]) -> Float[Tensor, "b h 1 *m"]:
    """x[b, :, place[b]]."""
    where = place.view(-1, *[1] * (x.ndim - 1)).expand(-1, x.shape[1], 1, *x.shape[3:])
    return x.gather(2, where)


def cut_features(features: Features, block: int) -> Features:
    """Features in blocks, the last block filled up."""
    exponent = features.exponent
    return Features(cut(features.values, block), None if exponent is None else cut(exponent, block))


def cut(x: Shaped[Tensor, "b h n m"], block: int, padding: float = 0.0) -> Shaped[Tensor, "b h t c m"]:
    """Positions in blocks, the last block filled up with `padding`."""
    count = -(-x.shape[2] // block)
    missing = count * block - x.shape[2]
    filled = F.pad(x, (0, 0, 0, missing), value=padding) if missing else x
    return filled.unflatten(2, (count, block))
