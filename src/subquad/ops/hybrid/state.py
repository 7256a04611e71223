"""State of the causal hybrid: continued by a sequence, or advanced by one position."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.autocast import is_traced, product
from subquad.ops.hybrid.mixing import LOG2_E, Near, mix
from subquad.ops.hybrid.sums import cut_features, fold
from subquad.ops.linear.sums import LinearState
from subquad.ops.packing import Packed, pack, pick, put
from subquad.types import FeatureFunction, Maps


class HybridState(NamedTuple):
    """State of constant size: keys and values of the last two blocks, and the sums of all blocks before them."""

    keys: Tensor  # b h 2c d, then zeros
    values: Tensor  # b h 2c e
    sums: Tensor  # b h m e, as in LinearState
    norms: Tensor  # b h m
    peak: Tensor  # b h
    filled: Tensor  # b, number of keys


def far_state(state: HybridState) -> LinearState:
    """Returns the sums over far keys."""
    return LinearState(state.sums, state.norms, state.peak.detach())


def continue_state(q: Tensor, k: Tensor, v: Tensor, state: HybridState, keep: Tensor | None) -> Packed:
    """Packs the last blocks of a state together with new positions."""
    size = state.keys.shape[2]
    held = torch.arange(size, device=q.device) < state.filled[:, None]
    new = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device) if keep is None else keep
    k, v = torch.cat([state.keys.to(k.dtype), k], dim=2), torch.cat([state.values.to(v.dtype), v], dim=2)
    return pack(F.pad(q, (0, 0, size, 0)), k, v, torch.cat([held, new], dim=1))


def last_state(packed: Packed, rest: LinearState, block: int) -> HybridState:
    """Returns the state after the last position, with the keys and values of the current block and the one before."""
    if packed.places is None and not is_traced():  # all sequences are as long: no need to pick
        n = packed.k.shape[2]
        first = max(0, n // block - 1) * block
        keys, values = (F.pad(x[:, :, first:], (0, 0, 0, 2 * block - (n - first))) for x in (packed.k, packed.v))
        return HybridState(keys, values, *rest, packed.total - first)
    start = (packed.total // block - 1).clamp_min(0) * block
    places = start[:, None] + torch.arange(2 * block, device=start.device)
    held = (places < packed.total[:, None])[:, None, :, None]
    k, v = (F.pad(x, (0, 0, 0, 1)) if x.shape[2] == 0 else x for x in (packed.k, packed.v))
    keys, values = (torch.where(held, pick(x, places.clamp(max=x.shape[2] - 1)), 0.0) for x in (k, v))
    return HybridState(keys, values, *rest, packed.total - start)


def step(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    maps: Maps,
    state: HybridState,
    log_gain: Float[Tensor, "h"],
    block: int,
    *,
    reuse: bool,
) -> tuple[Float[Tensor, "b h 1 e"], HybridState]:
    """Attends from one position, in time that does not depend on the number of positions before it."""
    keys, values = (
        put(held, new.to(held.dtype), state.filled, reuse=reuse) for held, new in ((state.keys, k), (state.values, v))
    )
    dtype, rest = state.sums.dtype, far_state(state)
    scores = product(q.to(dtype) * (LOG2_E / math.sqrt(q.shape[3])), keys.to(dtype).mT)
    seen = torch.arange(2 * block, device=q.device) <= state.filled[:, None]
    scores = scores.masked_fill(~seen[:, None, None, :], -math.inf)
    near = Near(scores[:, :, None], values.to(dtype)[:, :, None])
    sums = torch.cat([state.sums, state.norms[..., None]], dim=-1)[:, :, None]
    queries = cut_features(maps.queries(q.to(dtype)), 1)
    mixed = mix(queries, sums, rest.peak[..., None], near, log_gain.to(dtype))[:, :, 0]
    after = HybridState(keys, values, *rest, state.filled + 1)
    full = after.filled == 2 * block
    if torch.compiler.is_compiling() or bool(full.any()):
        after = _folded(after, rest, full, maps.keys, block)
    return mixed, after


def _folded(state: HybridState, rest: LinearState, full: Tensor, phi: FeatureFunction, block: int) -> HybridState:
    """Adds the first block to the sums of the sequences whose two blocks are full."""
    folded = fold(rest, state.keys[:, :, :block], state.values[:, :, :block], phi)
    rest = LinearState(*(_where(full, new, old) for new, old in zip(folded, rest, strict=True)))
    keys, values = (_where(full, _without_first(x, block), x) for x in (state.keys, state.values))
    return HybridState(keys, values, *rest, torch.where(full, state.filled - block, state.filled))


def _where(full: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Returns `new` for full sequences and `old` for the others."""
    return torch.where(full.view(-1, *[1] * (old.ndim - 1)), new, old)


def _without_first(x: Tensor, block: int) -> Tensor:
    """Returns the positions after the first block, followed by zeros."""
    return F.pad(x[:, :, block:], (0, 0, 0, block))
