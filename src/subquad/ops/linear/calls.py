"""Calls of the native kernels of linear attention: pieces of a sequence, memory for results, arguments in C's order."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from subquad import native
from subquad.ops.autocast import precise
from subquad.ops.linear.layout import Parts, contiguous, dense, dense_features, part, with_type
from subquad.ops.linear.sums import LinearState, WeightGradients, blocks, kept, kept_features, new_mixed
from subquad.ops.scratch import Scratch
from subquad.ops.threads import share_with_pytorch
from subquad.types import FeatureFunction, Features, Fused, Maps

KINDS = {"elu": 1, "relu": 2, "positive": 3, "hyperbolic": 4}
GIVEN = 0  # kind of a map whose features are computed before
TYPES = {torch.float32: 0, torch.float64: 0, torch.bfloat16: 1, torch.float16: 2}
NUMBERS = {torch.float32: "float", torch.float64: "double"}
PIECE = 512  # positions whose features are computed at a time by PyTorch; whole chunks
CHUNK = 32  # positions of a chunk in the kernels

NO_STATE: Parts = (None, None, None)
NO_VIEW = (0, 0, 0, 0)
NOT_FINITE = 2  # what kernels return if a result is not finite


class ResultNotFiniteError(Exception):
    """A kernel's result is not finite, where the caller asked to be told."""


def fused_by_kernels(side: FeatureFunction) -> Fused | None:
    """Returns what the kernels need to compute the features; None for learned ones, whose weights need gradients too."""
    fused = side.fused()
    return None if fused is None or fused.kind not in KINDS else fused


def map_arguments(fused: Fused) -> tuple[int, ...]:
    """Arguments of a `feature_map` in native/feature_maps.h; random directions must be contiguous and of the right type."""
    omega = fused.omega
    if omega is None:
        return (KINDS[fused.kind], 0, 0, 0, 0)
    return (KINDS[fused.kind], omega.shape[-1], omega.data_ptr(), omega.stride(0) if omega.ndim == 3 else 0, 0)


class Back(NamedTuple):
    """What the backward has beside the inputs: the result, its gradient and 1 / denominators."""

    mixed: Tensor
    gradient: Tensor
    inverse: Tensor


class _Piece(NamedTuple):
    """Positions that one call of a kernel takes, with their features if PyTorch computes them."""

    positions: slice
    x: Tensor
    features: Features | None

    @property
    def rows(self) -> Tensor:
        """What the kernel reads: features, or the queries or keys themselves."""
        return self.x if self.features is None else self.features.values


