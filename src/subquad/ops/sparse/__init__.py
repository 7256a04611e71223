"""Softmax attention over some pairs of blocks of queries and keys.

Positions are cut into blocks of equal length. A query sees the keys of the blocks that its own block is paired with by a
pattern (`patterns`), and in the causal form only those up to itself. Time and memory are those of the pairs that count.

On a CPU the key blocks are gathered for a few rows at a time (`gathered`); on a GPU it is flex_attention (`flex`); when
compiling, all rows are computed at once (`parallel`). `reference` has the equation with the whole matrix.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops import parts
from subquad.ops.autocast import precise
from subquad.ops.packing import Packed
from subquad.ops.sparse import flex, parallel
from subquad.ops.sparse.gathered import sparse_parts
from subquad.ops.sparse.parallel import attend_one
from subquad.ops.sparse.patterns import Pattern


def attend(
    packed: Packed, pattern: Pattern, block: int, *, causal: bool, first: list[int] | None = None
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n"] | None]:
    """Returns the mixed values of packed sequences and, on a CPU, the logarithms of the normalisers.

    With `first`, only the values from that position of each sequence on are needed; others may be zeros.
    """
    q, k, v, total, places = packed
    if torch.compiler.is_compiling():
        return parallel.attend(q, k, v, total, pattern, block, causal=causal), None
    if q.device.type != "cpu":
        return flex.attend(q, k, v, total, pattern, block, causal=causal), None
    n, dtype = q.shape[2], precise(q.dtype)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if n % block:  # padding by nothing would copy
        q, k, v = (F.pad(x, (0, 0, 0, -n % block)) for x in (q, k, v))
    starts = [0] * len(q) if first is None else first

    def plan(sequences: slice, length: int, start: int) -> parts.Plan:
        return parts.Plan(sequences, sparse_parts(pattern, length, block, dtype, causal=causal, first=start))

    if places is None and len(set(starts)) <= 1:
        plans = [plan(slice(0, len(q)), n, *set(starts))] if len(q) else []
    else:
        lengths = total.tolist()
        plans = [plan(slice(at, at + 1), lengths[at], starts[at]) for at in range(len(q))]
    mixed, normaliser = parts.attend(q, k, v, plans)
    return mixed[:, :, :n], normaliser[:, :, :n]


__all__ = ["Pattern", "attend", "attend_one", "sparse_parts"]
