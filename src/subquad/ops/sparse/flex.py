"""Block-sparse attention on a GPU, through PyTorch's flex_attention, which leaves out the blocks that do not count."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from subquad.ops.sparse.patterns import Pattern


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    total: Int[Tensor, "b"],
    pattern: Pattern,
    block: int,
    *,
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values of sequences whose first `total` positions are real."""
    n = q.shape[2]
    q, k, v = (F.pad(x, (0, 0, 0, -n % block)) for x in (q, k, v))
    mask = block_mask(total, q.shape[2] // block, pattern, block, causal=causal)
    mixed: Tensor = _kernel(q.device.type)(q, k, v, block_mask=mask)
    return mixed[:, :, :n]


def block_mask(total: Int[Tensor, "b"], most: int, pattern: Pattern, block: int, *, causal: bool) -> BlockMask:
    """Returns the pattern as the lists of blocks that flex_attention takes."""
    rows = torch.arange(most, device=total.device)
    columns = pattern.columns(rows, (total[:, None] + block - 1) // block, most, causal=causal)
    columns = torch.where(columns < 0, most, columns)
    counts = torch.zeros(len(total), most, most + 1, dtype=torch.int32, device=total.device).scatter_(2, columns, 1)
    counts[:, : pattern.dense_rows(causal=causal)] = 1
    seen = counts[:, None, :, :most]
    order = seen.argsort(dim=-1, descending=True, stable=True).to(torch.int32)

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        real = (key < total[b]) & (counts[b, query // block, key // block] > 0)
        return real & (key <= query) if causal else real

    return BlockMask.from_kv_blocks(seen.sum(-1, dtype=torch.int32), order, BLOCK_SIZE=block, mask_mod=visible)


@cache
def _kernel(device: str) -> Callable[..., Any]:
    """flex_attention saves work only where it is compiled. On a CPU it is not, and makes the whole matrix: for tests."""
    kernel: Callable[..., Any] = flex_attention
    return kernel if device == "cpu" else torch.compile(kernel, dynamic=True)
