"""Attention to near keys and to the sums over far keys, with one normaliser."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from subquad.ops.autocast import needs_gradient, precise, prefers_parallel, product
from subquad.ops.hybrid.sums import add_state, cut, cut_features, far_sums, features_of
from subquad.ops.linear.sums import LinearState, finite, reciprocal
from subquad.ops.scratch import WORKING_SET, Scratch
from subquad.types import Features, Maps

LOG2_E = math.log2(math.e)
HIGHEST = 100.0  # largest x of the far keys' factor 2**x: sums that need a larger one have underflowed
HIGHEST_OF_NONE = 60.0  # largest x without far keys: only the gradient is multiplied, and must not overflow


class Near(NamedTuple):
    """Near keys of each block: base-2 logarithms of their weights (-inf for hidden keys), and their values."""

    scores: Float[Tensor, "b h t c w"]
    values: Float[Tensor, "b h t w e"]


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    maps: Maps,
    state: LinearState | None,
    total: Int[Tensor, "b"],
    log_gain: Float[Tensor, "h"],
    block: int,
    outside: LinearState | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState | None]:
    """Returns the mixed values of sequences whose first `total` positions are real; causal if `state` is given.

    The returned state sums all blocks before the last two; the last one may be empty. `outside` sums further far keys, which
    all queries of the bidirectional form see.
    """
    n, dtype, causal = k.shape[2], precise(k.dtype), state is not None
    q, k, v = (x.to(dtype) for x in (q, k, v))
    valid = torch.arange(n, device=k.device) < total[:, None]
    at_once = prefers_parallel(q) or needs_gradient(q, k, v, log_gain, *maps.weights())
    scratch = None if at_once else Scratch(dtype)
    parts = _ranges(q, block, at_once=at_once)
    full = not at_once and bool(valid.all())
    sums, peak, after = far_sums(k, v, maps.keys, state, None if full else valid, total, block, parts, scratch)
    if outside is not None:
        sums, peak = add_state(sums, peak, outside)
    mixed = []
    for part, rows in parts:
        queries = cut_features(features_of(maps.queries, q[:, :, rows], scratch), block)
        near = _near(q, k, v, None if full else valid, block, part, causal=causal)
        mixed_part = mix(queries, sums[:, :, part], peak[:, :, part], near, log_gain)
        mixed.append(mixed_part.flatten(2, 3)[:, :, : q[:, :, rows].shape[2]].transpose(1, 2))
    # the heads of a position are next to each other in memory, so that merging heads is free
    return torch.cat(mixed, dim=1).transpose(1, 2), after


def _ranges(q: Tensor, block: int, *, at_once: bool) -> list[tuple[slice, slice]]:
    """Returns the ranges of blocks, and of positions, that are processed together."""
    b, h, n, _ = q.shape
    count = -(-n // block)
    size = count if at_once else max(1, WORKING_SET // max(1, b * h * block * 3 * block))
    starts = range(0, count, size) if size < count else [0]
    return [(slice(at, min(count, at + size)), slice(at * block, min(n, (at + size) * block))) for at in starts]


def mix(
    queries: Features,
    sums: Float[Tensor, "b h t m f"],
    peak: Float[Tensor, "b h t"],
    near: Near,
    log_gain: Float[Tensor, "h"],
) -> Float[Tensor, "b h t c e"]:
    """Mixes near values and the sums over far keys, whose last column holds the norms, for blocks of queries."""
    far = product(queries.values, sums)
    level = finite(peak)[..., None, None] + (LOG2_E * log_gain)[:, None, None, None]
    level = level if queries.exponent is None else level + queries.exponent
    height = level.detach() + far[..., -1:].detach().abs().log2()  # -inf without far keys
    top = finite(torch.maximum(near.scores.detach().amax(-1, keepdim=True), height))
    weights = near.scores.sub_(top).exp2_()  # in place: they are as large as all other tensors together
    limit = torch.where(height == -math.inf, HIGHEST_OF_NONE, HIGHEST)
    far = far * torch.exp2(torch.minimum(level - top, limit))
    mixed = product(weights, near.values) + far[..., :-1]
    return mixed * reciprocal(weights.sum(-1, keepdim=True) + far[..., -1:])


def _near(
    q: Tensor, k: Tensor, v: Tensor, valid: Bool[Tensor, "b n"] | None, block: int, part: slice, *, causal: bool
) -> Near:
    """Returns the near keys of the blocks in `part`: own block, the one before and, unless causal, the one after.

    Without `valid`, all positions are real.
    """
    keys, values = (_beside(x, block, part, causal=causal) for x in (k, v))
    queries = cut(q[:, :, part.start * block : part.stop * block] * (LOG2_E / math.sqrt(q.shape[-1])), block)
    scores = product(queries, keys.mT)
    inside = part.start > 0 and (part.stop + 1) * block <= k.shape[2]
    if valid is None and inside and not causal:
        return Near(scores, values)
    real = torch.ones_like(k[:, 0, :, 0], dtype=torch.bool) if valid is None else valid
    seen = _beside(real[:, None, :, None], block, part, causal=causal).mT  # b 1 t 1 w
    if causal:
        up_to_itself = torch.ones(block, block, dtype=torch.bool, device=k.device).tril()
        seen = seen & torch.cat([torch.ones_like(up_to_itself), up_to_itself], dim=1)
    return Near(scores.masked_fill(~seen, -math.inf), values)


def _beside(x: Shaped[Tensor, "b h n m"], block: int, part: slice, *, causal: bool) -> Shaped[Tensor, "b h t w m"]:
    """Returns each block joined with the one before and, unless causal, the one after; zeros for missing blocks."""
    behind = 0 if causal else 1
    first = max(0, part.start - 1)
    blocks = cut(x[:, :, first * block : (part.stop + behind) * block], block)
    count = part.stop - part.start + 1 + behind
    front = first - part.start + 1
    blocks = F.pad(blocks, (0, 0, 0, 0, front, count - front - blocks.shape[2]))
    return torch.cat([blocks[:, :, at : at + count - 1 - behind] for at in range(2 + behind)], dim=3)
