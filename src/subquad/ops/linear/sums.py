"""Sums that all forms of linear attention share, and the blocks in which a CPU processes a sequence."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.autocast import precise, product
from subquad.ops.scratch import WORKING_SET, Scratch
from subquad.types import FeatureFunction, Features


class LinearState(NamedTuple):
    """State of constant size, equations 10 and 11: the sums over all keys so far.

    Both sums are relative to 2**peak, with peak the largest exponent of a key so far (0 for features without exponents), so
    that they never overflow and do not depend on the future. They are float64 for float64 inputs, else float32.

    Results do not depend on the peak, so autograd treats it as a constant: sums and norms carry the whole gradient.
    """

    sums: Float[Tensor, "b h m e"]  # sum over j of phi(k_j) v_j^T
    norms: Float[Tensor, "b h m"]  # sum over j of phi(k_j)
    peak: Float[Tensor, "b h"]  # largest exponent of a key


def empty_state(k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s e"], phi: FeatureFunction) -> LinearState:
    """Returns the state before the first key."""
    b, h, _, d = k.shape
    m = phi.feature_count(d)
    tensor_options: dict[str, Any] = {"dtype": precise(k.dtype), "device": k.device}
    return LinearState(
        torch.zeros(b, h, m, v.shape[-1], **tensor_options),
        torch.zeros(b, h, m, **tensor_options),
        torch.full((b, h), -math.inf if phi.has_exponent else 0.0, **tensor_options),
    )


def finite(exponent: Tensor) -> Tensor:
    """Replaces the exponent -inf, which stands for no key yet, by 0, so that it can be subtracted."""
    return torch.where(exponent == -math.inf, 0.0, exponent)


def or_infinite(total: Tensor) -> Tensor:
    """Replaces denominators that are zero or underflowed by infinity.

    A row divided by infinity is zero, and so is its gradient.
    """
    nothing = total.abs() < torch.finfo(total.dtype).tiny ** 0.8  # 4.5e-31 in float32, as in native/chunk.h
    return total.masked_fill(nothing, math.inf)


def reciprocal(total: Tensor) -> Tensor:
    """Returns 1 / total, and 0 for totals that are zero or underflowed."""
    return or_infinite(total).reciprocal()


def along(x: Float[Tensor, "*b n m"], norms: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n 1"]:
    """Returns x_i . norms for every i, as row times matrix: matrix times column is up to ten times slower on a CPU."""
    return product(norms[..., None, :], x.mT).mT


def across(x: Float[Tensor, "*b n m"], factors: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b m"]:
    """Returns the sum over i of factor_i x_i."""
    return (factors.mT @ x)[..., 0, :]


def block_length(x: Float[Tensor, "b h n d"], features: int, most: int) -> int:
    """Number of positions in a block: as many as the working set allows, at most `most`."""
    rows = WORKING_SET // max(1, x.shape[0] * x.shape[1] * features)
    return max(64, min(most, rows // 64 * 64))


def blocks(length: int, size: int) -> Iterator[slice]:
    """Yields the slices [0, size), [size, 2 size), ... up to `length`."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def kept(x: Float[Tensor, "b h s d"], keep: Bool[Tensor, "b s"] | None, block: slice) -> Float[Tensor, "b h c d"]:
    """Returns one block of keys or values in the precise dtype, with zeros for padding."""
    part = x[:, :, block].to(precise(x.dtype))
    return part if keep is None else part.masked_fill(~keep[:, None, block, None], 0.0)


def kept_features(
    phi: FeatureFunction,
    x: Float[Tensor, "b h c d"],
    keep: Bool[Tensor, "b s"] | None,
    block: slice,
    scratch: Scratch | None = None,
) -> Features:
    """Returns the features of one block of keys, with zero weight for padding."""
    values, exponent = phi(x, scratch)
    if keep is not None:
        padding = ~keep[:, None, block, None]
        values = values.masked_fill(padding, 0.0)
        exponent = None if exponent is None else exponent.masked_fill(padding, -math.inf)
    return Features(values, exponent)


