"""Sequences with padding anywhere, packed so that what is real stands in front: segments are then cut at the same places."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Packed(NamedTuple):
    """Queries, keys and values whose real positions stand in front, in their order, with zeros behind them."""

    q: Float[Tensor, "b h n d"]
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    total: Int[Tensor, "b"]  # how many are real
    places: Int[Tensor, "b n"] | None  # where each position went; None where they stood so


class Segment(NamedTuple):
    """A stretch of them."""

    q: Float[Tensor, "b h c d"]
    k: Float[Tensor, "b h c d"]
    v: Float[Tensor, "b h c e"]


def segments(packed: Packed, length: int) -> list[Segment]:
    """All of it, cut at once: the gradient of a slice is as large as the whole, and there would be one for each segment."""
    parts = (x.split(length, dim=2) for x in (packed.q, packed.k, packed.v))
    return [Segment(*part) for part in zip(*parts, strict=True)]


def unpack(packed: Packed, mixed: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n e"]:
    """What belongs to each position; padding, which has no segment, gives zeros."""
    if packed.places is None:
        return mixed
    return torch.where((packed.places < packed.total[:, None])[:, None, :, None], pick(mixed, packed.places), 0.0)


def real(packed: Packed, start: int, stop: int) -> Bool[Tensor, "b n"]:
    """Which of the places from `start` to `stop` hold something."""
    return torch.arange(start, stop, device=packed.total.device) < packed.total[:, None]


def pack(q: Tensor, k: Tensor, v: Tensor, keep: Bool[Tensor, "b n"] | None) -> Packed:
    """Whatever the padding held, NaN included, is gone."""
    b, _, n, _ = k.shape
    if keep is None:
        return Packed(q, k, v, torch.full((b,), n, device=k.device), None)
    order = torch.sort((~keep).to(torch.uint8), dim=1, stable=True).indices
    total = keep.sum(1)
    held = (torch.arange(n, device=k.device) < total[:, None])[:, None, :, None]
    q, k, v = (torch.where(held, pick(x, order), 0.0) for x in (q, k, v))
    return Packed(q, k, v, total, order.argsort(dim=1))


def pick(x: Float[Tensor, "b h n d"], places: Int[Tensor, "b m"]) -> Float[Tensor, "b h m d"]:
    """x[b, :, places[b]]."""
    b, h, _, d = x.shape
    return x.gather(2, places[:, None, :, None].expand(b, h, places.shape[1], d))


def put(
    x: Float[Tensor, "b h n d"], new: Float[Tensor, "b h 1 d"], place: Int[Tensor, "b"], *, reuse: bool
) -> Float[Tensor, "b h n d"]:
    """x with a position in place; with `reuse` in x itself."""
    where = place[:, None, None, None].expand_as(new)
    return x.scatter_(2, where, new) if reuse else x.scatter(2, where, new)


def join(parts: Sequence[Float[Tensor, "b h _ e"]]) -> Float[Tensor, "b h n e"]:
    """Segments one after the other, in memory with the heads of a position beside each other, as they are merged."""
    return parts[0] if len(parts) == 1 else torch.cat([part.transpose(1, 2) for part in parts], dim=1).transpose(1, 2)
