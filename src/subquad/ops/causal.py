"""Causal linear attention: position i sees positions up to i, and what a state remembers of those before.

The equation (Katharopoulos et al. 2020, equation 8):

    out_i = sum over j <= i of (phi(q_i) . phi(k_j)) v_j / sum over j <= i of phi(q_i) . phi(k_j)

Three forms of it, the same to rounding, that continue from each other's states. In *chunks*, one after the other, for a CPU
(`subquad.ops.chunks`). *Parallel*, for a GPU and for compilers: all chunks at once, in plain PyTorch. *Step*: one position,
to generate with. `attend` picks; a faster kernel takes its place here.

Features may come with exponents (see `Features`). Weights are then relative to the largest exponent up to i and no further,
so a loud key changes nothing before it, not even by rounding.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.autocast import product, without_autocast
from subquad.ops.chunks import attend_in_chunks
from subquad.ops.linear import prefers_parallel
from subquad.ops.sums import (
    LinearState,
    along,
    empty_state,
    finite,
    kept,
    kept_features,
    or_infinite,
    precise,
    reciprocal,
)
from subquad.types import FeatureFunction

PARALLEL_CHUNK = 128  # fewer states to keep, which is what the parallel form pays for


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    state: LinearState | None = None,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """The mixed values, and the state after the last position."""
    with without_autocast(q):
        if prefers_parallel(q):
            before = empty_state(k, v, phi_k) if state is None else state
            return attend_parallel(q, k, v, phi_q, phi_k, before, keep)
        return attend_in_chunks(q, k, v, phi_q, phi_k, state, keep)


def step(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    state: LinearState | None = None,
    reuse: bool = False,
) -> tuple[Float[Tensor, "b h 1 e"], LinearState]:
    """Equations 9 to 12: one position of a recurrent network.

    With `reuse` the new state takes the memory of the old one, which is then gone. That saves most of the time of a step.
    """
    sums, norms, peak = empty_state(k, v, phi_k) if state is None else state
    dtype = v.dtype
    with without_autocast(q):
        if q.dtype != sums.dtype:
            q, k, v = q.to(sums.dtype), k.to(sums.dtype), v.to(sums.dtype)
        queries, keys, exponent = _both(q, k, phi_q, phi_k)
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


def _both(
    q: Float[Tensor, "b h 1 d"], k: Float[Tensor, "b h 1 d"], phi_q: FeatureFunction, phi_k: FeatureFunction
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The features of a query and of a key, in one go where they have the same map: a step is made of small operations."""
    if phi_q is not phi_k:
        return phi_q(q).values, *phi_k(k)
    values, exponent = phi_k(torch.cat([q, k], dim=2))
    query, key = values.split(1, dim=2)
    return query, key, None if exponent is None else exponent[:, :, 1:]


def attend_parallel(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    phi_q: FeatureFunction,
    phi_k: FeatureFunction,
    state: LinearState,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """All chunks at once. The state before chunk t is the sum of what the chunks before it add, each faded to t's peak."""
    n, everything, given_peak = q.shape[2], slice(0, q.shape[2]), state.peak.detach()[..., None]
    queries = _chunked(phi_q(q.to(precise(q.dtype))).values)
    features = kept_features(phi_k, kept(k, keep, everything), keep, everything)
    keys, values = _chunked(features.values), _chunked(kept(v, keep, everything))
    exponent = features.exponent
    if exponent is None:
        exponent = features.values.new_zeros(*features.values.shape[:3], 1)
    exponent = _chunked(exponent, -math.inf)  # b h t c 1

    highest = exponent.detach().flatten(2, 3).cummax(2).values
    peak = torch.maximum(highest, given_peak[..., None]).view_as(exponent)
    after = peak[:, :, :, -1, 0]  # b h t
    before = torch.cat([given_peak, after[:, :, :-1]], dim=2)
    share = torch.exp2(exponent - finite(after)[..., None, None])
    # what the past and each chunk adds
    sums = torch.cat([state.sums[:, :, None], product((keys * share).mT, values)], dim=2)
    norms = torch.cat([state.norms[:, :, None], (keys * share).sum(3)], dim=2)
    peaks = torch.cat([given_peak, after], dim=2)
    # the sums up to and with chunk t: 2^(peak_s - peak_t) of every s <= t; one small product, and nothing to overflow
    fade = torch.exp2(peaks[..., None, :] - finite(peaks)[..., None]).tril()
    sums = product(fade, sums.flatten(3)).unflatten(3, sums.shape[3:])
    norms = product(fade, norms)

    size = queries.shape[3]
    future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    scores = product(queries, keys.mT) * torch.exp2((exponent.mT - finite(peak)).masked_fill(future, -math.inf))
    rows = torch.exp2(before[..., None, None] - finite(peak))
    total = scores.sum(-1, keepdim=True) + rows * along(queries, norms[:, :, :-1])
    mixed = (product(scores, values) + rows * product(queries, sums[:, :, :-1])) * reciprocal(total)
    return mixed.flatten(2, 3)[:, :, :n].to(v.dtype), LinearState(sums[:, :, -1], norms[:, :, -1], peaks[:, :, -1])


def _chunked(x: Float[Tensor, "b h n m"], padding: float = 0.0) -> Float[Tensor, "b h t c m"]:
    """Cut into chunks, the last one filled up."""
    chunks = (x.shape[2] + PARALLEL_CHUNK - 1) // PARALLEL_CHUNK
    filled = F.pad(x, (0, 0, 0, chunks * PARALLEL_CHUNK - x.shape[2]), value=padding)
    return filled.view(*x.shape[:2], chunks, PARALLEL_CHUNK, x.shape[3])
