"""The equation of block-sparse attention as written: the mask of the pairs of positions that count."""

import torch
from jaxtyping import Bool
from torch import Tensor

from subquad.ops.sparse.patterns import Pattern


def layout(pattern: Pattern, count: int, device: torch.device, *, causal: bool) -> Bool[Tensor, "t t"]:
    """Mask of the pairs of blocks that count, in a sequence of `count` blocks."""
    rows = torch.arange(count, device=device)
    columns = pattern.columns(rows, torch.full_like(rows, count), count, causal=causal)
    seen = torch.zeros(count, count + 1, dtype=torch.bool, device=device)
    seen.scatter_(1, torch.where(columns < 0, count, columns), True)
    seen = seen[:, :count]
    seen[: pattern.dense_rows(causal=causal)] = True
    return seen


def visible(pattern: Pattern, kept: Bool[Tensor, "b n"], block: int, *, causal: bool) -> Bool[Tensor, "b 1 n n"]:
    """Mask of the pairs of positions that count. Blocks consist of kept positions; rows of other positions are empty."""
    masks = []
    for real in kept:
        place = (real.cumsum(0) - 1).clamp(min=0)
        at, count = place // block, -(-int(real.sum()) // block)
        pairs = layout(pattern, max(1, count), kept.device, causal=causal)[at[:, None], at]
        order = place[:, None] >= place if causal else torch.ones_like(pairs)
        masks.append(pairs & order & real[:, None] & real)
    return torch.stack(masks)[:, None]
