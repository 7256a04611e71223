"""Calls of native kernels that compute the features themselves: one call for a whole pass over all sequences.

With 64 positions a pass takes 100 microseconds, and every operation of PyTorch one. Hence arguments are built at once, and
memory that only kernels need is theirs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from subquad import native
from subquad.ops.linear.layout import KINDS, NO_STATE, NO_VIEW, NOT_FINITE, NUMBERS, TYPES, Parts, dense, with_type
from subquad.ops.linear.sums import LinearState, new_mixed
from subquad.ops.threads import share_with_pytorch
from subquad.types import FeatureFunction, Fused, Maps

NO_BACK = NO_VIEW * 4  # views of the gradients
NO_POINTERS = (0, 0, 0)
NewLike = Callable[[Tensor], Tensor]
"""Returns an uninitialized tensor of the shape and type of another one, whose last dimension is contiguous."""


class ResultNotFiniteError(Exception):
    """A kernel's result is not finite, where the caller asked to be told."""


class FusedMaps(NamedTuple):
    """Feature functions of queries and keys that kernels compute themselves."""

    queries: Fused
    keys: Fused

    def feature_count(self, d: int) -> int:
        """Number of features of an input with d numbers."""
        kind, omega, _ = self.keys
        return d if omega is None else omega.shape[-1] * (2 if kind == "hyperbolic" else 1)


def fused_by_kernels(side: FeatureFunction) -> Fused | None:
    """Returns what the kernels need to compute the features; None for those with weights, which need gradients too."""
    fused = side.fused()
    return None if fused is None or fused.kind not in KINDS or side.weights() else fused


def fused_maps(maps: Maps) -> FusedMaps | None:
    """Returns the feature functions as kernels compute them; None if they cannot compute both."""
    queries = fused_by_kernels(maps.queries)
    keys = queries if maps.keys is maps.queries else fused_by_kernels(maps.keys)
    return None if queries is None or keys is None else FusedMaps(queries, keys)


def map_arguments(fused: Fused) -> tuple[int, ...]:
    """Arguments of a `feature_map` in native/feature_maps.h; random directions must be contiguous and of the right type."""
    omega = fused.omega
    if omega is None:
        return (KINDS[fused.kind], 0, 0, 0, 0)
    return (KINDS[fused.kind], omega.shape[-1], omega.data_ptr(), omega.stride(0) if omega.ndim == 3 else 0, 0)


