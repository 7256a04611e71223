"""Softmax attention over a part of all pairs of queries and keys, with PyTorch's fused kernel for CPUs.

The pairs are given as parts; each covers blocks of queries and a strip of keys for each block. Parts that share queries are
merged by their normalisers, with l_p the logarithm of the normaliser of part p::

    out_i = sum over p of exp(l_p - l) out_p,  l = log of the sum over p of exp(l_p)

Given out and l, the gradient of a part does not depend on the other parts, so the backward takes one part after the other,
recomputing its weights. Besides q, k, v and the result, one number is saved for each query.

Tensors are "n h d" inside: positions first, and the heads of all sequences next to each other.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops import pages
from subquad.ops.autocast import needs_gradient, outside_autocast

PIECE = 2**20  # largest number of floats in the keys of the blocks that are computed together, 4 megabytes

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Part(Protocol):
    """Blocks of queries, and the keys that each block sees. In shapes, t is the block, c the query and w the key."""

    @property
    def mask(self) -> Float[Tensor, "#t #h c w"] | None:
        """Zero for pairs that count and -inf for others; None if all count."""
        ...

    @property
    def merges(self) -> bool:
        """Whether an earlier part has some of the same queries."""
        ...

    def pieces(self, numbers: int) -> Iterator["Part"]:
        """The same part in pieces of at most `PIECE` floats, for keys of `numbers` floats each in all heads.

        A block of queries is in one piece, with all its keys.
        """
        ...

    def pieces_of_keys(self, numbers: int) -> Iterator["Part"]:
        """The same as `pieces`, but where one block sees too many keys for a piece, they are cut into several.

        Gradients of keys take memory of their own. All but the first of such pieces merge.
        """
        ...

    def queries(self, x: Shaped[Tensor, "n h *d"]) -> Shaped[Tensor, "t h c *d"]:
        """The blocks of queries."""
        ...

    def keys(self, x: Shaped[Tensor, "n h d"]) -> Shaped[Tensor, "t h w d"]:
        """The keys of each block."""
        ...

    def put(self, into: Shaped[Tensor, "n h *d"], blocks: Shaped[Tensor, "t h c *d"]) -> None:
        """Writes the blocks of queries."""
        ...

    def add_keys(self, into: Shaped[Tensor, "n h d"], strips: Shaped[Tensor, "t h w d"]) -> None:
        """Adds numbers to the keys of each block; keys of several blocks get the sum."""
        ...


class Plan(NamedTuple):
    """The parts of some sequences of a batch."""

    sequences: slice
    parts: Sequence[Part]


def attend(
    q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], plans: Sequence[Plan]
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n"]]:
    """Returns the mixed values and the logarithm of each query's normaliser; zeros for queries in no part.

    The kernel needs values of the same dimension as the keys, so the smaller of the two is padded with zeros.
    """
    d, e = q.shape[-1], v.shape[-1]
    plans = plans if q.numel() else []
    if d < e:
        q, k = F.pad(q, (0, e - d)), F.pad(k, (0, e - d))
    elif e < d:
        v = F.pad(v, (0, d - e))
    if needs_gradient(q, k, v):
        mixed, normaliser = _Parts.apply(q, k, v, plans, d**-0.5)  # type: ignore[no-untyped-call]
    else:
        mixed, normaliser = _mix(q, k, v, plans, d**-0.5)
    return mixed[..., :e], normaliser


class _Parts(torch.autograd.Function):
    """With weights P_ij = exp(s_ij - l_i) and G the gradient of the result: dv = P^T G, and the gradient of the scores is
    P_ij (G_i . v_j - G_i . out_i), part by part."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plans: Sequence[Plan], scale: float) -> tuple[Tensor, Tensor]:
        mixed, normaliser = _mix(q, k, v, plans, scale)
        ctx.save_for_backward(q, k, v, mixed, normaliser)
        ctx.plans, ctx.scale = plans, scale
        ctx.mark_non_differentiable(normaliser)
        return mixed, normaliser

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients = [_like(x) for x in inputs[:3]]
        for sequences, parts in ctx.plans:
            q, k, v, mixed, normaliser, given = (_inside(x[sequences]) for x in (*inputs, gradient))
            dq, dk, dv = (x[sequences].movedim(2, 0) for x in gradients)
            for part in chain.from_iterable(whole.pieces_of_keys(q.shape[1] * q.shape[2]) for whole in parts):
                saved = [part.queries(x) for x in (mixed, normaliser)]
                blocks, keys, values = part.queries(q), part.keys(k), part.keys(v)
                mask, scale = _as_wide(part.mask, blocks, keys), ctx.scale
                for_q, for_k, for_v = _backward(
                    part.queries(given), blocks, keys, values, *saved, 0.0, False, attn_mask=mask, scale=scale
                )
                _put(part, dq, _queries(part, dq) + for_q if part.merges else for_q)
                _add_keys(part, dk, for_k)
                _add_keys(part, dv, for_v)
        return *gradients, None, None


