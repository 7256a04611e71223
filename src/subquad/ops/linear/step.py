"""One position of causal linear attention, as a step of a recurrent network, for generation."""

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.ops.autocast import needs_gradient, product, without_autocast
from subquad.ops.linear import native
from subquad.ops.linear.sums import LinearState, empty_state, or_infinite
from subquad.types import Maps


def step(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    maps: Maps,
    state: LinearState | None = None,
    reuse: bool = False,
) -> tuple[Float[Tensor, "b h 1 e"], LinearState]:
    """Equations 9 to 12: attends from one position and returns the mixed values and the new state.

    With `reuse`, the new state overwrites the memory of the old one, which saves most of the time of a step.
    """
    if native.serves(q) and not needs_gradient(q, k, v, *(state or ()), *maps.weights()):
        return native.step(q, k, v, maps, state, reuse)
    sums, norms, peak = empty_state(k, v, maps.keys) if state is None else state
    dtype = v.dtype
    with without_autocast(q):
        if q.dtype != sums.dtype:
            q, k, v = q.to(sums.dtype), k.to(sums.dtype), v.to(sums.dtype)
        queries, keys, exponent = _both(q, k, maps)
        if not reuse:
            sums, norms = sums.clone(), norms.clone()
        if exponent is not None:
            higher = torch.maximum(peak, exponent[..., 0, 0]).detach()
            fade = torch.exp2(peak.detach() - higher)[..., None]
            sums, norms, peak = sums.mul_(fade[..., None]), norms.mul_(fade), higher
            keys = keys * torch.exp2(exponent - higher[..., None, None])
        sums = sums.addcmul_(keys.mT, v)
        norms = norms.add_(keys.squeeze(2))
        total = torch.linalg.vecdot(queries, norms.unsqueeze(2)).unsqueeze(3)
        mixed = product(queries, sums).div_(or_infinite(total))
        return mixed if mixed.dtype == dtype else mixed.to(dtype), LinearState(sums, norms, peak)


def _both(q: Float[Tensor, "b h 1 d"], k: Float[Tensor, "b h 1 d"], maps: Maps) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the features of the query, and features and exponent of the key; one call if they share a map, for speed."""
    if maps.queries is not maps.keys:
        return maps.queries(q).values, *maps.keys(k)
    values, exponent = maps.keys(torch.cat([q, k], dim=2))
    query, key = values.split(1, dim=2)
    return query, key, None if exponent is None else exponent[:, :, 1:]
