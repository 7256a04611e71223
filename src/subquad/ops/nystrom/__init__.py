"""Nyström attention (Xiong et al. 2021): softmax attention through landmarks, the equation and its fast form.

    out = softmax(q k~^T) Z (softmax(q~ k^T) v),   Z ~ pseudo-inverse of softmax(q~ k~^T)

where q~ and k~ are the landmarks, means of runs of positions. From right to left, both outer products are fused softmax
attention over few keys or for few queries, so that no matrix with a row for each position is kept.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops import exact
from subquad.ops.autocast import precise, prefers_parallel, product
from subquad.ops.nystrom.inverse import pseudo_inverse
from subquad.ops.nystrom.means import segment_means, with_means
from subquad.ops.packing import pick


class Runs(NamedTuple):
    """Runs of real positions, whose means are the landmarks of sequences with padding."""

    run: Int[Tensor, "b n"]  # run of each position; padding is in the run of the real position before it
    real: Bool[Tensor, "b n"]
    total: Int[Tensor, "b"]  # number of real positions
    sizes: Int[Tensor, "b m"]  # number of real positions in each run


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    keep: Bool[Tensor, "b s"] | None,
    landmarks: int,
    iterations: int,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values; queries that are as many as the keys are at the keys' places, and padding among them.

    A sequence with at most `landmarks` queries or real keys is attended to exactly.
    """
    dtype = precise(q.dtype)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if keep is None and not prefers_parallel(q):
        if q.shape[2] <= landmarks or k.shape[2] <= landmarks:
            return exact.attend(q, k, v)
        (q, q_means), (k, k_means) = with_means(q, landmarks), with_means(k, landmarks)
        inverse = pseudo_inverse(_weights(q_means, k_means), iterations)
        return exact.attend(q, k_means, product(inverse, exact.attend(q_means, k, v)))
    return _attend_padded(q, k, v, keep, landmarks, iterations)


def _weights(q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h s d"]) -> Float[Tensor, "b h n s"]:
    """Returns softmax(q k^T / sqrt d)."""
    return (product(q, k.mT) / math.sqrt(q.shape[-1])).softmax(-1)


def _attend_padded(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, landmarks: int, iterations: int
) -> Float[Tensor, "b h n e"]:
    """The form with padding, and for lengths that are not known when a graph is made."""
    b, n, s = len(q), q.shape[2], k.shape[2]
    real = torch.ones(b, s, dtype=torch.bool, device=k.device) if keep is None else keep
    key_runs = _runs(real, landmarks)
    query_runs = key_runs if n == s else _runs(torch.ones(b, n, dtype=torch.bool, device=q.device), landmarks)
    padding = ~real[:, None, :, None]
    k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    q_means, k_means = _run_means(q, query_runs), _run_means(k, key_runs)
    used_keys = key_runs.sizes[:, None, None] > 0
    used = used_keys & (query_runs.sizes[:, None, :, None] > 0)
    scores = product(q_means, k_means.mT) / math.sqrt(q.shape[-1])
    between = scores.masked_fill(~used, torch.finfo(scores.dtype).min).softmax(-1) * used
    at_landmarks = exact.attend(q_means, k, v, real[:, None, None])
    # a key that is its own landmark has its value, and softmax(q k~^T) is then the exact matrix
    is_few_keys = (key_runs.total <= landmarks)[:, None, None, None]
    values = torch.where(is_few_keys, _run_means(v, key_runs), product(pseudo_inverse(between, iterations), at_landmarks))
    mixed = exact.attend(q, k_means, values, used_keys)
    # a query that is its own landmark has that landmark's exact result
    is_few_queries = (query_runs.total <= landmarks)[:, None, None, None] & ~is_few_keys
    return torch.where(is_few_queries, pick(at_landmarks, query_runs.run), mixed)


def _runs(real: Bool[Tensor, "b n"], landmarks: int) -> Runs:
    """Cuts the real positions of each sequence into runs as `segment_means` does; of few positions, each is a run."""
    total = real.sum(1)
    size, longer = (total // landmarks)[:, None], (total % landmarks)[:, None]
    place = (real.cumsum(1) - 1).clamp(min=0)
    beyond = place - longer * (size + 1)
    run = torch.where(beyond < 0, place // (size + 1), longer + beyond // size.clamp(min=1)).clamp(max=landmarks - 1)
    count = torch.zeros(len(real), landmarks, dtype=torch.int64, device=real.device).scatter_add_(1, run, real.long())
    return Runs(run, real, total, count)


def _run_means(x: Float[Tensor, "b h n d"], runs: Runs) -> Float[Tensor, "b h m d"]:
    """Returns the mean of x in each run, zero in an empty one."""
    (b, h, _, d), m = x.shape, runs.sizes.shape[1]
    x = x.masked_fill(~runs.real[:, None, :, None], 0.0)
    sums = x.new_zeros(b, h, m, d).scatter_add(2, runs.run[:, None, :, None].expand(x.shape), x)
    return sums / runs.sizes.clamp(min=1).to(x.dtype)[:, None, :, None]


__all__ = ["attend", "pseudo_inverse", "segment_means"]
