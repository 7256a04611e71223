"""Calls of native kernels with features that PyTorch computes, for a few hundred positions at a time."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from subquad import native
from subquad.ops.autocast import precise
from subquad.ops.linear.fused import Back, new_state
from subquad.ops.linear.layout import NO_STATE, NO_VIEW, NUMBERS, TYPES, Parts, contiguous, dense, dense_features, part
from subquad.ops.linear.sums import LinearState, WeightGradients, blocks, kept, kept_features, new_mixed
from subquad.ops.pages import in_large_pages
from subquad.ops.scratch import Scratch
from subquad.ops.threads import share_with_pytorch
from subquad.types import Features, Maps

GIVEN = 0  # kind of a map whose features are computed before
PIECE = 512  # positions whose features are computed at a time by PyTorch; whole chunks
CHUNK = 32  # positions of a chunk in the kernels


class _Piece(NamedTuple):
    """Positions that one call of a kernel takes, with their features."""

    positions: slice
    x: Tensor
    features: Features


class Inputs:
    """Queries, keys and values of a call, and the kernels on them."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None) -> None:
        share_with_pytorch()
        self.q, self.k, self.v = dense(q), dense(k), dense(v)
        self.keep = None if keep is None else dense(keep)
        self.maps, self.dtype, self.m = maps, precise(q.dtype), maps.keys.feature_count(k.shape[-1])
        self._scratch = Scratch(self.dtype)
        self.weight_gradients: list[Tensor] = []

    # ---- memory

    def new_state(self) -> LinearState:
        """Memory for a state."""
        return new_state(self.q, self.v, self.m)

    def new_inverse(self) -> Float[Tensor, "bhn"]:
        """Memory for 1 / denominators, piece after piece."""
        return torch.empty(self.q.shape[:3].numel(), dtype=self.dtype)

    def _inverse_of(self, inverse: Tensor | None, positions: slice) -> Tensor | None:
        heads = self.q.shape[0] * self.q.shape[1]
        return None if inverse is None else inverse[heads * positions.start : heads * positions.stop]

    def _new_peaks(self, length: int) -> Tensor:
        return torch.empty(*self.q.shape[:2], -(-length // CHUNK) + 1, dtype=self.dtype)

    # ---- pieces

    def _positions(self, length: int) -> list[slice]:
        return list(blocks(length, PIECE)) if length else [slice(0, 0)]

    def _queries(self, positions: slice) -> _Piece:
        x = part(self.q, positions).to(self.dtype)
        return _Piece(positions, x, dense_features(self.maps.queries(x, self._scratch)))

    def _keys(self, positions: slice) -> _Piece:
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
        """Calls a kernel with the arguments of `linear_call` in native/chunk.h, in its order."""
        arguments = self._arguments_of(queries, keys)
        for view in (mixed, gradient, dq, dk, dv):
            arguments = arguments + (NO_VIEW if view is None else (view.data_ptr(), *view.stride()[:3]))
        keep = self.keep if self.keep is None or keys is None else self.keep[:, keys.positions]
        kept_at = (0, 0) if keep is None else (keep.data_ptr(), keep.stride(0))
        pointers = [0 if x is None else x.data_ptr() for x in (inverse, *before, *after, peaks)]
        native.call(name, NUMBERS[self.dtype], (*arguments, *kept_at, *pointers, 0, 0, 0, 0, 0))

    def _arguments_of(self, queries: _Piece | None, keys: _Piece | None) -> tuple[int, ...]:
        """The first arguments of every kernel: sizes, types, maps, queries, keys and values."""
        queried = slice(0, 0) if queries is None else queries.positions
        keyed = slice(0, 0) if keys is None else keys.positions
        v = part(self.v, keyed)
        sizes = (*self.q.shape[:2], queried.stop - queried.start, keyed.stop - keyed.start, self.m, v.shape[-1], self.m)
        arguments: tuple[int, ...] = (*sizes, 0, TYPES[self.v.dtype], torch.get_num_threads())
        features = [None if piece is None else piece.features for piece in (queries, keys)]
        arguments += (*given_arguments(features[0]), *given_arguments(features[1]))
        for part_of_features in features:
            rows = None if part_of_features is None else part_of_features.values
            arguments += NO_VIEW if rows is None else (rows.data_ptr(), *rows.stride()[:3])
        return (*arguments, v.data_ptr(), *v.stride()[:3])

    # ---- the causal form

    def mix_causal(self, before: Parts, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        mixed, state = in_large_pages(new_mixed(self.q, self.v)), contiguous(before)
        for positions in self._positions(self.q.shape[2]):
            self._scratch.start()
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

    def back_causal(
        self, back: Back, before: Parts, later: Parts, *, has_state: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Returns dq, dk, dv, and with `has_state` the gradients of the sums and norms before.

        `later` holds those of the sums and norms after. The gradients of the maps' weights are in `weight_gradients`.
        """
        for_q, for_k = WeightGradients(self.maps.queries), WeightGradients(self.maps.keys)
        dq, peaks = self._back_to_queries_causal(back, before, for_q)
        dk, dv, for_sums, for_norms = self._back_to_keys_causal(back, later, peaks, for_k, has_state=has_state)
        self.weight_gradients = [*for_q.totals, *for_k.totals]
        return dq, dk, dv, for_sums, for_norms

    def _back_to_queries_causal(self, back: Back, before: Parts, for_q: WeightGradients) -> tuple[Tensor, list[Tensor]]:
        """Returns dq, and the peaks of the chunks of each piece."""
        dq, gradient, state, peaks = in_large_pages(torch.empty_like(self.q)), dense(back.gradient), contiguous(before), []
        for positions in self._positions(self.q.shape[2]):
            self._scratch.start()
            queries, keys = self._queries(positions), self._keys(positions)
            d_rows = torch.empty_like(queries.features.values)
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
            dq[:, :, positions] = for_q.pullback(queries.x, queries.features, d_rows)
            after = self.new_state()
            self._run("sum_keys", None, keys, before=state, after=after)
            state = after
        return dq, peaks

    def _back_to_keys_causal(
        self, back: Back, later: Parts, peaks: list[Tensor], for_k: WeightGradients, *, has_state: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Returns dk, dv and the gradients of the sums and norms before the first position, if there was a state."""
        dk, dv = (in_large_pages(torch.empty_like(x)) for x in (self.k, self.v))
        gradient = dense(back.gradient)
        state = later
        for positions, piece_peaks in zip(reversed(self._positions(self.q.shape[2])), reversed(peaks), strict=True):
            self._scratch.start()
            queries, keys = self._queries(positions), self._keys(positions)
            d_rows, before = torch.empty_like(keys.features.values), NO_STATE
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
            dk[:, :, positions] = for_k.pullback(keys.x, keys.features, d_rows)
            state = before
        return dk, dv, before[0], before[1]

    # ---- the bidirectional form

    def mix(self, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        """Returns the mixed values of the bidirectional form, and the sums over all keys."""
        state = self.sum_keys()
        return self.mix_sums(state, inverse), state

    def sum_keys(self) -> LinearState:
        """Returns the sums over all keys."""
        state: Parts = NO_STATE
        for positions in self._positions(self.k.shape[2]):
            self._scratch.start()
            after = self.new_state()
            self._run("sum_keys", None, self._keys(positions), before=state, after=after)
            state = after
        return after

    def mix_sums(self, state: LinearState, inverse: Tensor | None = None) -> Tensor:
        """Returns the mixed values of queries that see all keys in `state`."""
        mixed = in_large_pages(new_mixed(self.q, self.v))
        for positions in self._positions(self.q.shape[2]):
            self._scratch.start()
            queries = self._queries(positions)
            to = part(mixed, positions)
            self._run("mix_queries", queries, None, mixed=to, inverse=self._inverse_of(inverse, positions), before=state)
        return mixed

    def back(self, back: Back, state: LinearState) -> tuple[Tensor, Tensor, Tensor]:
        """Returns dq, dk and dv of the bidirectional form. The gradients of the maps' weights are in `weight_gradients`."""
        for_q, for_k = WeightGradients(self.maps.queries), WeightGradients(self.maps.keys)
        dq, d_state = self._back_to_queries(back, state, for_q)
        dk, dv = self._back_to_keys(d_state, for_k)
        self.weight_gradients = [*for_q.totals, *for_k.totals]
        return dq, dk, dv

    def _back_to_queries(self, back: Back, state: LinearState, for_q: WeightGradients) -> tuple[Tensor, LinearState]:
        """Returns dq and the gradients of the sums and norms over all keys."""
        dq, gradient = in_large_pages(torch.empty_like(self.q)), dense(back.gradient)
        d_state = LinearState(torch.zeros_like(state.sums), torch.zeros_like(state.norms), state.peak)
        for positions in self._positions(self.q.shape[2]):
            self._scratch.start()
            queries = self._queries(positions)
            d_rows = torch.empty_like(queries.features.values)
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
            dq[:, :, positions] = for_q.pullback(queries.x, queries.features, d_rows)
        return dq, d_state

    def _back_to_keys(self, d_state: LinearState, for_k: WeightGradients) -> tuple[Tensor, Tensor]:
        dk, dv = (in_large_pages(torch.empty_like(x)) for x in (self.k, self.v))
        for positions in self._positions(self.k.shape[2]):
            self._scratch.start()
            keys = self._keys(positions)
            d_rows = torch.empty_like(keys.features.values)
            self._run("back_to_keys", None, keys, dk=d_rows, dv=part(dv, positions), before=d_state)
            dk[:, :, positions] = for_k.pullback(keys.x, keys.features, d_rows)
        return dk, dv


def given_arguments(features: Features | None) -> tuple[int, ...]:
    """Arguments of a `feature_map` in native/feature_maps.h, for features that were computed before."""
    exponent = None if features is None else features.exponent
    return (GIVEN, 0, 0, 0, 0 if exponent is None else exponent.data_ptr())
