"""State of the causal window: the global tokens, and a ring with the last positions."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.ops import exact
from subquad.ops.packing import Packed, pack, pick, put


class WindowState(NamedTuple):
    """State of constant size. Position p has the slot p if it is global, else slot g + (p - g) mod the ring's size."""

    keys: Tensor  # b h g+r d: global tokens, then the ring; zeros where nothing was written
    values: Tensor  # b h g+r e
    seen: Tensor  # b, number of positions so far


def held_positions(seen: Int[Tensor, "b"], slots: int, global_tokens: int) -> tuple[Int[Tensor, "b r"], Bool[Tensor, "b r"]]:
    """Returns the position that each slot holds after `seen` positions, and whether it holds one."""
    slot = torch.arange(slots, device=seen.device)
    ring = max(1, slots - global_tokens)
    last = seen[:, None] - 1
    in_ring = last - (last - slot).remainder(ring)
    position = torch.where(slot < global_tokens, slot, in_ring)
    return position, (position < seen[:, None]) & ((slot < global_tokens) | (position >= global_tokens))


def continue_state(q: Tensor, k: Tensor, v: Tensor, state: WindowState, keep: Tensor | None, global_tokens: int) -> Packed:
    """Packs the positions of a state, in their order, together with new ones."""
    slots = state.keys.shape[2]
    position, held = held_positions(state.seen, slots, global_tokens)
    order = torch.where(held, position, torch.iinfo(position.dtype).max).argsort(dim=1, stable=True)
    new = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device) if keep is None else keep
    k, v = (torch.cat([pick(old.to(x.dtype), order), x], dim=2) for old, x in ((state.keys, k), (state.values, v)))
    return pack(F.pad(q, (0, 0, slots, 0)), k, v, torch.cat([held.gather(1, order), new], dim=1))


def last_state(packed: Packed, seen: Int[Tensor, "b"], slots: int, global_tokens: int) -> WindowState:
    """Returns the state after the last packed position; `seen` counts all positions so far, packed or forgotten."""
    position, held = held_positions(seen, slots, global_tokens)
    forgotten = (seen - packed.total)[:, None]  # none of them global
    is_global = torch.arange(slots, device=seen.device) < global_tokens
    place = torch.where(is_global, position, position - forgotten)
    k, v = (F.pad(x, (0, 0, 0, 1)) if x.shape[2] == 0 else x for x in (packed.k, packed.v))
    place = place.clamp(min=0).clamp(max=k.shape[2] - 1)
    keys, values = (torch.where(held[:, None, :, None], pick(x, place), 0.0) for x in (k, v))
    return WindowState(keys, values, seen)


def step(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    state: WindowState,
    dilation: int,
    global_tokens: int,
    *,
    reuse: bool,
) -> tuple[Float[Tensor, "b h 1 e"], WindowState]:
    """Attends from one position, in time that does not depend on the number of positions before it."""
    slots = state.keys.shape[2]
    ring = max(1, slots - global_tokens)
    in_ring = global_tokens + (state.seen - global_tokens).remainder(ring)
    slot = torch.where(state.seen < global_tokens, state.seen, in_ring)
    keys, values = (put(held, new.to(held.dtype), slot, reuse=reuse) for held, new in ((state.keys, k), (state.values, v)))
    seen = state.seen.add_(1) if reuse else state.seen + 1
    mask = None
    position, held = held_positions(seen, slots, global_tokens)
    if dilation > 1 or torch.compiler.is_compiling() or not bool(held.all()):
        is_global = torch.arange(slots, device=seen.device) < global_tokens
        apart = seen[:, None] - 1 - position
        mask = (held & ((apart % dilation == 0) | is_global))[:, None, None, :]
    mixed = exact.attend(q.to(keys.dtype), keys, values, mask)
    return mixed, WindowState(keys, values, seen)
