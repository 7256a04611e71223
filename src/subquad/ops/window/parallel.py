"""Attention in a sliding window with all blocks at once, in plain PyTorch, for GPUs and compilers."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops import exact

SMALLEST_BLOCK = 64  # queries of a block; a block is as long as the reach if that is more


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    total: Int[Tensor, "b"],
    reach: int,
    dilation: int,
    global_tokens: int,
    *,
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values of sequences whose first `total` positions are real.

    Each block of queries gets its own copy of the keys it can see. Queries of one block are `dilation` positions apart.
    """
    n = q.shape[2]
    rows, keys = _places(n, reach, dilation, global_tokens, q.device, causal=causal)
    b, h, blocks = q.shape[0], q.shape[1], rows.shape[0]
    seen = _seen(rows, keys, total, n, reach * dilation, global_tokens, causal=causal)  # b t c w
    queries, strips, values = (_taken(x, at) for x, at in ((q, rows), (k, keys), (v, keys)))
    mask = seen[:, None].expand(b, h, *seen.shape[1:]).flatten(0, 1)
    mixed = exact.attend(queries, strips, values, mask).view(b, h, blocks, rows.shape[1], -1)
    rest = mixed.unflatten(2, (dilation, blocks // dilation)).permute(0, 1, 3, 4, 2, 5).flatten(2, 4)
    if not global_tokens:
        return rest[:, :, :n]
    real = (torch.arange(n, device=q.device) < total[:, None])[:, None, None, :]
    first = q[:, :, :global_tokens]
    if causal:
        size = first.shape[2]
        mask = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        first = exact.attend(first, k[:, :, :size], v[:, :, :size], mask)
    else:
        first = exact.attend(first, k, v, real | (torch.arange(n, device=q.device) == 0))
    return torch.cat([first, rest], dim=2)[:, :, :n]


def _places(
    n: int, reach: int, dilation: int, global_tokens: int, device: torch.device, *, causal: bool
) -> tuple[Int[Tensor, "t c"], Int[Tensor, "t w"]]:
    """Returns the positions of the queries and keys of each block; some of them lie outside of the sequence.

    Global tokens come first among the keys of every block.
    """
    block = max(SMALLEST_BLOCK, reach)
    count = torch.sym_max(1, (n - global_tokens + block * dilation - 1) // (block * dilation))
    lane = torch.arange(dilation, device=device)[:, None, None]
    start = (torch.arange(count, device=device) * block)[:, None]
    inside = torch.arange(block, device=device)
    strip = torch.arange(-reach, block + (0 if causal else reach), device=device)
    rows, keys = ((global_tokens + lane + dilation * (start + at)).flatten(0, 1) for at in (inside, strip))
    everyone = torch.arange(global_tokens, device=device).expand(keys.shape[0], global_tokens)
    return rows, torch.cat([everyone, keys], dim=1)


def _seen(
    rows: Int[Tensor, "t c"],
    keys: Int[Tensor, "t w"],
    total: Int[Tensor, "b"],
    n: int,
    farthest: int,
    global_tokens: int,
    *,
    causal: bool,
) -> Bool[Tensor, "b t c w"]:
    """Mask of the pairs that count. Every query sees at least itself, so that no row is empty; padding is dropped later."""
    distance = rows[:, :, None] - keys[:, None, :]
    near = (distance.abs() <= farthest) & (distance >= 0 if causal else True)
    is_global = torch.arange(keys.shape[1], device=keys.device) < global_tokens
    near = torch.where(is_global, True, near & (keys >= global_tokens)[:, None, :])
    real = (keys < total[:, None, None])[:, :, None, :]
    return (near & real) | (distance == 0)


def _taken(x: Float[Tensor, "b h n d"], places: Int[Tensor, "t w"]) -> Float[Tensor, "bh t w d"]:
    """Returns x at these positions; those outside of the sequence give any other position."""
    b, h, n, d = x.shape
    inside = places.clamp(min=0).clamp(max=n - 1).flatten()
    return x.index_select(2, inside).view(b * h, *places.shape, d)
