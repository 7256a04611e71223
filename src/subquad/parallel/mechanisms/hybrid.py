"""The hybrid over several processes: a block of keys and values from each neighbour, and the sums over far keys, travel."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subquad.attention.checks import check_inputs, check_result
from subquad.ops import hybrid
from subquad.ops.autocast import precise, without_autocast
from subquad.ops.hybrid import mixing
from subquad.ops.linear import LinearState, apart
from subquad.parallel.mechanisms.base import Cut, MakeQueries
from subquad.parallel.positions import edges
from subquad.parallel.states import add_states, states_before
from subquad.parallel.stretches import Stretch
from subquad.parallel.trips import Trip
from subquad.types import Maps


class HybridCut(Cut):
    """Stretches begin with a block. Far keys of a block are those outside of it and of the blocks beside it.

    The stretch is mixed together with the neighbouring blocks, so that far keys beyond them are those that other processes
    sum: each sums the last block before its stretch and all of its own blocks but the last, or the other way round.
    """

    def multiple(self, options: Any) -> int:
        return int(options.block)

    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        block, maps = attend.options.block, attend.feature_map.sides()
        with without_autocast(k):
            beside = edges(stretch, block, 0 if causal else block, k, v)
            inner = apart.sum_keys(k[:, :, : -block or None], v[:, :, : -block or None], maps)
            later = None if causal else apart.sum_keys(k[:, :, block:], v[:, :, block:], maps)
            left_k, left_v, right_k, right_v = beside.finish()
            trips = [_sum_beyond(inner, left_k, left_v, maps, stretch)]
            if later is not None:
                trips.append(_sum_beyond(later, right_k, right_v, maps, stretch, after=True))
            q = make_q()
            check_inputs(q, k, v, keep, heads=attend.heads, head_dim=attend.head_dim)
            first, n = left_k.shape[2], k.shape[2]
            long_q = F.pad(q, (0, 0, first, right_k.shape[2]))
            long_k, long_v = torch.cat([left_k, k, right_k], dim=2), torch.cat([left_v, v, right_v], dim=2)
            states = [LinearState(*trip.finish()) for trip in trips]
            total = torch.full((len(k),), long_k.shape[2], device=k.device)
            gain = attend.log_gain.to(precise(k.dtype))
            if causal:
                mixed = hybrid.attend(long_q, long_k, long_v, maps, states[0], total, gain, block)[0]
            else:
                mixed = mixing.attend(long_q, long_k, long_v, maps, None, total, gain, block, add_states(*states))[0]
            mixed = mixed[:, :, first : first + n]
        return check_result(mixed.to(v.dtype), q, k, v)


def _sum_beyond(inner: LinearState, k: Tensor, v: Tensor, maps: Maps, stretch: Stretch, *, after: bool = False) -> Trip:
    """Begins to fetch the sums over keys beyond the neighbouring block `k`; `inner` sums the own ones that count."""
    state = add_states(inner, apart.sum_keys(k, v, maps))
    return states_before(state, stretch, has_exponent=maps.keys.has_exponent, after=after)
