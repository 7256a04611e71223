"""A collection of calls that reaches every kernel, each with odd sizes and with sizes of whole vectors."""

from typing import Any

import torch

import subquad as sq
from subquad.ops import linear
from subquad.ops.dense import linear as dense_linear
from subquad.ops.linear import native as native_form
from tests.native.forms import MAPS, bidirectional, causal, each, inputs, maps_of, some_keep
from tests.native.recording import Call, recorded

KERNELS = {
    *("causal", "causal_back_to_queries", "causal_back_to_keys", "sum_keys", "mix_queries"),
    *("back_to_queries", "back_to_keys", "causal_back", "attend", "back", "step", "dense"),
    *("hybrid_causal", "hybrid_causal_back", "hybrid_causal_queries", "hybrid_causal_keys", "hybrid_fold"),
    *("hybrid_groups", "hybrid_both", "hybrid_both_queries", "hybrid_slope_groups", "hybrid_both_keys"),
    *("hybrid_step", "slots"),
}
"""Kernels that the collection reaches."""
OF_ONE_BUILD = {"hybrid_groups", "hybrid_both", "hybrid_both_queries", "hybrid_slope_groups", "hybrid_both_keys"}
"""Kernels that hand each other memory whose layout differs between builds, so that no other build takes their calls."""
RESTS = (
    sq.feature_maps.Learned(),
    sq.feature_maps.Elu(),
    sq.feature_maps.Random(features=13),
    sq.feature_maps.Random(features=13, kernel="relu"),
)
"""Feature maps of the hybrid's far keys."""


def every_kernel() -> list[Call]:
    """Calls of all kernels for all feature maps and types of numbers."""
    with recorded() as calls:
        for name in MAPS:
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                for length, d, e in ((33, 7, 5), (64, 16, 16), (5, 13, 33)):
                    attend_everything(name, dtype, length, d, e)
        for rest in RESTS:
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                for length, d in ((33, 7), (64, 16), (5, 13)):
                    attend_hybrid(rest, dtype, length, d)
        for dtype in (torch.float32, torch.float64):
            for length, d, e in ((33, 7, 5), (140, 16, 16), (5, 13, 33)):
                attend_slots(dtype, length, d, e)
    return calls


def portable_calls() -> list[Call]:
    """Calls that every build can be given, on whichever processor they were recorded."""
    return [call for call in every_kernel() if call.name not in OF_ONE_BUILD]


def attend_hybrid(rest: Any, dtype: torch.dtype, length: int, d: int) -> None:
    """Both forms of the hybrid with gradients, through the state too, and a step."""
    attend: Any = sq.Hybrid(block=8, rest=rest).build(heads=2, head_dim=d, generator=torch.Generator().manual_seed(0))
    x = inputs(length, length, d, d, dtype, heads=2)
    mixed, state = attend.to(dtype).causal(*x)
    sum(part.float().sum() for part in (mixed, *state[:4], attend(*x))).backward()
    with torch.no_grad():
        attend.step(*(part[:, :, :1].contiguous() for part in x), attend.causal(*x)[1], reuse=True)


def attend_slots(dtype: torch.dtype, length: int, d: int, e: int) -> None:
    """Linformer, with weights for each head and with weights that are shared."""
    by_head = sq.Linformer(k=19, max_length=length, sharing="none")
    for options in (by_head, sq.Linformer(k=32, max_length=length)):
        attend: Any = options.build(heads=2, head_dim=d, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            attend.to(dtype)(*inputs(length, length, d, e, dtype, heads=2))


def attend_everything(name: str, dtype: torch.dtype, length: int, d: int, e: int) -> None:
    """Both forms with gradients, with padding and a state, and steps that start from nothing and from a state."""
    x = inputs(length, length, d, e, dtype, heads=2)
    maps = maps_of(name, d, 2, torch.float64 if dtype == torch.float64 else torch.float32)
    bidirectional(x, maps, is_native=True)
    bidirectional(x, maps, some_keep(2, length), is_native=True)
    causal(x, maps, is_native=True)
    with torch.no_grad():
        state = native_form.attend_causal(*x, maps)[1]
        ones = each(lambda part: part[:, :, :1].contiguous(), x)
        stepped = linear.step(*ones, maps, state)[1]
        linear.step(*ones, maps, stepped, reuse=True)
        linear.step(*ones, maps, None)
        if dtype == torch.float32:
            dense_linear(ones[0].flatten(0, 2), torch.randn(e, d), torch.randn(e))
    held = linear.LinearState(state.sums.requires_grad_(), state.norms.requires_grad_(), state.peak)
    causal(x, maps, some_keep(2, length), held, is_native=True)
