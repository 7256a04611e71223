"""Linear attention with all positions at once, in plain PyTorch, for GPUs and compilers."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.autocast import precise, product, without_autocast
from subquad.ops.linear.scan import running_sums
from subquad.ops.linear.sums import LinearState, along, finite, kept, kept_features, reciprocal
from subquad.types import Maps

CHUNK = 128  # positions of a chunk; smaller chunks mean more states, the main cost of this form


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    maps: Maps,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """out_i = phi(q_i) S / phi(q_i) z, with S = sum over j of phi(k_j) v_j^T and z = sum over j of phi(k_j)."""
    with without_autocast(q):
        everything = slice(0, k.shape[2])
        values, exponent = kept_features(maps.keys, kept(k, keep, everything), keep, everything)
        if exponent is not None:
            peak = finite(exponent.detach().amax(2, keepdim=True)) if k.shape[2] else 0.0
            values = values * torch.exp2(exponent - peak)
        queries = maps.queries(q.to(precise(q.dtype))).values
        total = along(queries, values.sum(2))
        mixed = product(queries, product(values.mT, kept(v, keep, everything))) * reciprocal(total)
        return mixed.to(v.dtype)


def attend_causal(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    maps: Maps,
    state: LinearState,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """Computes all chunks at once. The states before chunks are a cumulative sum over the terms of earlier chunks."""
    n, everything, old_peak = q.shape[2], slice(0, q.shape[2]), state.peak.detach()[..., None]
    queries = _chunked(maps.queries(q.to(precise(q.dtype))).values)
    features = kept_features(maps.keys, kept(k, keep, everything), keep, everything)
    keys, values = _chunked(features.values), _chunked(kept(v, keep, everything))
    exponent = features.exponent
    if exponent is None:
        exponent = features.values.new_zeros(*features.values.shape[:3], 1)
    exponent = _chunked(exponent, -math.inf)  # b h t c 1

    highest = exponent.detach().flatten(2, 3).cummax(2).values
    peak = torch.maximum(highest, old_peak[..., None]).view_as(exponent)
    after = peak[:, :, :, -1, 0]  # b h t
    before = torch.cat([old_peak, after[:, :, :-1]], dim=2)
    share = torch.exp2(exponent - finite(after)[..., None, None])
    # terms of the initial state and of each chunk
    sums = torch.cat([state.sums[:, :, None], product((keys * share).mT, values)], dim=2)
    norms = torch.cat([state.norms[:, :, None], (keys * share).sum(3)], dim=2)
    peaks = torch.cat([old_peak, after], dim=2)
    sums, norms = running_sums(sums.flatten(3), peaks).unflatten(3, sums.shape[3:]), running_sums(norms, peaks)

    size = queries.shape[3]
    future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    scores = product(queries, keys.mT) * torch.exp2((exponent.mT - finite(peak)).masked_fill(future, -math.inf))
    rows = torch.exp2(before[..., None, None] - finite(peak))
    total = scores.sum(-1, keepdim=True) + rows * along(queries, norms[:, :, :-1])
    mixed = (product(scores, values) + rows * product(queries, sums[:, :, :-1])) * reciprocal(total)
    return mixed.flatten(2, 3)[:, :, :n].to(v.dtype), LinearState(sums[:, :, -1], norms[:, :, -1], peaks[:, :, -1])


def _chunked(x: Float[Tensor, "b h n m"], padding: float = 0.0) -> Float[Tensor, "b h t c m"]:
    """Cuts positions into chunks; the last one is filled with `padding`."""
    chunks = (x.shape[2] + CHUNK - 1) // CHUNK
    filled = F.pad(x, (0, 0, 0, chunks * CHUNK - x.shape[2]), value=padding)
    return filled.view(*x.shape[:2], chunks, CHUNK, x.shape[3])
