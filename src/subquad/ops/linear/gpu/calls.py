"""Calls of Triton kernels: used as `subquad.ops.linear.fused.FusedInputs`, for tensors on a GPU."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.ops.linear.fused import Back, FusedMaps
from subquad.ops.linear.gpu import back_kernels, kernels
from subquad.ops.linear.gpu.kernels import Peaks, Plan
from subquad.ops.linear.gpu.plans import POSITIVE, blocks_of, fixed, launch
from subquad.ops.linear.gpu.sides import GpuSides, Rows, view
from subquad.ops.linear.layout import KINDS, NO_STATE, Parts, dense
from subquad.ops.linear.sums import LinearState, WeightGradients, new_mixed
from subquad.types import Maps


class _Gradients(NamedTuple):
    """Gradients that the backward starts from, and 1 / denominators."""

    mixed: Tensor
    """Gradient of the result."""
    inverse: Float[Tensor, "bhn"]
    """1 / denominators."""
    scale: Float[Tensor, "bhn"]
    """Gradients of the denominators."""


class GpuInputs(GpuSides):
    """Queries, keys and values of a call, and the kernels on them."""

    # ---- the causal form

    def mix_causal(self, before: Parts, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        """Returns the mixed values of the causal form and the state after them."""
        mixed, inverse = new_mixed(self.q, self.v), self.new_inverse() if inverse is None else inverse
        if not self.q.shape[:3].numel():
            return mixed, self._unchanged(before)
        plan, queries, keys = self._plan(self.q.shape[2], causal=True), self._queries(), self._keys()
        states, peaks, all_peaks, ends = self._states(keys, before, plan)
        grid = (self.heads * plan.chunks, blocks_of(plan.e, plan.value_tile.value))
        launch(self.q, kernels.mix, grid, queries.side, keys.side, view(self.v), peaks, plan, *states, view(mixed), inverse)
        sums, norms = self._by_head(ends)
        return mixed, LinearState(sums, norms, all_peaks[:, -1].reshape(*self.q.shape[:2]).clone())

    def _states(self, keys: Rows, before: Parts, plan: Plan) -> tuple[list[Tensor], Peaks, Tensor, list[Tensor]]:
        """Returns the states before chunks, peaks, and the sums and norms after the last chunk."""
        peaks, all_peaks = self._causal_peaks(keys.exponent, before[2], plan)
        terms = self._sum(keys, view(self.v), None, peaks, plan)
        return terms, peaks, all_peaks, self._scan(terms, before, peaks, all_peaks, reverse=False)

    def _by_head(self, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns sums "b h m e" and norms "b h m" from those with batch and heads in one dimension or in two."""
        shape = (*self.q.shape[:2], self.m)
        return state[0].view(*shape, self.v.shape[-1]), state[1].view(shape)

    def _unchanged(self, before: Parts) -> LinearState:
        """The state after no positions."""
        sums, norms, peak = before
        if sums is None or norms is None or peak is None:
            after = self.new_state()
            fading = _fades(self.maps)
            return LinearState(after.sums.zero_(), after.norms.zero_(), after.peak.fill_(-math.inf if fading else 0.0))
        return LinearState(sums.clone(), norms.clone(), peak.clone())

    def back_causal(
        self, back: Back, before: Parts, later: Parts, *, has_state: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Returns dq, dk, dv, and with `has_state` the gradients of the sums and norms before.

        `later` holds those of the sums and norms after. The gradients of the maps' weights are in `weight_gradients`.
        """
        if not self.q.shape[:3].numel():
            self.weight_gradients = self._no_weight_gradients()
            for_sums, for_norms = (x.clone() if has_state and x is not None else None for x in later[:2])
            return torch.empty_like(self.q), torch.empty_like(self.k), torch.empty_like(self.v), for_sums, for_norms
        plan, queries, keys = self._plan(self.q.shape[2], causal=True), self._queries(), self._keys()
        (sums, norms), peaks, all_peaks, _ = self._states(keys, before, plan)
        into = self._gradients(back, plan)
        dq = self._back_to_queries(queries, keys, into, peaks, plan, (sums, norms))
        terms = self._sum(queries, view(into.mixed), (into.inverse, into.scale), peaks, plan)
        ends = self._scan(terms, later, peaks, all_peaks, reverse=True)
        dk, dv = self._back_to_keys(queries, keys, into, peaks, plan, terms)
        return *self._pull_back(queries, keys, dq, dk), dv, *(self._by_head(ends) if has_state else (None, None))

    def _gradients(self, back: Back, plan: Plan) -> _Gradients:
        """Returns the gradients that the backward starts from."""
        gradient, mixed, scale = dense(back.gradient), dense(back.mixed), torch.empty_like(back.inverse)
        arguments = (view(gradient), view(mixed), plan, back.inverse, scale)
        launch(self.q, back_kernels.denominators, (self.heads * plan.chunks,), *arguments)
        return _Gradients(gradient, back.inverse, scale)

    def _back_to_queries(self, queries: Rows, keys: Rows, into: _Gradients, peaks: Peaks, plan: Plan, state: Any) -> Tensor:
        """Returns the gradients of queries, or of their features if these are given."""
        result = self._new_rows(queries, self.q)
        arguments = (view(into.mixed), view(self.v), view(into.mixed), into.inverse, into.scale, peaks, plan, *state)
        grid = (self.heads * plan.chunks,)
        launch(self.q, back_kernels.back_to_rows, grid, queries.side, keys.side, *arguments, view(result), of_keys=False)
        return result

    def _back_to_keys(
        self, queries: Rows, keys: Rows, into: _Gradients, peaks: Peaks, plan: Plan, state: Any
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradients of keys, or of their features if these are given, and of values."""
        result, dv = self._new_rows(keys, self.k), torch.empty_like(self.v)
        arguments = (view(self.v), view(self.v), view(into.mixed), into.inverse, into.scale, peaks, plan, *state)
        programs = self.heads * plan.chunks
        launch(
            self.q, back_kernels.back_to_rows, (programs,), keys.side, queries.side, *arguments, view(result), of_keys=True
        )
        grid, numbers = (programs, blocks_of(plan.e, plan.value_tile.value)), (view(into.mixed), into.inverse)
        launch(self.q, back_kernels.back_to_values, grid, queries.side, keys.side, *numbers, peaks, plan, state[0], view(dv))
        return result, dv

    def _no_weight_gradients(self) -> list[Tensor]:
        """Zeros for the weights of the maps, where there are no positions."""
        return [] if isinstance(self.maps, FusedMaps) else [torch.zeros_like(weight) for weight in self.maps.weights()]

    def _new_rows(self, rows: Rows, x: Tensor) -> Tensor:
        return torch.empty_like(x) if rows.features is None else torch.empty_like(rows.features.values)

    def _pull_back(self, queries: Rows, keys: Rows, dq: Tensor, dk: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the gradients of queries and keys from those of given features, and adds up those of weights."""
        if isinstance(self.maps, FusedMaps):
            return dq, dk
        for_q, for_k = WeightGradients(self.maps.queries), WeightGradients(self.maps.keys)
        assert queries.features is not None
        assert keys.features is not None
        dq, dk = for_q.pullback(queries.x, queries.features, dq), for_k.pullback(keys.x, keys.features, dk)
        self.weight_gradients = [*for_q.totals, *for_k.totals]
        return dq.to(self.q.dtype), dk.to(self.k.dtype)

    # ---- the bidirectional form

    def mix(self, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        """Returns the mixed values of the bidirectional form, and the sums over all keys."""
        state = self.sum_keys()
        return self.mix_sums(state, inverse), state

    def sum_keys(self) -> LinearState:
        """Returns the sums over all keys."""
        s, (b, h) = self.k.shape[2], self.k.shape[:2]
        if not s or not self.heads:
            return self._unchanged(NO_STATE)
        plan, keys = self._plan(s, causal=False), self._keys()
        peaks, peak = self._all_peaks(keys)
        sums, norms = (x.sum(1) for x in self._sum(keys, view(self.v), None, peaks, plan))
        return LinearState(sums.view(b, h, *sums.shape[1:]), norms.view(b, h, -1), peak.view(b, h))

    def _all_peaks(self, keys: Rows) -> tuple[Peaks, Tensor]:
        """Returns the largest exponent of all keys "bh", also as kernels read it."""
        if keys.exponent is None:
            return Peaks(self.q, self.q, fixed(False)), torch.zeros(self.heads, dtype=self.dtype, device=self.q.device)
        peak = keys.exponent.amax(1)
        return Peaks(keys.exponent, peak, fixed(True)), peak

    def mix_sums(self, state: LinearState, inverse: Tensor | None = None) -> Tensor:
        """Returns the mixed values of queries that see all keys in `state`."""
        mixed, inverse = new_mixed(self.q, self.v), self.new_inverse() if inverse is None else inverse
        if not self.q.shape[:3].numel():
            return mixed
        plan, queries = self._plan(self.q.shape[2], causal=False), self._queries()
        sums, norms = state.sums.contiguous(), state.norms.contiguous()
        grid = (self.heads * plan.chunks, blocks_of(plan.e, plan.value_tile.value))
        launch(
            self.q,
            kernels.mix,
            grid,
            queries.side,
            queries.side,
            view(self.v),
            Peaks(self.q, self.q, fixed(False)),
            plan,
            sums,
            norms,
            view(mixed),
            inverse,
        )
        return mixed

    def back(self, back: Back, state: LinearState) -> tuple[Tensor, Tensor, Tensor]:
        """Returns dq, dk and dv of the bidirectional form. The gradients of the maps' weights are in `weight_gradients`."""
        n, s = self.q.shape[2], self.k.shape[2]
        if not n or not s or not self.heads:
            self.weight_gradients = self._no_weight_gradients()
            return torch.zeros_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        queries, keys, plan = self._queries(), self._keys(), self._plan(n, causal=False)
        into, unfading = self._gradients(back, plan), Peaks(self.q, self.q, fixed(False))
        sums, norms = (x.contiguous() for x in state[:2])
        dq = self._back_to_queries(queries, keys, into, unfading, plan, (sums, norms))
        terms = [x.sum(1) for x in self._sum(queries, view(into.mixed), (into.inverse, into.scale), unfading, plan)]
        peaks = self._all_peaks(keys)[0]
        dk, dv = self._back_to_keys(queries, keys, into, peaks, self._plan(s, causal=False), terms)
        return *self._pull_back(queries, keys, dq, dk), dv


def _fades(maps: Maps | FusedMaps) -> bool:
    """Whether the features of keys have exponents."""
    return KINDS[maps.keys.kind] >= POSITIVE if isinstance(maps, FusedMaps) else maps.keys.has_exponent
