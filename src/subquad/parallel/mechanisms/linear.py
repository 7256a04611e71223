"""Linear attention and FAVOR+ over several processes: the sums over keys travel, which do not grow with the length."""

from typing import Any

import torch
from torch import Tensor

from subquad.attention.checks import check_inputs, check_result
from subquad.attention.cosformer import CosformerState
from subquad.ops.autocast import precise, without_autocast
from subquad.ops.linear import LinearState, apart
from subquad.parallel.mechanisms.base import Cut, MakeQueries
from subquad.parallel.states import states_before, whole_state
from subquad.parallel.stretches import Stretch


class LinearCut(Cut):
    """Each process needs the sums over all keys before its stretch, or over all keys of the sequence."""

    keeps = True

    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        maps = attend.feature_map.sides()
        state = apart.sum_keys(k, v, maps, keep)
        trip = states_before(state, stretch, has_exponent=maps.keys.has_exponent) if causal else whole_state(state, stretch)
        q = make_q()
        before = LinearState(*trip.finish())
        if causal:
            mixed: Tensor = attend.causal(q, k, v, before, keep=keep)[0]
            return mixed
        check_inputs(q, k, v, keep, heads=attend.heads, head_dim=attend.head_dim)
        return check_result(apart.read(q, v, before, maps), q, k, v)


class CosformerCut(Cut):
    """Linear attention with the angles of positions, which count from the start of the whole sequence."""

    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        maps, dtype = attend.feature_map.sides(), precise(k.dtype)
        with without_autocast(k):
            places = torch.arange(stretch.start, stretch.stop, device=k.device).expand(len(k), -1)
            state = apart.sum_keys(attend.with_angles(k, places), v.to(dtype), maps)
            trip = states_before(state, stretch, has_exponent=False) if causal else whole_state(state, stretch)
            q = make_q()
            before = LinearState(*trip.finish())
            if causal:
                seen = torch.full((len(k),), stretch.start, device=k.device)
                mixed: Tensor = attend.causal(q, k, v, CosformerState(*before, seen))[0]
                return mixed
            check_inputs(q, k, v, keep, heads=attend.heads, head_dim=attend.head_dim)
            mixed = apart.read(attend.with_angles(q, places), v.to(dtype), before, maps)
        return check_result(mixed.to(v.dtype), q, k, v)
