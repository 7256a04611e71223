"""Infinity-former (Martins et al. 2022): exact attention within a segment, and a continuous memory of all earlier ones.

The paper fits the hidden states and projects the coefficients to keys and values. Since the regression is linear, fitting
the projected keys and values gives the same coefficients. Unlike in the paper's code, gradients flow through the memory
unless `detached`, the memory is never cleared, and the signal is not forced to zero outside of [0, 1], which would distort
its ends.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention.base import LossTerm, Mechanism
from subquad.attention.checks import (
    COUNTS,
    Part,
    as_state,
    check_inputs,
    check_result,
    check_state,
    held_like,
    reusable,
    sums_like,
)
from subquad.checking import Count, InnerShare, NonNegative, Positive, PositiveShare, Whole
from subquad.errors import SubquadError
from subquad.ops import exact, memory, streams
from subquad.ops.autocast import precise, product, without_autocast
from subquad.ops.packing import Packed, Segment, join, pack, pick, put, real, segments, unpack
from subquad.ops.streams import InfinityState, Memory
from subquad.types import AttentionOptions, Keep, Keys, MechanismSize, Mixed, Queries, Traits, Values, Window, up_to

WIDEST = 0.5
"""Initial width of a query's density with one head; several heads divide the memory between them."""


@dataclass(frozen=True)
class Infinity(AttentionOptions):
    """Exact attention within a segment, and a memory of fixed size for all earlier segments of a stream."""

    segment: Count = 512  # length of a segment, within which attention is exact
    basis: Whole = 256  # number of basis functions of the memory (N in the paper); 0 for no memory
    points: Count = 256  # number of points at which the memory is read when it is rewritten (M)
    tau: InnerShare = 0.75  # share of the memory to which the past is contracted when a segment is added
    widths: tuple[PositiveShare, ...] = (0.01, 0.05)  # widths of the basis functions, as shares of the memory
    ridge: Positive = 1.0  # penalty of the ridge regression (lambda)
    sticky: bool = False  # whether points are drawn where attention was high, instead of evenly spaced
    bins: Count = 128  # number of bins of the attention histogram, for sticky
    previous: bool = False  # whether attention to the previous segment is also exact
    both: bool = False  # whether bidirectional use also has a memory of later segments
    detached: bool = False  # whether gradients stop at the memory, as in the paper's code
    divergence: NonNegative = 0.0  # weight of the KL divergence from the prior in the loss; 1e-6 in the paper
    prior_width: Positive = 0.05  # width of the prior density (sigma_0)
    kind: str = field(default="infinity", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L (S + N) d",
            space="S d + N d",
            gives_up="what is older than a segment is seen through a signal of fixed resolution, at one stretch for each "
            "head",
            window=Window(self.segment, before=int(self.previous)),
            aligned=True,
            adds_to_loss=self.divergence > 0,
        )

    def check(self) -> None:
        if not self.widths:
            raise SubquadError("infinity's widths must name at least one width, such as 0.05")
        if self.basis % len(self.widths):
            raise SubquadError(f"infinity's basis must be a multiple of its {len(self.widths)} widths, but is {self.basis}")

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"segment": up_to(length // 2, (16, 32, 64, 128, 256, 512)), "basis": (16, 64, 256)}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        basis, points = self.basis, self.points
        read = 2 * heads * (basis + 1) + 2 * points
        solved = basis * (2 * self.segment + points + basis) + basis // len(self.widths) + len(self.widths)
        return MechanismSize(read + solved, 2 * heads * basis * head_dim + self.bins + self.segment, derived=solved)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "InfinityAttention":
        return InfinityAttention(self, heads, head_dim, generator)


class Divergence(LossTerm):
    """KL divergence of the queries' densities from densities with the same mean and the width `prior_width`."""

    def __init__(self, weight_in_loss: float, prior_width: float) -> None:
        super().__init__(weight_in_loss)
        self.prior_width = prior_width

    def forward(self, variance: Tensor) -> Tensor:
        """Returns the mean divergence over queries and heads."""
        return memory.divergence(variance, self.prior_width).mean()


class InfinityAttention(Mechanism):
    """softmax(q k^T / sqrt d) v in the segment, plus E[v(t)] for t ~ N(mu(q), sigma^2(q)) over the memory."""

    options: Infinity
    places: Tensor
    within: Tensor
    basis_centres: Tensor
    basis_widths: Tensor
    first: Tensor
    new: Tensor
    kept: Tensor
    past: Tensor

    def __init__(self, options: Infinity, heads: int, head_dim: int, generator: torch.Generator | None) -> None:
        super().__init__(options, heads, head_dim)
        # equations 6 and 7: affine maps of K q / sqrt d to mu and sigma^2
        self.weight = nn.Parameter(torch.zeros(heads, 2, options.basis))
        self.bias = nn.Parameter(torch.zeros(heads, 2))
        places = torch.rand(2, options.points, generator=generator)
        self.register_buffer("places", places[0].sort().values)
        self.register_buffer("within", places[1])
        self.divergence = Divergence(options.divergence, options.prior_width)
        self._start()
        self._fit()

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. With as many queries as keys, positions correspond; else queries follow the keys."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        with without_autocast(q):
            packed = pack(q if q.shape[2] == k.shape[2] else k, k, v, keep)
            mixed = self.aligned(packed, keep) if q.shape[2] == k.shape[2] else self._behind(q, packed, keep)
        return check_result(mixed.to(v.dtype), q, k, v, q, packed.k, packed.v)

    def causal(
        self, q: Queries, k: Keys, v: Values, state: InfinityState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, InfinityState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        with without_autocast(q):
            plain = state is None and keep is None
            before = self._checked(state, k, v) if state is not None else self._empty(k, v)
            skipped = 0 if state is None else before.keys.shape[2]
            packed = streams.continue_state(q, k, v, before, keep) if state is not None else pack(q, k, v, keep)
            held, parts = streams.memory_of(before), []
            pieces = segments(packed, self.options.segment)
            for at, piece in enumerate(pieces):
                start, end = at * self.options.segment, (at + 1) * self.options.segment
                places = torch.arange(start, end, device=q.device)
                asking = None if plain else real(packed, start, end) & (places >= before.filled[:, None])
                mixed = self._exact(pieces, at)
                if self.options.basis and not (state is None and start == 0):
                    recalled, histogram = self._recall(piece.q, held, asking)
                    mixed, held = mixed + recalled, held._replace(histogram=histogram)
                parts.append(mixed)
                full: bool | Tensor = end <= packed.k.shape[2]
                if not plain and full:
                    full = (packed.total >= end) & ((before.filled < end) if start == 0 else True)
                held = self._write(held, piece.k, piece.v, full, first=state is None and start == 0)
            mixed = unpack(packed, join(parts))[:, :, skipped:]
            after = streams.last_state(packed, held, self.options.segment, self._held_length)
        also = (packed.q, packed.k, packed.v, *self._drawn_from(before))
        return check_result(mixed.to(v.dtype), q, k, v, *also, state=before), after

    def step(
        self, q: Queries, k: Keys, v: Values, state: InfinityState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, InfinityState]:
        """Attends from one position, in time that does not depend on the number of positions before it."""
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        state = None if state is None else self._checked(state, k, v)
        state = reusable(self, state, q, k, v) if reuse else state
        if q.shape[2] != 1:
            return self.causal(q, k, v, state)
        with without_autocast(q):
            before = self._empty(k, v) if state is None else state
            reuse = reuse and state is not None
            keys, values = (put(x, new, before.filled, reuse=reuse) for x, new in ((before.keys, k), (before.values, v)))
            seen = torch.arange(keys.shape[2], device=q.device) <= before.filled[:, None]
            mixed = exact.attend(q, keys, values, seen[:, None, None, :])
            held = streams.memory_of(before)
            if self.options.basis:
                recalled, histogram = self._recall(q, held, None)
                mixed, held = mixed + recalled, held._replace(histogram=histogram)
            filled, segment = before.filled + 1, self.options.segment
            full = filled == (torch.where(before.written > 0, 2, 1) * segment if self.options.previous else segment)
            if torch.compiler.is_compiling() or bool(full.any()):
                begin = streams.last_segment(filled, segment)
                held = self._write(held, pick(keys, begin), pick(values, begin), full)
                keys, values, filled = streams.make_space(keys, values, filled, full, segment)
        after = InfinityState(keys, values, *held[:2], filled, held.written)
        return check_result(mixed.to(v.dtype), q, k, v, q, k, v, *self._drawn_from(before), state=before), after

    def densities(self, q: Queries, signal: Tensor) -> tuple[Tensor, Tensor]:
        """Equations 6 and 7: returns mu and sigma^2 of each query. Weights times keys are computed first, for speed."""
        guides = product(self.weight.to(signal.dtype), signal[..., : self.head_dim])
        scores = product(q.to(signal.dtype), guides.mT) / math.sqrt(self.head_dim) + self.bias.to(signal.dtype)[:, None]
        return torch.sigmoid(scores[..., 0]), F.softplus(scores[..., 1])

    def _start(self) -> None:
        """Initializes each head to attend to its own part of the memory, and to move towards keys similar to the query.

        The weights of mu are proportional to t - 1/2, so that similar keys at t move the mean towards t.
        """
        options = self.options
        stretches = (torch.arange(self.heads) + 0.5) / self.heads
        spread = torch.tensor(max(WIDEST / self.heads, options.prior_width)).square()
        with torch.no_grad():
            if options.basis:
                centres = memory.make_basis(options.basis, options.widths).centres.float()
                self.weight[:, 0] = 4.0 * (centres.repeat(len(options.widths)) - 0.5)
            self.bias[:, 0] = torch.logit(stretches)
            self.bias[:, 1] = torch.log(torch.expm1(spread))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "InfinityAttention":
        """Solves the regressions again when the module changes its dtype or device, so that they are never rounded."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._fit()
        return self

    def _fit(self) -> None:
        options = self.options
        where: dict[str, Any] = {"dtype": precise(self.weight.dtype), "device": self.weight.device}
        basis = memory.make_basis(options.basis, options.widths)
        factors = memory.factors(basis, options.segment, options.points, options.tau, options.ridge)
        for name, value in (*zip(("basis_centres", "basis_widths"), basis, strict=True), *factors._asdict().items()):
            self.register_buffer({"points": "kept"}.get(name, name), value.to(**where), persistent=False)

    def _basis(self) -> memory.Basis:
        return memory.Basis(self.basis_centres, self.basis_widths)

    def _empty(self, k: Tensor, v: Tensor) -> InfinityState:
        return streams.empty_state(k, v, self._held_length, basis=self.options.basis, bins=self.options.bins)

    @property
    def _held_length(self) -> int:
        """Number of positions whose keys and values a state holds."""
        return self.options.segment * (2 if self.options.previous else 1)

    def _write(self, held: Memory, k: Tensor, v: Tensor, full: bool | Tensor, *, first: bool = False) -> Memory:
        """Writes a segment into the memory, for the sequences whose segment is full."""
        if self.options.detached:
            k, v = k.detach(), v.detach()
        factors = memory.Factors(self.first, self.new, self.kept, self.past)
        points = streams.Points(self._basis(), self.places, self.within) if self.options.sticky else None
        return streams.write(held, k, v, factors, points, full, first=first)

    def _checked(self, state: InfinityState, k: Tensor, v: Tensor) -> InfinityState:
        state = as_state(InfinityState, state)
        b, h, _, d = k.shape
        length, e = self._held_length, v.shape[3]
        held, sums = held_like(v), sums_like(v)
        parts = {
            "keys": Part((b, h, length, d), held),
            "values": Part((b, h, length, e), held),
            "signal": Part((b, h, self.options.basis, d + e), sums),
            "histogram": Part((b, self.options.bins), sums),
            "filled": Part((b,), COUNTS),
            "written": Part((b,), COUNTS),
        }
        check_state(state, v, parts)
        return state._replace(keys=state.keys.to(k.dtype), values=state.values.to(v.dtype))

    def _exact(self, pieces: Sequence[Segment], at: int) -> Tensor:
        """Returns the causal softmax attention of a segment."""
        q, k, v = pieces[at]
        if not (self.options.previous and at):
            return exact.attend(q, k, v, causal=True)
        k, v = (torch.cat(both, dim=2) for both in ((pieces[at - 1].k, k), (pieces[at - 1].v, v)))
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(self.options.segment)
        return exact.attend(q, k, v, mask)

    def _recall(self, q: Tensor, held: Memory, asking: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the memory's output for these queries, and the histogram with the attention of the queries in `asking`."""
        mean, variance = self.densities(q, held.signal)
        if self.training and self.options.divergence:
            self.divergence(variance)
        recalled = memory.read(self._basis(), held.signal[..., self.head_dim :], mean, variance)
        if not self.options.sticky:
            return recalled.to(q.dtype), held.histogram
        with torch.no_grad():
            counted = None if asking is None else asking[:, : q.shape[2]]
            attended = memory.shares(mean, variance, counted, self.options.bins) * (held.written > 0)[:, None]
        return recalled.to(q.dtype), held.histogram + attended

    def _drawn_from(self, before: InfinityState) -> tuple[Tensor, ...]:
        """Returns the histogram if points are drawn from it, to be checked: NaN in it does not reach the result."""
        return (before.histogram,) if self.options.sticky else ()

    def aligned(self, packed: Packed, keep: Tensor | None, start: Memory | None = None) -> Tensor:
        """Bidirectional attention in the segment, plus the memory of earlier segments and, with `both`, of later ones.

        `start` is the memory of segments before the packed ones.
        """
        pieces, segment = segments(packed, self.options.segment), self.options.segment
        parts = [self._whole_segment(packed, pieces, at, keep) for at in range(len(pieces))]
        for way in ("before", "after") if self.options.both else ("before",):
            held = start or streams.memory_of(self._empty(packed.k, packed.v))
            for at, piece in enumerate(pieces) if way == "before" else reversed(list(enumerate(pieces))):
                nothing_yet = start is None and at == (0 if way == "before" else len(pieces) - 1)
                if self.options.basis and not nothing_yet:
                    asking = real(packed, at * segment, (at + 1) * segment)
                    recalled, histogram = self._recall(piece.q, held, asking)
                    parts[at], held = parts[at] + recalled, held._replace(histogram=histogram)
                if at != (len(pieces) - 1 if way == "before" else 0):
                    held = (
                        self._append(held, packed, piece, at) if way == "before" else self._prepend(held, packed, piece, at)
                    )
        return unpack(packed, join(parts))

    def _whole_segment(self, packed: Packed, pieces: Sequence[Segment], at: int, keep: Tensor | None) -> Tensor:
        first = max(0, at - 1) if self.options.previous else at
        k, v = (torch.cat(parts, dim=2) for parts in list(zip(*pieces[first : at + 1], strict=True))[1:])
        mask = None
        if keep is not None:
            start = first * self.options.segment
            mask = real(packed, start, start + k.shape[2])[:, None, None, :]
        return exact.attend(pieces[at].q, k, v, mask)

    def _append(self, held: Memory, packed: Packed, piece: Segment, at: int) -> Memory:
        full = True if packed.places is None else packed.total >= (at + 1) * self.options.segment
        return self._write(held, piece.k, piece.v, full)

    def _prepend(self, held: Memory, packed: Packed, piece: Segment, at: int) -> Memory:
        """Writes a segment in reversed order. The last segment may not be full and then needs its own regression."""
        k, v = (x.flip(2) for x in (piece.k, piece.v))
        count = (packed.total - at * self.options.segment).clamp(0, self.options.segment)
        part = (count > 0) & (count < self.options.segment)
        missing = self.options.segment - k.shape[2]
        k, v = (F.pad(x, (0, 0, missing, 0)) for x in (k, v))
        written = self._write(held, k, v, count == self.options.segment)
        if not (torch.compiler.is_compiling() or bool(part.any())) or not self.options.basis:
            return written
        if self.options.detached:
            k, v = k.detach(), v.detach()
        alone = streams.fit_end(self._basis(), torch.cat([k, v], dim=3).to(held.signal.dtype), count, self.options.ridge)
        signal = torch.where(part[:, None, None, None], alone, written.signal)
        return written._replace(signal=signal, written=torch.where(part, 1, written.written))

    def _behind(self, q: Tensor, packed: Packed, keep: Tensor | None) -> Tensor:
        """Attention of queries after all keys: exact to the last segment, through the memory to the others."""
        segment, length = self.options.segment, packed.k.shape[2]
        held = streams.memory_of(self._empty(packed.k, packed.v))
        for at, piece in enumerate(segments(packed, segment)[:-1]):
            full = True if keep is None else packed.total > (at + 1) * segment
            held = self._write(held, piece.k, piece.v, full)
        last = ((packed.total - 1).clamp_min(0) // segment * segment)[:, None]
        places = last + torch.arange(min(segment, length), device=q.device)
        seen = (places < packed.total[:, None])[:, None, None, :]
        k, v = (pick(x, places.clamp(max=max(0, length - 1))) for x in (packed.k, packed.v))
        mixed = exact.attend(q, k, v, seen)
        if self.options.basis and length > segment:
            mixed = mixed + self._recall(q, held, None)[0]
        return mixed
