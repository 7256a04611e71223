"""Calls of the native kernels of the hybrid (native/hybrid.h and hybrid_back.h).

Features of maps that the kernels know are computed inside of them and never written to memory. Those of other maps are
computed by PyTorch, for a few hundred positions at a time.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad import native
from subquad.ops.autocast import precise
from subquad.ops.linear.calls import GIVEN
from subquad.ops.linear.layout import KINDS, NO_STATE, NO_VIEW, NUMBERS, TYPES, Parts, contiguous, dense
from subquad.ops.linear.sums import LinearState, WeightGradients, new_mixed
from subquad.ops.scratch import Scratch
from subquad.types import FeatureFunction, Features, Fused, Maps

ALL_KINDS = {**KINDS, "learned": 5}
PIECE = 512  # positions whose features are computed at a time by PyTorch
GROUP = 256  # positions of a group of blocks in the bidirectional form, at least
LEAST_GROUP = 8  # blocks of a group, at least
LANES = 16  # numbers by which the rows of sums over groups may be longer in the kernels


class Piece(NamedTuple):
    """Blocks that one call of a kernel takes, with their features if PyTorch computes them."""

    first: int
    """First block."""
    last: int
    """Block after the last."""
    queries: "Given | None" = None
    """Queries with their features."""
    keys: "Given | None" = None
    """Keys with their features; in the causal form of earlier blocks."""


class Given(NamedTuple):
    """Positions whose features PyTorch computed."""

    positions: slice
    x: Tensor
    features: Features


class Side:
    """A feature function of queries or of keys, as kernels take it."""

    def __init__(self, phi: FeatureFunction, dtype: torch.dtype) -> None:
        self.phi = phi
        self.fused: Fused | None = phi.fused()
        self.omega: Tensor | None = None if self.fused is None else _as(self.fused.omega, dtype)
        self.bias: Tensor | None = None if self.fused is None else _as(self.fused.bias, dtype)

    def arguments(self, given: Given | None) -> tuple[int, ...]:
        """Arguments of a `feature_map` in native/feature_maps.h."""
        if self.fused is None:
            exponent = None if given is None else given.features.exponent
            return (GIVEN, 0, 0, 0, 0 if exponent is None else exponent.data_ptr())
        kind, omega = ALL_KINDS[self.fused.kind], self.omega
        if omega is None:
            return (kind, 0, 0, 0, 0)
        bias = 0 if self.bias is None else self.bias.data_ptr()
        return (kind, omega.shape[-1], omega.data_ptr(), omega.stride(0) if omega.ndim == 3 else 0, bias)

    def new_slopes(self, b: int, h: int) -> Tensor | None:
        """Memory for the gradient of learned directions, with the bias as a last row, for each head of each sequence."""
        if self.fused is None or self.fused.kind != "learned" or self.omega is None:
            return None
        d, r = self.omega.shape[-2:]
        return torch.zeros(b, h, d + 1, r, dtype=self.omega.dtype)

    def gradients(self, slopes: Tensor | None) -> list[Tensor]:
        """Returns the gradient of each weight of a map that the kernels know, from what they wrote."""
        if slopes is None or self.fused is None:
            return []
        parts = slopes.sum(0).split([slopes.shape[2] - 1, 1], dim=1)
        by_weight = {id(self.fused.omega): parts[0], id(self.fused.bias): parts[1]}
        return [by_weight[id(weight)].to(weight.dtype) for weight in self.phi.weights()]


def _as(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Returns a tensor as kernels read it."""
    if x is None or (x.dtype == dtype and x.is_contiguous()):
        return x
    return x.detach().to(dtype).contiguous()


