"""Packs sequences so that real positions come first and padding last, and cuts them into segments."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Packed(NamedTuple):
    """Queries, keys and values with all real positions first, in order, followed by zeros."""

    q: Float[Tensor, "b h n d"]
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    total: Int[Tensor, "b"]  # number of real positions
    places: Int[Tensor, "b n"] | None  # packed place of each position; None if nothing moved


class Segment(NamedTuple):
    """A range of positions, cut from packed sequences."""

    q: Float[Tensor, "b h c d"]
    k: Float[Tensor, "b h c d"]
    v: Float[Tensor, "b h c e"]


def segments(packed: Packed, length: int) -> list[Segment]:
    """Cuts packed sequences into segments. One split is used, since the gradient of each slice would be as large as all."""
    parts = (x.split(length, dim=2) for x in (packed.q, packed.k, packed.v))
    return [Segment(*part) for part in zip(*parts, strict=True)]


def unpack(packed: Packed, mixed: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n e"]:
    """Moves mixed values back to their original positions; padding gives zeros."""
    if packed.places is None:
        return mixed
    return torch.where((packed.places < packed.total[:, None])[:, None, :, None], pick(mixed, packed.places), 0.0)


def real(packed: Packed, start: int, stop: int) -> Bool[Tensor, "b n"]:
    """Mask of the packed places from `start` to `stop` that hold real positions."""
    return torch.arange(start, stop, device=packed.total.device) < packed.total[:, None]


def pack(q: Tensor, k: Tensor, v: Tensor, keep: Bool[Tensor, "b n"] | None) -> Packed:
    """Packs sequences; padding becomes zero, even if it held NaN."""
    b, _, n, _ = k.shape
    if keep is None:
        return Packed(q, k, v, torch.full((b,), n, device=k.device), None)
    order = torch.sort((~keep).to(torch.uint8), dim=1, stable=True).indices
    total = keep.sum(1)
    held = (torch.arange(n, device=k.device) < total[:, None])[:, None, :, None]
    q, k, v = (torch.where(held, pick(x, order), 0.0) for x in (q, k, v))
    return Packed(q, k, v, total, order.argsort(dim=1))


def pick(x: Float[Tensor, "b h n d"], places: Int[Tensor, "b m"]) -> Float[Tensor, "b h m d"]:
    """Returns x[b, :, places[b]] for each b."""
    b, h, _, d = x.shape
    return x.gather(2, places[:, None, :, None].expand(b, h, places.shape[1], d))


def put(
    x: Float[Tensor, "b h n d"], new: Float[Tensor, "b h 1 d"], place: Int[Tensor, "b"], *, reuse: bool
) -> Float[Tensor, "b h n d"]:
    """Returns x with `new` written at `place`; with `reuse`, x is changed in place."""
    where = place[:, None, None, None].expand_as(new)
    return x.scatter_(2, where, new) if reuse else x.scatter(2, where, new)


def join(parts: Sequence[Float[Tensor, "b h _ e"]]) -> Float[Tensor, "b h n e"]:
    """Concatenates segments, with the heads of a position next to each other in memory, so that merging heads is free."""
    return parts[0] if len(parts) == 1 else torch.cat([part.transpose(1, 2) for part in parts], dim=1).transpose(1, 2)
