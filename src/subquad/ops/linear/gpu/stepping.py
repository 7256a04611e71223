"""A decoding step on a GPU: one launch of a Triton kernel."""

import math

import torch
from torch import Tensor

from subquad.ops.linear.fused import FusedMaps, new_state
from subquad.ops.linear.gpu.kernels import Peaks, Side
from subquad.ops.linear.gpu.plans import fixed, launch, new_plan, power_of_2
from subquad.ops.linear.gpu.sides import LOG2_E, view
from subquad.ops.linear.gpu.step_kernel import step as step_kernel
from subquad.ops.linear.layout import KINDS, dense, dense_features
from subquad.ops.linear.sums import LinearState, empty_state, new_mixed
from subquad.types import Fused, Maps


def step(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, fused: FusedMaps | None, state: LinearState | None, reuse: bool
) -> tuple[Tensor, LinearState]:
    """Attends from one position, without gradients. With `reuse`, the new state overwrites a contiguous old one."""
    before = empty_state(k, v, maps.keys) if state is None else LinearState(*(part.contiguous() for part in state))
    m, d = maps.keys.feature_count(k.shape[-1]), k.shape[-1]
    after = before if reuse or state is None else new_state(q, v, m)
    mixed, v = new_mixed(q, v), dense(v)
    if not mixed.numel():
        return mixed, after if reuse or state is None else LinearState(*(part.clone() for part in before))
    plan = new_plan(q, v, 1, m, fused or maps, causal=True)
    plan = plan._replace(value_tile=fixed(power_of_2(v.shape[-1])), feature_tile=fixed(min(32, plan.feature_tile.value)))
    if fused is None:
        queries, keys = (dense_features(phi(x.to(before.sums.dtype))) for phi, x in zip(maps, (q, k), strict=True))
        sides = [_side(queries.values, None), _side(keys.values, None)]
        exponent = keys.exponent
    else:
        sides, exponent = [_side(dense(q), fused.queries), _side(dense(k), fused.keys)], None
    peaks = Peaks(v if exponent is None else exponent, v, fixed(maps.keys.has_exponent))
    factors = (LOG2_E / 2 * d**-0.5, math.log2(m) / 2)
    launch(q, step_kernel, (q.shape[0] * q.shape[1],), *sides, view(v), peaks, plan, before, after, view(mixed), *factors)
    return mixed, after


def _side(x: Tensor, fused: Fused | None) -> Side:
    """Returns a query or key as the kernel reads it; None for features that PyTorch has computed."""
    omega, kind = (None, 0) if fused is None else (fused.omega, KINDS[fused.kind])
    if omega is None:
        return Side(view(x), x, x, 0, x, x, 0, fixed(kind), fixed(False))
    powers = (omega * (LOG2_E * x.shape[-1] ** -0.25)).to(torch.promote_types(x.dtype, torch.float32)).contiguous()
    return Side(view(x), powers, x, powers.stride(0) if omega.ndim == 3 else 0, x, x, 0, fixed(kind), fixed(False))