class Inputs:
    """Queries, keys and values of a call, and the kernels on them."""

    def __init__(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n e"],
        maps: Maps,
        total: Int[Tensor, "b"],
        log_gain: Float[Tensor, "h"],
        block: int,
    ) -> None:
        self.q, self.k, self.v = dense(q), dense(k), dense(v)
        self.total, self.dtype, self.block = total.contiguous(), precise(q.dtype), block
        self.log_gain = log_gain.detach().to(self.dtype).contiguous()
        self.maps, self.m = maps, maps.keys.feature_count(k.shape[-1])
        self.queries, self.keys = Side(maps.queries, self.dtype), Side(maps.keys, self.dtype)
        self.is_fused = self.queries.fused is not None and self.keys.fused is not None
        self.blocks = -(-q.shape[2] // block)
        self.group = max(LEAST_GROUP, -(-GROUP // block))
        self._scratch = Scratch(self.dtype)

    # ---- memory

    def new_state(self) -> LinearState:
        b, h = self.q.shape[:2]
        e = self.v.shape[-1]
        return LinearState(*(torch.empty(b, h, *rest, dtype=self.dtype) for rest in ((self.m, e), (self.m,), ())))

    def for_each_position(self) -> Float[Tensor, "b h n"]:
        """Memory for one number for each position."""
        return torch.empty(self.q.shape[:3], dtype=self.dtype)

    def new_groups(self) -> Tensor:
        """Memory for the sums before and after each group of blocks."""
        b, h, _, e = self.v.shape
        rows = (self.m + LANES) * (e + 2 * LANES) + self.m + 4 * LANES
        return torch.empty(b * h * 2 * -(-self.blocks // self.group) * rows, dtype=self.dtype)

    # ---- pieces

    def pieces(self, *, causal: bool, extra: int = 0) -> list[tuple[int, int]]:
        """Ranges of blocks that one call takes, `extra` blocks beyond the last one included."""
        end = self.blocks + extra
        if self.is_fused or not self.blocks:
            return [(0, end)]
        unit = 1 if causal else self.group
        size = max(1, PIECE // (unit * self.block)) * unit
        return [(start, min(start + size, end)) for start in range(0, end, size)]

    def _features(self, side: Side, x: Tensor, first: int, last: int) -> Given | None:
        if self.is_fused:
            return None
        start, stop = (min(max(0, at) * self.block, x.shape[2]) for at in (first, last))
        part = x[:, :, start:stop].to(self.dtype)
        features = side.phi(part, self._scratch)
        exponent = None if features.exponent is None else features.exponent.contiguous()
        return Given(slice(start, stop), part, Features(dense(features.values), exponent))

    def piece(self, first: int, last: int, of_queries: tuple[int, int] | None, of_keys: tuple[int, int] | None) -> Piece:
        """Blocks of a call with the features of other ranges of blocks of queries and of keys."""
        self._scratch.start()
        queries = None if of_queries is None else self._features(self.queries, self.q, *of_queries)
        keys = None if of_keys is None else self._features(self.keys, self.k, *of_keys)
        return Piece(first, last, queries, keys)

    def run(
        self,
        name: str,
        piece: Piece,
        *,
        mixed: Tensor | None = None,
        gradient: Tensor | None = None,
        for_inputs: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
        for_features: tuple[Tensor | None, Tensor | None] = (None, None),
        inverse: Tensor | None = None,
        before: Parts = NO_STATE,
        after: Parts = NO_STATE,
        notes: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
        slopes: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
        groups: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> None:
        """Calls a kernel with the arguments of `hybrid_call` in native/hybrid.h, in its order."""
        b, h, n, d = self.q.shape
        arguments = [b, h, n, d, self.v.shape[-1], self.m, self.block, TYPES[self.q.dtype], TYPES[self.v.dtype]]
        arguments += [torch.get_num_threads(), piece.first, piece.last]
        arguments += [*self.queries.arguments(piece.queries), *self.keys.arguments(piece.keys)]
        given = [None if part is None else part.features.values for part in (piece.queries, piece.keys)]
        for view in (self.q, self.k, self.v, mixed, gradient, *for_inputs, *given, *for_features):
            arguments += NO_VIEW if view is None else (view.data_ptr(), *view.stride()[:3])
        places = [slice(0, 0) if part is None else part.positions for part in (piece.queries, piece.keys)]
        arguments += [*(at.start for at in places), *(at.stop - at.start for at in places)]
        for x in (self.total, self.log_gain, inverse, *before, *after, *notes, *slopes):
            arguments.append(0 if x is None else x.data_ptr())
        arguments += [self.group, *(0 if x is None else x.data_ptr() for x in groups)]
        native.call(name, NUMBERS[self.dtype], [*arguments, 0, 0, 0, 0, 0, 0, 0, 0, 0])

    # ---- forward

    def mix_causal(self, before: Parts, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        mixed, state, after = new_mixed(self.q, self.v), contiguous(before), self.new_state()
        for first, last in self.pieces(causal=True):
            after = self.new_state()
            piece = self.piece(first, last, (first, last), (first - 1, last - 1))
            self.run("hybrid_causal", piece, mixed=mixed, inverse=inverse, before=state, after=after)
            state = after
        return mixed, after

    def sum_groups(self) -> Tensor:
        groups = self.new_groups()
        for first, last in self.pieces(causal=False):
            self.run("hybrid_groups", self.piece(first, last, None, (first, last)), groups=(groups, None))
        return groups

    def mix_both(self, inverse: Tensor | None) -> Tensor:
        mixed, groups = new_mixed(self.q, self.v), self.sum_groups()
        for first, last in self.pieces(causal=False):
            piece = self.piece(first, last, (first, last), (first - 1, last + 1))
            self.run("hybrid_both", piece, mixed=mixed, inverse=inverse, groups=(groups, None))
        return mixed

    # ---- backward

    def back_causal(self, back: "Back", before: Parts, later: Parts) -> "Gradients":
        """Returns all gradients of the causal form; `later` is that of the sums and norms after the last position."""
        to, state = Gradients.zeros(self), contiguous(before)
        for_q, for_k = WeightGradients(self.maps.queries), WeightGradients(self.maps.keys)
        for first, last in self.pieces(causal=True):
            piece = self.piece(first, last, (first, last), (first - 1, last - 1))
            d_rows = _new_rows(piece.queries)
            self.run("hybrid_causal_queries", piece, before=state, **self._back(back, to, (d_rows, None)))
            if not self.is_fused:
                after = self.new_state()
                self.run("hybrid_fold", piece, before=state, after=after)
                state = after
            _pull_back(to.q, d_rows, piece.queries, for_q)
        state, d_state = later, self.new_state()
        for first, last in reversed(self.pieces(causal=True, extra=1)):
            piece, d_state = self.piece(first, last, (first, last), (first - 2, last - 2)), self.new_state()
            d_rows = _new_rows(piece.keys)
            d_before: Parts = (d_state.sums, d_state.norms, None)
            self.run("hybrid_causal_keys", piece, before=state, after=d_before, **self._back(back, to, (None, d_rows)))
            _pull_back(to.k, d_rows, piece.keys, for_k)
            state = d_before
        return to._replace(state=(d_state.sums, d_state.norms), weights=self._weights(to, for_q, for_k))

    def back_both(self, back: "Back") -> "Gradients":
        """Returns all gradients of the bidirectional form."""
        to, groups, slopes = Gradients.zeros(self), self.sum_groups(), self.new_groups()
        for_q, for_k = WeightGradients(self.maps.queries), WeightGradients(self.maps.keys)
        pieces = self.pieces(causal=False)
        for first, last in pieces:
            piece = self.piece(first, last, (first, last), (first - 1, last + 1))
            d_rows = _new_rows(piece.queries)
            self.run("hybrid_both_queries", piece, groups=(groups, None), **self._back(back, to, (d_rows, None)))
            _pull_back(to.q, d_rows, piece.queries, for_q)
        for first, last in pieces:
            piece = self.piece(first, last, (first, last), None)
            self.run("hybrid_slope_groups", piece, groups=(None, slopes), **self._back(back, to, (None, None)))
        for first, last in pieces:
            piece = self.piece(first, last, (first - 1, last + 1), (first, last))
            d_rows = _new_rows(piece.keys)
            self.run("hybrid_both_keys", piece, groups=(None, slopes), **self._back(back, to, (None, d_rows)))
            _pull_back(to.k, d_rows, piece.keys, for_k)
        return to._replace(weights=self._weights(to, for_q, for_k))

    def _back(self, back: "Back", to: "Gradients", for_features: tuple[Tensor | None, Tensor | None]) -> "BackArguments":
        return {
            "mixed": back.mixed,
            "gradient": back.gradient,
            "inverse": back.inverse,
            "for_inputs": (to.q, to.k, to.v),
            "for_features": for_features,
            "notes": to.notes,
            "slopes": to.slopes,
        }

    def _weights(self, to: "Gradients", for_q: WeightGradients, for_k: WeightGradients) -> list[Tensor]:
        """Returns the gradients of the feature functions' weights, those of queries first."""
        sides = zip((self.queries, self.keys), to.slopes[1:], (for_q, for_k), strict=True)
        return [x for side, slopes, totals in sides for x in (totals.totals if slopes is None else side.gradients(slopes))]


class Back(NamedTuple):
    """What the backward has beside the inputs: the result, its gradient and 1 / denominators."""

    mixed: Tensor
    gradient: Tensor
    inverse: Tensor


class BackArguments(TypedDict):
    """Arguments of `Inputs.run` that all kernels of the backward share."""

    mixed: Tensor
    gradient: Tensor
    inverse: Tensor
    for_inputs: tuple[Tensor, Tensor, Tensor]
    for_features: tuple[Tensor | None, Tensor | None]
    notes: tuple[Tensor, Tensor, Tensor]
    slopes: tuple[Tensor, Tensor | None, Tensor | None]


class Gradients(NamedTuple):
    """Gradients in full precision, and what the kernels note for each other."""

    q: Tensor
    k: Tensor
    v: Tensor
    notes: tuple[Tensor, Tensor, Tensor]
    """Factors of far keys and gradients of denominators of each position; peaks of the sums that each block sees."""
    slopes: tuple[Tensor, Tensor | None, Tensor | None]
    """Gradients of log_gain and of learned directions of queries and keys, for each head of each sequence."""
    state: tuple[Tensor, Tensor] | None = None
    """Gradients of sums and norms before the first position."""
    weights: Sequence[Tensor] = ()
    """Gradients of the weights of the feature functions."""

    @classmethod
    def zeros(cls, inputs: Inputs) -> "Gradients":
        b, h = inputs.q.shape[:2]
        dtype = inputs.dtype
        dq, dk, dv = (
            torch.empty_like(inputs.q, dtype=dtype),
            *(torch.zeros_like(x, dtype=dtype) for x in (inputs.k, inputs.v)),
        )
        peaks = torch.empty(b, h, inputs.blocks + 1, dtype=dtype)
        slopes = torch.zeros(b, h, dtype=dtype), inputs.queries.new_slopes(b, h), inputs.keys.new_slopes(b, h)
        return cls(dq, dk, dv, (inputs.for_each_position(), inputs.for_each_position(), peaks), slopes)


def _new_rows(given: Given | None) -> Tensor | None:
    """Memory for the gradient of features that PyTorch computed. Rows that no kernel writes are zero."""
    return None if given is None else torch.zeros_like(given.features.values)


def _pull_back(for_x: Tensor, d_rows: Tensor | None, given: Given | None, weights: WeightGradients) -> None:
    """Adds the gradient of x from that of its features; it is there already if the kernel computed it."""
    if given is not None and d_rows is not None:
        for_x[:, :, given.positions] += weights.pullback(given.x, given.features, d_rows)
