"""The window over several processes: the keys and values within reach of a neighbour travel, and those of global tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subquad.attention.checks import check_inputs, check_result
from subquad.ops import window
from subquad.ops.autocast import without_autocast
from subquad.ops.packing import Packed
from subquad.parallel.mechanisms.base import Cut, MakeQueries, refuse
from subquad.parallel.positions import edges, first_positions
from subquad.parallel.stretches import Stretch


class WindowCut(Cut):
    """The stretch is mixed together with the positions beside it that are within reach."""

    def check(self, options: Any, *, causal: bool) -> None:
        if options.global_tokens and not causal:
            raise refuse(options, "with global tokens that see the whole sequence")

    def least(self, options: Any) -> int:
        return int(options.reach * options.dilation + options.global_tokens)

    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        options = attend.options
        reach = options.reach * options.dilation
        with without_autocast(k):
            beside = edges(stretch, reach, 0 if causal else reach, k, v)
            everyone = first_positions(stretch, options.global_tokens, k, v) if options.global_tokens else None
            q = make_q()
            check_inputs(q, k, v, keep, heads=attend.heads, head_dim=attend.head_dim)
            left_k, left_v, right_k, right_v = beside.finish()
            keys, values = [left_k, k, right_k], [left_v, v, right_v]
            if everyone is not None:
                global_k, global_v = everyone.finish()
                keys, values = [global_k, *keys], [global_v, *values]
            long_k, long_v, n = torch.cat(keys, dim=2), torch.cat(values, dim=2), q.shape[2]
            first = long_k.shape[2] - n - right_k.shape[2]
            long_q = F.pad(q, (0, 0, first, right_k.shape[2]))
            total = torch.full((len(k),), long_k.shape[2], device=k.device)
            packed = Packed(long_q, long_k, long_v, total, None)
            sizes = options.reach, options.dilation, options.global_tokens
            mixed = window.attend(packed, *sizes, causal=causal)[0][:, :, first : first + n]
        return check_result(mixed.to(v.dtype), q, k, v, q)
