"""Causal linear attention by the package flash-linear-attention, where SUBQUAD_KERNELS=fla or `using` chooses it.

Its form is sum over j <= i of (q_i . k_j) v_j with a state. Values get a column of ones, so that the same sums have the
denominators, and the state holds the norms as its last column.
"""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from subquad import native
from subquad.errors import SubquadError
from subquad.ops.autocast import is_traced, precise
from subquad.ops.linear.sums import LinearState, empty_state, kept, kept_features, reciprocal
from subquad.types import Maps

DEVICES = ("cuda", "xpu")  # types of devices that flash-linear-attention runs on
INSTEAD = "leave SUBQUAD_KERNELS and --kernels out, or choose native or torch"
WHOLE = slice(None)


def is_chosen(q: Tensor) -> bool:
    """Whether flash-linear-attention was chosen, and these queries are on a device that it is chosen for."""
    return q.device.type in DEVICES and not is_traced() and native.wanted() == "fla"


def refuse_bidirectional() -> NoReturn:
    """Raises `SubquadError`: there is no form in which every query sees every key."""
    raise SubquadError(f"flash-linear-attention has no bidirectional form of linear attention: {INSTEAD}")


def attend_causal(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, state: LinearState | None, keep: Tensor | None
) -> tuple[Tensor, LinearState]:
    """Returns the mixed values and the new state; position i sees the keys in `state` and those up to i."""
    if maps.keys.has_exponent:
        raise SubquadError(f"flash-linear-attention has no features with exponents, such as FAVOR+'s: {INSTEAD}")
    if q.dtype == torch.float64:
        raise SubquadError(f"flash-linear-attention takes float32, bfloat16 and float16, not float64: {INSTEAD}")
    compute = _function()
    queries = maps.queries(q.to(precise(q.dtype))).values
    keys = kept_features(maps.keys, kept(k, keep, WHOLE), keep, WHOLE).values
    values = kept(v, keep, WHOLE)
    before = empty_state(k, v, maps.keys) if state is None else state
    rows = (x.transpose(1, 2) for x in (queries, keys, torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)))
    start = torch.cat([before.sums, before.norms[..., None]], dim=-1)
    out, last = compute(*rows, scale=1.0, initial_state=start, output_final_state=True, normalize=False)
    out = out.transpose(1, 2)
    mixed = out[..., :-1] * reciprocal(out[..., -1:])
    return mixed.to(v.dtype), LinearState(last[..., :-1], last[..., -1], before.peak)


def _function() -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns flash-linear-attention's function on "b n h d". Raises `SubquadError` if it is missing or too old."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError as error:
        raise SubquadError(
            f"flash-linear-attention cannot be imported ({error}): `pip install flash-linear-attention`, or {INSTEAD}"
        ) from None
    function: Any = chunk_linear_attn
    head_first = inspect.signature(function).parameters.get("head_first")
    if head_first is not None and head_first.default is not False:
        raise SubquadError(
            f"flash-linear-attention is too old, with heads before positions: install 0.2 or later, or {INSTEAD}"
        )
    return function
