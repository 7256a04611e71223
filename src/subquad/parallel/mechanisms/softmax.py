"""Softmax attention over several processes: all keys and values travel, so that bytes and memory grow with the length.

PyTorch's context parallelism has no form for CPUs (2.13: no sharding strategy for its fused attention there). Keys and
values are gathered instead, and their gradients summed where they came from.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subquad.attention.checks import check_inputs, check_result
from subquad.ops import exact, parts
from subquad.ops.autocast import prefers_parallel
from subquad.ops.window.strips import Strips
from subquad.parallel.mechanisms.base import Cut, MakeQueries, refuse
from subquad.parallel.positions import all_positions
from subquad.parallel.stretches import Stretch

BLOCK = 512
"""Number of queries that are compared at once with all keys before them."""


class SoftmaxCut(Cut):
    """Each process compares its queries with the keys of all stretches, or of those up to its own."""

    def check(self, options: Any, *, causal: bool) -> None:
        if options.materialised:
            raise refuse(options, "with a whole attention matrix")

    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        trip = all_positions(stretch, k, v, only_before=causal)
        q = make_q()
        check_inputs(q, k, v, keep, heads=attend.heads, head_dim=attend.head_dim)
        before_k, before_v, after_k, after_v = trip.finish()
        keys, values = torch.cat([before_k, k, after_k], dim=2), torch.cat([before_v, v, after_v], dim=2)
        mixed = _causal(q, keys, values) if causal else exact.attend(q, keys, values)
        return check_result(mixed, q, k, v, q, k, v)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of queries at the last positions of the keys to the keys up to their own."""
    n, first = q.shape[2], k.shape[2] - q.shape[2]
    if prefers_parallel(q):
        mask = torch.ones(n, k.shape[2], dtype=torch.bool, device=q.device).tril(first)
        return exact.attend(q, k, v, mask)
    plans = [parts.Plan(slice(0, len(q)), list(_strips(n, first, q.dtype)))]
    return parts.attend(F.pad(q, (0, 0, first, 0)), k, v, plans)[0][:, :, first:]


def _strips(n: int, first: int, dtype: torch.dtype) -> list[Strips]:
    """Returns blocks of queries on the diagonal, and for each block the keys before it."""
    everything, whole = slice(None), n // BLOCK
    strips = []
    if whole:
        strips.append(Strips(everything, first, BLOCK, whole, first, BLOCK, after=0, dtype=dtype))
    if n % BLOCK:
        last = first + whole * BLOCK
        strips.append(Strips(everything, last, n % BLOCK, 1, last, n % BLOCK, after=0, dtype=dtype))
    for start in range(first, first + n, BLOCK):
        size = min(BLOCK, first + n - start)
        if start:
            strips.append(Strips(everything, start, size, 1, 0, start, merges=True, dtype=dtype))
    return strips
