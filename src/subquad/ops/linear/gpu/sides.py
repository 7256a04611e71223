"""Queries and keys as Triton kernels read them, peaks, and sums over chunks.

elu+1, ReLU and FAVOR+'s positive and hyperbolic features are computed inside the kernels. Features of other maps are
computed by PyTorch for the whole sequence, once in the forward and once in the backward.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.autocast import precise
from subquad.ops.linear.fused import FusedMaps, new_state
from subquad.ops.linear.gpu import kernels
from subquad.ops.linear.gpu.kernels import Peaks, Plan, Side, View
from subquad.ops.linear.gpu.plans import blocks_of, fixed, launch, new_plan, scan_block
from subquad.ops.linear.layout import KINDS, Parts, dense
from subquad.ops.linear.sums import LinearState, finite, kept, kept_features
from subquad.types import Features, Fused, Maps

LOG2_E = math.log2(math.e)
WHOLE = slice(None)
SPANS = 64  # most spans of chunks that are summed side by side, where all keys are added to one sum


class Rows(NamedTuple):
    """Queries or keys as kernels read them, and what PyTorch needs of them."""

    side: Side
    exponent: Float[Tensor, "bh n"] | None
    x: Tensor
    features: Features | None


def view(x: Tensor) -> View:
    """Returns a tensor "b h n x" as kernels read it."""
    return View(x, *x.stride()[:3])


class GpuSides:
    """Queries, keys and values of a call as kernels read them, and the sums over chunks of them."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, maps: Maps | FusedMaps, keep: Tensor | None) -> None:
        self.q, self.k, self.v, self.maps, self.keep = dense(q), dense(k), dense(v), maps, keep
        self.dtype, self.bytes = precise(q.dtype), None if keep is None else dense(keep).view(torch.uint8)
        self.m = maps.feature_count(q.shape[-1]) if isinstance(maps, FusedMaps) else maps.keys.feature_count(k.shape[-1])
        self.weight_gradients: Sequence[Tensor] = ()
        self.heads = q.shape[0] * q.shape[1]

    # ---- memory

    def new_state(self) -> LinearState:
        """Memory for a state."""
        return new_state(self.q, self.v, self.m)

    def new_inverse(self) -> Float[Tensor, "bhn"]:
        """Memory for 1 / denominators."""
        return self._new(self.q.shape[:3].numel())

    def _new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.q.device)

    def _plan(self, n: int, *, causal: bool) -> Plan:
        return new_plan(self.q, self.v, n, self.m, self.maps, causal=causal)

    # ---- queries and keys

    def _queries(self) -> Rows:
        if isinstance(self.maps, FusedMaps):
            return self._fused(self.q, self.maps.queries, None)
        x = self.q.to(self.dtype)
        return self._given(x, self.maps.queries(x), None)

    def _keys(self) -> Rows:
        if isinstance(self.maps, FusedMaps):
            return self._fused(self.k, self.maps.keys, self.bytes)
        x = kept(self.k, self.keep, WHOLE)
        return self._given(x, kept_features(self.maps.keys, x, self.keep, WHOLE), self.bytes)

    def _given(self, x: Tensor, features: Features, keep: Tensor | None) -> Rows:
        """Returns features that PyTorch has computed."""
        values = dense(features.values.detach())
        exponent = None if features.exponent is None else features.exponent.detach().flatten(0, 1)[..., 0].contiguous()
        padding = (x if keep is None else keep, 0 if keep is None else keep.stride(0))
        return Rows(Side(view(values), x, x, 0, x, *padding, fixed(0), fixed(keep is not None)), exponent, x, features)

    def _fused(self, x: Tensor, fused: Fused, keep: Tensor | None) -> Rows:
        """Returns numbers from which kernels compute features. Those of FAVOR+ need the largest one of each position."""
        kind, omega, padding = (
            KINDS[fused.kind],
            fused.omega,
            (x if keep is None else keep, 0 if keep is None else keep.stride(0)),
        )
        if omega is None:
            return Rows(Side(view(x), x, x, 0, x, *padding, fixed(kind), fixed(keep is not None)), None, x, None)
        d, n = x.shape[-1], x.shape[2]
        turned = (omega * d**-0.25).to(self.dtype).contiguous()
        powers = (omega * (LOG2_E * d**-0.25)).to(self.dtype).contiguous()
        head = turned.stride(0) if omega.ndim == 3 else 0
        largest, squared = self._new(self.heads, n), self._new(self.heads, n)
        side = Side(view(x), powers, turned, head, largest, *padding, fixed(kind), fixed(keep is not None))
        plan = self._plan(n, causal=False)
        if largest.numel():
            launch(self.q, kernels.largest_products, (self.heads * plan.chunks,), side, plan, largest, squared)
        exponent = largest - squared * (LOG2_E / 2 * d**-0.5) - math.log2(self.m) / 2
        if keep is not None:
            hidden = (keep == 0)[:, None].expand(*x.shape[:3]).flatten(0, 1)
            exponent = exponent.masked_fill(hidden, -math.inf)
        return Rows(side, exponent, x, None)

    def _causal_peaks(self, exponent: Tensor | None, peak: Tensor | None, plan: Plan) -> tuple[Peaks, Tensor]:
        """Returns the peaks before each chunk and after the last "bh t+1", also as kernels read them."""
        if exponent is None:
            level = torch.zeros(self.heads, 1, dtype=self.dtype, device=self.q.device)
            peaks = (level if peak is None else peak.reshape(-1, 1)).expand(-1, plan.chunks + 1)
            return Peaks(self.q, self.q, fixed(False)), peaks
        start = torch.full_like(exponent[:, :1], -math.inf) if peak is None else peak.reshape(-1, 1)
        padded = F.pad(exponent, (0, plan.chunks * plan.chunk.value - exponent.shape[1]), value=-math.inf)
        highest = padded.view(self.heads, plan.chunks, plan.chunk.value).amax(2)
        peaks = torch.cat([start, highest], dim=1).cummax(1).values
        return Peaks(exponent, peaks, fixed(True)), peaks

    # ---- sums

    def _sum(self, rows: Rows, right: View, back: tuple[Tensor, Tensor] | None, peaks: Peaks, plan: Plan) -> list[Tensor]:
        """Returns sums "bh t m e" and norms "bh t m" of each chunk, or of spans of chunks in the bidirectional form."""
        spans = plan.chunks if plan.causal.value else min(plan.chunks, SPANS)
        each = -(-plan.chunks // spans)
        sums, norms = self._new(self.heads, spans, self.m, plan.e), self._new(self.heads, spans, self.m)
        inverse, scale = (self.q, self.q) if back is None else back
        grid = (self.heads * spans, blocks_of(self.m, plan.feature_tile.value), blocks_of(plan.e, plan.value_tile.value))
        launch(
            self.q,
            kernels.sum_chunks,
            grid,
            rows.side,
            right,
            inverse,
            scale,
            peaks,
            plan,
            sums,
            norms,
            spans,
            each,
            of_keys=back is None,
        )
        return [sums, norms]

    def _scan(self, terms: list[Tensor], start: Parts, peaks: Peaks, all_peaks: Tensor, *, reverse: bool) -> list[Tensor]:
        """Replaces terms of chunks by the sums before (or after) them, and returns the sums over all."""
        fades = torch.exp2(all_peaks[:, :-1] - finite(all_peaks[:, 1:])).contiguous() if peaks.fading.value else self.q
        ends = []
        for part, first in zip(terms, start[:2], strict=True):
            steps, size = part.shape[1], part[0, 0].numel()
            begin = torch.zeros_like(part[:, 0]) if first is None else first.to(self.dtype).contiguous()
            ends.append(torch.empty_like(begin))
            block = scan_block(size)
            grid = (self.heads, blocks_of(size, block))
            launch(
                self.q,
                kernels.scan,
                grid,
                part,
                fades,
                begin,
                ends[-1],
                steps,
                size,
                reverse=reverse,
                fading=peaks.fading.value,
                block=block,
            )
        return ends