def flat_keys(
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    phi: FeatureFunction,
    keep: Bool[Tensor, "b s"] | None,
    block: slice,
    scratch: Scratch,
) -> tuple[Float[Tensor, "bh c m"], Float[Tensor, "bh c e"], Float[Tensor, "bh c 1"] | None]:
    """Returns features, values and exponents of one block of keys, with batch and heads in one dimension."""
    features = kept_features(phi, kept(k, keep, block), keep, block, scratch)
    exponent = None if features.exponent is None else features.exponent.flatten(0, 1)
    return features.values.flatten(0, 1), kept(v, keep, block).flatten(0, 1), exponent


def add_block(
    sums: Tensor, norms: Tensor, peak: Tensor, keys: Tensor, values: Tensor, exponent: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds a block of keys to sums, norms and peak, in place, with batch and heads in one dimension."""
    if exponent is None:
        return sums.baddbmm_(keys.mT, values), norms.add_(keys.sum(1)), peak
    higher = torch.maximum(peak, exponent.amax(1, keepdim=True))
    fade, share = torch.exp2(peak - finite(higher)), torch.exp2(exponent - finite(higher))
    norms = norms.mul_(fade[..., 0]).add_(across(keys, share))
    return sums.mul_(fade).baddbmm_(keys.mT, values * share), norms, higher


def new_mixed(q: Float[Tensor, "b h n d"], v: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h n e"]:
    """Allocates the result with the layout of the queries if possible, so that merging split heads needs no copy."""
    if q.shape[-1] == v.shape[-1] and q.dtype == v.dtype:
        return torch.empty_like(q)
    b, h, n, _ = q.shape
    if q.stride(1) < q.stride(2):  # the heads of a position are next to each other in memory
        return v.new_empty(b, n, h, v.shape[-1]).transpose(1, 2)
    return v.new_empty(b, h, n, v.shape[-1])


def landing(x: Float[Tensor, "b h n e"], block: slice, scratch: Scratch) -> Float[Tensor, "bh c e"]:
    """Returns memory for a block of x with batch and heads in one dimension: a view of x if possible, else scratch."""
    part = x[:, :, block]
    b, h, c, e = part.shape
    if x.dtype == precise(x.dtype) and (b == 1 or part.stride(0) == h * part.stride(1)):
        return part.flatten(0, 1)
    return scratch.take(b * h, c, e)


def land(x: Float[Tensor, "b h n e"], block: slice, written: Float[Tensor, "bh c e"]) -> None:
    """Copies a block that was written to scratch memory into x; does nothing for a view of x."""
    part = x[:, :, block]
    if written.data_ptr() != part.data_ptr():
        part.copy_(written.unflatten(0, part.shape[:2]))


def quotient(
    gradient: Float[Tensor, "*b c e"], mixed: Float[Tensor, "*b c e"], inverse: Float[Tensor, "*b c 1"], scratch: Scratch
) -> tuple[Float[Tensor, "*b c e"], Float[Tensor, "*b c 1"]]:
    """Returns G and e, the gradients of numerator and denominator, from the gradient of their quotient."""
    d_mixed = torch.mul(gradient.to(inverse.dtype), inverse, out=scratch.take(*gradient.shape))
    return d_mixed, torch.linalg.vecdot(d_mixed, mixed.to(inverse.dtype)).neg_()[..., None]


class WeightGradients:
    """Accumulates the gradients of a feature function's weights over blocks."""

    def __init__(self, phi: FeatureFunction) -> None:
        self.phi = phi
        self.totals = [torch.zeros_like(weight) for weight in phi.weights()]

    def pullback(self, x: Tensor, features: Features, gradient: Tensor) -> Tensor:
        for_x, *for_weights = self.phi.pullback(x, features, gradient)
        for total, part in zip(self.totals, for_weights, strict=True):
            total += part
        return for_x
