"""Linformer over several processes: slots are sums over positions, so that each process adds its share of them."""

from typing import Any

from torch import Tensor

from subquad.attention.checks import check_inputs, check_result
from subquad.ops import exact
from subquad.ops.autocast import precise, without_autocast
from subquad.parallel.mechanisms.base import Cut, MakeQueries, refuse
from subquad.parallel.states import total
from subquad.parallel.stretches import Stretch


class LinformerCut(Cut):
    """Each process projects its positions by their columns of the projection."""

    def check(self, options: Any, *, causal: bool) -> None:
        if options.method != "learned":
            raise refuse(options, f"by the method {options.method}, only by learned")

    def mix(
        self, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, stretch: Stretch, *, causal: bool
    ) -> Tensor:
        projection, here = attend.projection, slice(stretch.start, stretch.stop)
        with without_autocast(k):
            k_weight, v_weight = (projection.weight[at][..., here] for at in (0, -1))
            dtype = precise(k.dtype)
            trip = total(stretch, projection.project(k.to(dtype), k_weight), projection.project(v.to(dtype), v_weight))
            q = make_q()
            check_inputs(q, k, v, keep, heads=attend.heads, head_dim=attend.head_dim)
            slots_k, slots_v = trip.finish()
            mixed = exact.attend(q.to(dtype), slots_k, slots_v)
        return check_result(mixed.to(v.dtype), q, k, v, q, slots_k, slots_v)
