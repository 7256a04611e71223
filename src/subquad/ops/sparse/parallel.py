"""Block-sparse attention with all blocks at once, in plain PyTorch, for compilers and for single positions."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops import exact
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
    b, h, n, _ = q.shape
    most = (n + block - 1) // block
    filled = [F.pad(x, (0, 0, 0, most * block - n)) for x in (q, k, v)]
    rows = torch.arange(most, device=q.device)
    columns = pattern.columns(rows, (total[:, None] + block - 1) // block, most, causal=causal)
    keys, values, place = chosen(filled[1], filled[2], columns, block)
    at = torch.arange(most * block, device=q.device).view(most, block, 1)
    seen = _seen(place, total, columns, block)[:, :, None, :] & ((place[:, :, None, :] <= at) | (not causal))
    mask = seen[:, None].expand(b, h, *seen.shape[1:]).flatten(0, 1)
    queries = filled[0].view(b * h, most, block, -1)
    mixed = exact.attend(queries, keys.flatten(0, 1), values.flatten(0, 1), mask)
    mixed = torch.where(mask.any(-1, keepdim=True), mixed, 0.0).view(b, h, most * block, -1)[:, :, :n]
    dense = pattern.dense_rows(causal=causal) * block
    if not dense:
        return mixed
    real = torch.arange(n, device=q.device) < total[:, None]
    first = exact.attend(q[:, :, :dense], k, v, real[:, None, None, :])
    return torch.cat([first, mixed[:, :, dense:]], dim=2)


def attend_one(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    place: Int[Tensor, "b"],
    pattern: Pattern,
    block: int,
) -> Float[Tensor, "b h 1 e"]:
    """Attends causally from the position `place` of each sequence."""
    s = k.shape[2]
    most = (s + block - 1) // block
    k, v = (F.pad(x, (0, 0, 0, most * block - s)) for x in (k, v))
    row = place[:, None] // block
    columns = pattern.columns(row, row + 1, most, causal=True)
    keys, values, at = chosen(k, v, columns, block)
    seen = _seen(at, place + 1, columns, block)[:, :, None, :]  # b 1 1 w
    mixed = exact.attend(q, keys[:, :, 0], values[:, :, 0], seen)
    return torch.where(seen.any(-1, keepdim=True), mixed, 0.0)


def chosen(
    k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], columns: Int[Tensor, "b t c"], block: int
) -> tuple[Float[Tensor, "b h t w d"], Float[Tensor, "b h t w e"], Int[Tensor, "b t w"]]:
    """Returns the keys and values of these columns, and the positions they are at; -1 gives those of the first column."""
    b, t, c = columns.shape
    inside = torch.arange(block, device=k.device)
    place = (columns.clamp(min=0)[..., None] * block + inside).flatten(2)  # b t w
    index = place.view(b, 1, t * c * block, 1)
    keys, values = (x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in (k, v))
    return keys.unflatten(2, (t, c * block)), values.unflatten(2, (t, c * block)), place


def _seen(
    place: Int[Tensor, "b t w"], total: Int[Tensor, "b"], columns: Int[Tensor, "b t c"], block: int
) -> Bool[Tensor, "b t w"]:
    """Mask of the positions that are real and stand in a column of the row."""
    return (place < total[:, None, None]) & (columns >= 0).repeat_interleave(block, dim=2)
