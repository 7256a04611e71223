"""Attention to near keys and to the sums of far ones, under one normaliser."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from subquad.ops.autocast import needs_gradient, precise, prefers_parallel, product
from subquad.ops.hybrid.sums import cut, cut_features, far_sums, features_of
from subquad.ops.linear.sums import LinearState, finite, reciprocal
from subquad.ops.scratch import WORKING_SET, Scratch
from subquad.types import Features, Maps

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
    maps: Maps,
    state: LinearState | None,
    total: Int[Tensor, "b"],
    log_gain: Float[Tensor, "h"],
    block: int,
) -> tuple[Float[Tensor, "b h n e"], LinearState | None]:
    """The mixed values of sequences whose first `total` positions are real; causal if there is a state of those before.

    The state after it holds all blocks before the last two, of which the very last one may be empty.
    """
    n, dtype, causal = k.shape[2], precise(k.dtype), state is not None
    q, k, v = (x.to(dtype) for x in (q, k, v))
    valid = torch.arange(n, device=k.device) < total[:, None]
    at_once = prefers_parallel(q) or needs_gradient(q, k, v, log_gain, *maps.weights())
    scratch = None if at_once else Scratch(dtype)
    parts = _stretches(q, block, at_once=at_once)
    full = not at_once and bool(valid.all())
    sums, peak, after = far_sums(k, v, maps.keys, state, None if full else valid, total, block, parts, scratch)
    mixed = []
    for part, rows in parts:
        queries = cut_features(features_of(maps.queries, q[:, :, rows], scratch), block)
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
        up_to_itself = torch.ones(block, block, dtype=torch.bool, device=k.device).tril()
        seen = seen & torch.cat([torch.ones_like(up_to_itself), up_to_itself], dim=1)
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