class Inputs:
    """Queries, keys and values of a call, and the kernels on them."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None, must_be_finite: bool = False
    ) -> None:
        share_with_pytorch()
        self.q, self.k, self.v = dense(q), dense(k), dense(v)
        self.keep = None if keep is None else dense(keep)
        self.maps, self.dtype, self.must_be_finite = maps, precise(q.dtype), must_be_finite
        self.m = maps.keys.feature_count(k.shape[-1])
        sides = [fused_by_kernels(side) for side in maps]
        self.is_fused = sides[0] is not None and sides[1] is not None
        self._fused = [None if side is None else with_type(side, self.dtype) for side in sides]
        self._held_scratch: Scratch | None = None
        self._inputs: tuple[int, ...] = ()
        if self.is_fused:
            queries, keys = (_Piece(slice(0, x.shape[2]), x, None) for x in (self.q, self.k))
            self._inputs = self._arguments_of(queries, keys)

    @property
    def _scratch(self) -> Scratch:
        """Memory for features that PyTorch computes, made when it is needed."""
        if self._held_scratch is None:
            self._held_scratch = Scratch(self.dtype)
        return self._held_scratch

    def _start(self) -> None:
        """Starts a new piece, whose features may take the memory of the piece before."""
        if not self.is_fused:
            self._scratch.start()

    # ---- memory

    def new_state(self) -> LinearState:
        b, h, m, e, dtype = *self.q.shape[:2], self.m, self.v.shape[-1], self.dtype
        return LinearState(
            torch.empty(b, h, m, e, dtype=dtype), torch.empty(b, h, m, dtype=dtype), torch.empty(b, h, dtype=dtype)
        )

    def new_inverse(self) -> Float[Tensor, "bhn"]:
        """Memory for 1 / denominators, piece after piece."""
        return torch.empty(self.q.shape[:3].numel(), dtype=self.dtype)

    def _inverse_of(self, inverse: Tensor | None, positions: slice) -> Tensor | None:
        if inverse is None or self.is_fused:
            return inverse
        heads = self.q.shape[0] * self.q.shape[1]
        return inverse[heads * positions.start : heads * positions.stop]

    def _new_peaks(self, length: int) -> Tensor:
        return torch.empty(*self.q.shape[:2], -(-length // CHUNK) + 1, dtype=self.dtype)

    # ---- pieces

    def _positions(self, length: int) -> list[slice]:
        return [slice(0, length)] if self.is_fused or not length else list(blocks(length, PIECE))

    def _queries(self, positions: slice) -> _Piece:
        if self.is_fused:
            return _Piece(positions, self.q, None)
        x = part(self.q, positions).to(self.dtype)
        return _Piece(positions, x, dense_features(self.maps.queries(x, self._scratch)))

    def _keys(self, positions: slice) -> _Piece:
        if self.is_fused:
            return _Piece(positions, self.k, None)
        x = kept(self.k, self.keep, positions)
        features = kept_features(self.maps.keys, x, self.keep, positions, self._scratch)
        return _Piece(positions, x, dense_features(features))

    def _run(
        self,
        name: str,
        queries: _Piece | None,
        keys: _Piece | None,
        *,
        mixed: Tensor | None = None,
        gradient: Tensor | None = None,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
        inverse: Tensor | None = None,
        before: Parts = NO_STATE,
        after: Parts = NO_STATE,
        peaks: Tensor | None = None,
    ) -> None:
        """Calls a kernel with the arguments of `linear_call` in native/chunk.h, in its order.

        Raises `ResultNotFiniteError` if a result is not finite and must be.
        """
        arguments = self._inputs if self._inputs else self._arguments_of(queries, keys)
        for view in (mixed, gradient, dq, dk, dv):
            arguments = arguments + (NO_VIEW if view is None else (view.data_ptr(), *view.stride()[:3]))
        keep = self.keep if self.is_fused or self.keep is None or keys is None else self.keep[:, keys.positions]
        kept_at = (0, 0) if keep is None else (keep.data_ptr(), keep.stride(0))
        pointers = [0 if x is None else x.data_ptr() for x in (inverse, *before, *after, peaks)]
        status = native.call(name, NUMBERS[self.dtype], (*arguments, *kept_at, *pointers, 0, 0, 0))
        if status == NOT_FINITE and self.must_be_finite:
            raise ResultNotFiniteError

    def _arguments_of(self, queries: _Piece | None, keys: _Piece | None) -> tuple[int, ...]:
        """The first arguments of every kernel: sizes, types, maps, queries, keys and values. The same for whole inputs."""
        b, h, _, d = self.q.shape
        queried = slice(0, 0) if queries is None else queries.positions
        keyed = slice(0, 0) if keys is None else keys.positions
        v = part(self.v, keyed)
        width, type_of_rows = (d, TYPES[self.q.dtype]) if self.is_fused else (self.m, 0)
        sizes = (b, h, queried.stop - queried.start, keyed.stop - keyed.start, width, v.shape[-1], self.m)
        arguments: tuple[int, ...] = (*sizes, type_of_rows, TYPES[self.v.dtype], torch.get_num_threads())
        arguments += (*self._map(0, queries), *self._map(1, keys))
        for rows in (queries, keys):
            arguments += NO_VIEW if rows is None else (rows.rows.data_ptr(), *rows.rows.stride()[:3])
        return (*arguments, v.data_ptr(), *v.stride()[:3])

    def _map(self, side: int, piece: _Piece | None) -> tuple[int, ...]:
        """Arguments of a `feature_map` in native/feature_maps.h."""
        fused = self._fused[side]
        if self.is_fused and fused is not None:
            return map_arguments(fused)
        exponent = None if piece is None or piece.features is None else piece.features.exponent
        return (GIVEN, 0, 0, 0, 0 if exponent is None else exponent.data_ptr())

    # ---- the causal form

    def mix_causal(self, before: Parts, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        mixed, state = new_mixed(self.q, self.v), contiguous(before)
        for positions in self._positions(self.q.shape[2]):
            self._start()
            after = self.new_state()
            self._run(
                "causal",
                self._queries(positions),
                self._keys(positions),
                mixed=part(mixed, positions),
                inverse=self._inverse_of(inverse, positions),
                before=state,
                after=after,
            )
            state = after
        return mixed, after  # there is always a piece, if an empty one

    def back_to_queries_causal(self, back: Back, before: Parts, for_q: WeightGradients) -> tuple[Tensor, list[Tensor]]:
        """Returns dq, and the peaks of the chunks of each piece."""
        dq, gradient, state, peaks = torch.empty_like(self.q), dense(back.gradient), contiguous(before), []
        for positions in self._positions(self.q.shape[2]):
            self._start()
            queries, keys = self._queries(positions), self._keys(positions)
            d_rows = self._new_rows(dq, queries)
            peaks.append(self._new_peaks(positions.stop - positions.start))
            self._run(
                "causal_back_to_queries",
                queries,
                keys,
                mixed=part(back.mixed, positions),
                gradient=part(gradient, positions),
                dq=d_rows,
                inverse=self._inverse_of(back.inverse, positions),
                before=state,
                peaks=peaks[-1],
            )
            self._pull_back(dq, d_rows, queries, for_q)
            if not self.is_fused:
                after = self.new_state()
                self._run("sum_keys", None, keys, before=state, after=after)
                state = after
        return dq, peaks

    def back_to_keys_causal(
        self, back: Back, later: Parts, peaks: list[Tensor], for_k: WeightGradients, has_state: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Returns dk, dv and the gradients of the sums and norms before the first position, if there was a state."""
        dk, dv, gradient = torch.empty_like(self.k), torch.empty_like(self.v), dense(back.gradient)
        state = later
        for positions, piece_peaks in zip(reversed(self._positions(self.q.shape[2])), reversed(peaks), strict=True):
            self._start()
            queries, keys = self._queries(positions), self._keys(positions)
            d_rows, before = self._new_rows(dk, keys), NO_STATE
            if has_state or positions.start > 0:
                sums, norms, _ = self.new_state()
                before = (sums, norms, None)
            self._run(
                "causal_back_to_keys",
                queries,
                keys,
                mixed=part(back.mixed, positions),
                gradient=part(gradient, positions),
                dk=d_rows,
                dv=part(dv, positions),
                inverse=self._inverse_of(back.inverse, positions),
                before=state,
                after=before,
                peaks=piece_peaks,
            )
            self._pull_back(dk, d_rows, keys, for_k)
            state = before
        return dk, dv, before[0], before[1]

    # ---- the bidirectional form

    def sum_keys(self) -> LinearState:
        state: Parts = NO_STATE
        for positions in self._positions(self.k.shape[2]):
            self._start()
            after = self.new_state()
            self._run("sum_keys", None, self._keys(positions), before=state, after=after)
            state = after
        return after

    def mix(self, state: LinearState, inverse: Tensor | None) -> Tensor:
        mixed = new_mixed(self.q, self.v)
        for positions in self._positions(self.q.shape[2]):
            self._start()
            queries = self._queries(positions)
            to = part(mixed, positions)
            self._run("mix_queries", queries, None, mixed=to, inverse=self._inverse_of(inverse, positions), before=state)
        return mixed

    def back_to_queries(self, back: Back, state: LinearState, for_q: WeightGradients) -> tuple[Tensor, LinearState]:
        """Returns dq and the gradients of the sums and norms over all keys."""
        dq, gradient = torch.empty_like(self.q), dense(back.gradient)
        d_state = LinearState(torch.zeros_like(state.sums), torch.zeros_like(state.norms), state.peak)
        for positions in self._positions(self.q.shape[2]):
            self._start()
            queries = self._queries(positions)
            d_rows = self._new_rows(dq, queries)
            self._run(
                "back_to_queries",
                queries,
                None,
                mixed=part(back.mixed, positions),
                gradient=part(gradient, positions),
                dq=d_rows,
                inverse=self._inverse_of(back.inverse, positions),
                before=state,
                after=d_state,
            )
            self._pull_back(dq, d_rows, queries, for_q)
        return dq, d_state

    def back_to_keys(self, d_state: LinearState, for_k: WeightGradients) -> tuple[Tensor, Tensor]:
        dk, dv = torch.empty_like(self.k), torch.empty_like(self.v)
        for positions in self._positions(self.k.shape[2]):
            self._start()
            keys = self._keys(positions)
            d_rows = self._new_rows(dk, keys)
            self._run("back_to_keys", None, keys, dk=d_rows, dv=part(dv, positions), before=d_state)
            self._pull_back(dk, d_rows, keys, for_k)
        return dk, dv

    # ---- one position

    def step(self, before: Parts, after: LinearState, mixed: Tensor) -> None:
        whole = slice(0, 1)
        queries, keys = self._queries(whole), self._keys(whole)
        b, h, _, d = self.q.shape
        arguments = [b, h, d if self.is_fused else self.m, self.v.shape[-1], self.m]
        arguments += [TYPES[self.q.dtype] if self.is_fused else 0, TYPES[self.v.dtype], torch.get_num_threads()]
        arguments += [*self._map(0, queries), *self._map(1, keys)]
        for view in (queries.rows, keys.rows, self.v, mixed):
            arguments += (view.data_ptr(), *view.stride()[:3])
        arguments += [0 if x is None else x.data_ptr() for x in (*before, *after)]
        native.call("step", NUMBERS[self.dtype], [*arguments, 0])

    def _new_rows(self, for_x: Tensor, piece: _Piece) -> Tensor:
        """Memory for the gradient of a piece's rows: that of x itself, or of its features."""
        return for_x if piece.features is None else torch.empty_like(piece.features.values)

    def _pull_back(self, for_x: Tensor, d_rows: Tensor, piece: _Piece, weights: WeightGradients) -> None:
        """Writes the gradient of a piece of x from that of its features; it is there already if the kernel computed it."""
        if piece.features is not None:
            for_x[:, :, piece.positions] = weights.pullback(piece.x, piece.features, d_rows)