def _mix(q: Tensor, k: Tensor, v: Tensor, plans: Sequence[Plan], scale: float) -> tuple[Tensor, Tensor]:
    b, h, n, _ = q.shape
    mixed, normaliser = _like(v), q.new_zeros(b, n, h).transpose(1, 2)
    for sequences, parts in plans:
        queries, keys, values = (_inside(x[sequences]) for x in (q, k, v))
        out, logs = (x[sequences].movedim(2, 0) for x in (mixed, normaliser))
        for part in chain.from_iterable(whole.pieces(queries.shape[1] * queries.shape[2]) for whole in parts):
            blocks, strips = part.queries(queries), part.keys(keys)
            mask = _as_wide(part.mask, blocks, strips)
            new, log = _forward(blocks, strips, part.keys(values), 0.0, False, attn_mask=mask, scale=scale)
            if part.merges:
                new, log = _merged(new, log, _queries(part, out), _queries(part, logs))
            _put(part, out, new)
            _put(part, logs, log)
    return mixed, normaliser


def _merged(new: Tensor, log: Tensor, old: Tensor, old_log: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.logaddexp(log, old_log)
    return new * (log - total).exp()[..., None] + old * (old_log - total).exp()[..., None], total


def _as_wide(mask: Tensor | None, blocks: Tensor, strips: Tensor) -> Tensor | None:
    return None if mask is None else mask.expand(*blocks.shape[:2], blocks.shape[2], strips.shape[2])


def _like(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
    """Zeros in which the heads of a position are next to each other in memory, so that merging heads is free."""
    b, h, n, d = x.shape
    return pages.new_zeros(x, b, n, h, d).transpose(1, 2)


def _inside(x: Shaped[Tensor, "b h n *d"]) -> Shaped[Tensor, "n bh *d"]:
    """Positions first, all heads next, to be read: a copy if several sequences have positions before heads in memory."""
    return x.movedim(2, 0).flatten(1, 2)


def _queries(part: Part, x: Shaped[Tensor, "n b h *d"]) -> Shaped[Tensor, "t bh c *d"]:
    """The blocks of queries of all sequences."""
    return torch.cat([part.queries(sequence) for sequence in x.unbind(1)], dim=1)


def _put(part: Part, into: Shaped[Tensor, "n b h *d"], blocks: Shaped[Tensor, "t bh c *d"]) -> None:
    """Writes the blocks of queries of all sequences."""
    for sequence, of_sequence in zip(into.unbind(1), blocks.split(into.shape[2], dim=1), strict=True):
        part.put(sequence, of_sequence)


def _add_keys(part: Part, into: Shaped[Tensor, "n b h d"], strips: Shaped[Tensor, "t bh w d"]) -> None:
    """Adds numbers to the keys of all sequences."""
    for sequence, of_sequence in zip(into.unbind(1), strips.split(into.shape[2], dim=1), strict=True):
        part.add_keys(sequence, of_sequence)