class FusedInputs:
    """Queries, keys and values of a call, and the kernels on them; used as `calls.Inputs`."""

    weight_gradients: Sequence[Tensor] = ()  # maps that kernels compute have no weights
    __slots__ = ("_arguments", "_held", "_keep_arguments", "dtype", "k", "keep", "m", "must_be_finite", "q", "v")

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, maps: FusedMaps, keep: Tensor | None, *, must_be_finite: bool = False
    ) -> None:
        share_with_pytorch()
        self.q, self.k, self.v = q, k, v = dense(q), dense(k), dense(v)
        self.dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
        self.keep, self.must_be_finite = None if keep is None else dense(keep), must_be_finite
        b, h, n, d = q.shape
        _, _, s, e = v.shape
        self.m = maps.feature_count(d)
        queries = with_type(maps.queries, self.dtype)
        keys = queries if maps.keys is maps.queries else with_type(maps.keys, self.dtype)
        self._held = (queries.omega, keys.omega)  # whose addresses are arguments
        sizes = (b, h, n, s, d, e, self.m, TYPES[q.dtype], TYPES[v.dtype], torch.get_num_threads())
        inputs = (q.data_ptr(), *q.stride()[:3], k.data_ptr(), *k.stride()[:3], v.data_ptr(), *v.stride()[:3])
        self._arguments = (*sizes, *map_arguments(queries), *map_arguments(keys), *inputs)
        self._keep_arguments = (0, 0) if self.keep is None else (self.keep.data_ptr(), self.keep.stride(0))

    def new_state(self) -> LinearState:
        """Memory for a state."""
        return new_state(self.q, self.v, self.m)

    def new_inverse(self) -> Tensor:
        """Memory for 1 / denominators."""
        return torch.empty(self.q.shape[:3].numel(), dtype=self.dtype)

    def _run(self, name: str, views: tuple[int, ...], pointers: tuple[int, ...]) -> None:
        """Calls a kernel with the arguments of `linear_call` in native/chunk.h, in its order.

        Raises `ResultNotFiniteError` if a result is not finite and must be.
        """
        arguments = (*self._arguments, *views, *self._keep_arguments, *pointers, 0, 0, 0)
        status = native.call(name, NUMBERS[self.dtype], arguments)
        if status == NOT_FINITE and self.must_be_finite:
            raise ResultNotFiniteError

    def mix_causal(self, before: Parts, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        """Returns the mixed values of the causal form and the state after them."""
        mixed, after = new_mixed(self.q, self.v), self.new_state()
        held, state = _addresses(before)
        written = 0 if inverse is None else inverse.data_ptr()
        pointers = (written, *state, *(x.data_ptr() for x in after), *NO_POINTERS)
        self._run("causal", (mixed.data_ptr(), *mixed.stride()[:3], *NO_BACK), pointers)
        del held  # its addresses were used until here
        return mixed, after

    def back_causal(
        self, back: "Back", before: Parts, later: Parts, *, has_state: bool, new_like: NewLike = torch.empty_like
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Returns dq, dk, dv, and with `has_state` the gradients of the sums and norms before.

        `later` holds those of the sums and norms after. `new_like` gives memory for the first three.
        """
        dq, dk, dv = new_like(self.q), new_like(self.k), new_like(self.v)
        sums, norms, _ = self.new_state() if has_state else NO_STATE
        (held, state), (held_later, (d_sums, d_norms, _)) = _addresses(before), _addresses(later)
        after = (0, 0) if sums is None or norms is None else (sums.data_ptr(), norms.data_ptr())
        gradient, views = self._back_views(back, dq, dk, dv)
        self._run("causal_back", views, (back.inverse.data_ptr(), *state, *after, 0, 0, d_sums, d_norms))
        del held, held_later, gradient  # their addresses were used until here
        return dq, dk, dv, sums, norms

    def mix(self, inverse: Tensor | None) -> tuple[Tensor, LinearState]:
        """Returns the mixed values of the bidirectional form, and the sums over all keys."""
        state = self.new_state()
        return self._mix(inverse, tuple(x.data_ptr() for x in state)), state

    def mix_only(self) -> Tensor:
        """Returns the mixed values of the bidirectional form. The sums over all keys are in memory of the kernel."""
        return self._mix(None, NO_POINTERS)

    def _mix(self, inverse: Tensor | None, state: tuple[int, ...]) -> Tensor:
        mixed = new_mixed(self.q, self.v)
        pointers = (0 if inverse is None else inverse.data_ptr(), *NO_POINTERS, *state, *NO_POINTERS)
        self._run("attend", (mixed.data_ptr(), *mixed.stride()[:3], *NO_BACK), pointers)
        return mixed

    def back(self, back: "Back", state: LinearState) -> tuple[Tensor, Tensor, Tensor]:
        """Returns dq, dk and dv of the bidirectional form."""
        dq, dk, dv = torch.empty_like(self.q), torch.empty_like(self.k), torch.empty_like(self.v)
        gradient, views = self._back_views(back, dq, dk, dv)
        before = tuple(x.data_ptr() for x in state)
        self._run("back", views, (back.inverse.data_ptr(), *before, *NO_POINTERS, *NO_POINTERS))
        del gradient  # its address was used until here
        return dq, dk, dv

    def _back_views(self, back: "Back", dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Returns the gradient as kernels read it, and the arguments of the result, its gradient and those of inputs."""
        mixed, gradient, _ = back
        gradient = dense(gradient)
        views = (mixed.data_ptr(), *mixed.stride()[:3], gradient.data_ptr(), *gradient.stride()[:3])
        views += (dq.data_ptr(), *dq.stride()[:3], dk.data_ptr(), *dk.stride()[:3])
        return gradient, (*views, dv.data_ptr(), *dv.stride()[:3])

    def sum_keys(self, before: Parts = NO_STATE) -> LinearState:
        """Returns the sums over all keys and those in `before`."""
        state, (held, from_) = self.new_state(), _addresses(before)
        self._run("sum_keys", (*NO_VIEW, *NO_BACK), (0, *from_, *(x.data_ptr() for x in state), *NO_POINTERS))
        del held  # its addresses were used until here
        return state

    def mix_sums(self, state: LinearState, inverse: Tensor | None = None) -> Tensor:
        """Returns the mixed values of queries that see all keys in `state`."""
        mixed, (held, before) = new_mixed(self.q, self.v), _addresses(state)
        pointers = (0 if inverse is None else inverse.data_ptr(), *before, *NO_POINTERS, *NO_POINTERS)
        self._run("mix_queries", (mixed.data_ptr(), *mixed.stride()[:3], *NO_BACK), pointers)
        del held  # its addresses were used until here
        return mixed

    def back_to_queries(self, back: "Back", state: LinearState, d_state: LinearState, new_like: NewLike) -> Tensor:
        """Returns dq of queries that see all keys in `state`, and adds to `d_state`, the gradient of that state.

        `new_like` gives memory for dq.
        """
        dq = new_like(self.q)
        gradient, views = self._back_views(back, dq, self.k, self.v)  # no keys are read or written
        after = (d_state.sums.data_ptr(), d_state.norms.data_ptr(), 0)
        before = tuple(x.data_ptr() for x in state)
        self._run("back_to_queries", views, (back.inverse.data_ptr(), *before, *after, *NO_POINTERS))
        del gradient  # its address was used until here
        return dq

    def back_to_keys(self, d_state: LinearState, new_like: NewLike) -> tuple[Tensor, Tensor]:
        """Returns dk and dv from the gradient of the sums over all keys, whose peak is that of the sums.

        `new_like` gives memory for both.
        """
        dk, dv = new_like(self.k), new_like(self.v)
        views = (*NO_VIEW * 3, dk.data_ptr(), *dk.stride()[:3], dv.data_ptr(), *dv.stride()[:3])
        self._run("back_to_keys", views, (0, *(x.data_ptr() for x in d_state), *NO_POINTERS, *NO_POINTERS))
        return dk, dv


class Back(NamedTuple):
    """What the backward has beside the inputs: the result, its gradient and 1 / denominators."""

    mixed: Tensor
    gradient: Tensor
    inverse: Tensor


def new_state(q: Tensor, v: Tensor, m: int) -> LinearState:
    """Memory for a state of m features. Sizes are passed one by one, as a tuple takes half a microsecond longer."""
    b, h, e = q.shape[0], q.shape[1], v.shape[-1]
    if q.dtype is torch.float32 or q.dtype is torch.float64:
        return LinearState(q.new_empty(b, h, m, e), q.new_empty(b, h, m), q.new_empty(b, h))
    like = q.new_empty(0, dtype=torch.float32)
    return LinearState(like.new_empty(b, h, m, e), like.new_empty(b, h, m), like.new_empty(b, h))


def _addresses(state: Parts) -> tuple[Parts, tuple[int, int, int]]:
    """Returns the parts of a state, contiguous, and their addresses; 0 for parts that are not there."""
    if state[0] is None:
        return state, (0, 0, 0)
    sums, norms, peak = (None if part is None else part.contiguous() for part in state)
    assert sums is not None
    assert norms is not None
    return (sums, norms, peak), (sums.data_ptr(), norms.data_ptr(), 0 if peak is None else peak.data_ptr())
