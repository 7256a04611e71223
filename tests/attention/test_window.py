"""What is particular to the window: what it sees, its forms against each other, and the size of its state."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import Hybrid, Softmax, Window
from subquad.attention.window import WindowAttention
from subquad.ops import parts
from subquad.ops.packing import pack, unpack
from subquad.ops.window import parallel, strips
from tests.attention.cases import HEAD_DIM, HEADS, gradients, inputs

OPTIONS = [
    Window(reach=5),
    Window(reach=40),
    Window(reach=7, dilation=3),
    Window(reach=9, global_tokens=4),
    Window(reach=6, dilation=2, global_tokens=3),
]


def build(options: Window) -> WindowAttention:
    return options.build(heads=HEADS, head_dim=HEAD_DIM)


def padding(length: int) -> torch.Tensor:
    return torch.rand(2, length, generator=torch.Generator().manual_seed(3)) > 0.3


def test_what_fits_into_the_window_is_softmax() -> None:
    attend, exact = build(Window(reach=64)), Softmax().build(heads=HEADS, head_dim=HEAD_DIM)
    q, k, v = inputs(65)
    assert_close(attend(q, k, v), exact(q, k, v))
    assert_close(attend.causal(q, k, v)[0], exact.causal(q, k, v)[0])


def test_what_is_out_of_reach_changes_nothing_and_what_is_within_does() -> None:
    """Louder keys and values at one place change the queries that see it, and no others."""
    q, k, v = (x.detach() for x in inputs(90))
    for options, touched in (
        (Window(reach=4), set(range(46, 55))),
        (Window(reach=2, dilation=3), {44, 47, 50, 53, 56}),
        (Window(reach=2, global_tokens=3), {0, 1, 2, *range(48, 53)}),
    ):
        before = build(options)(q, k, v)
        louder = [x.index_fill(2, torch.tensor([50]), 3.0) for x in (k, v)]
        changed = (build(options)(q, *louder) != before).any(-1).any(0).any(0)
        assert set(changed.nonzero()[:, 0].tolist()) == touched


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 3, 130, 300])
def test_all_blocks_at_once_are_strips(options: Window, causal: bool, padded: bool, length: int) -> None:
    """The form for GPUs and compilers gives the values and gradients of the one for CPUs."""
    q, k, v = inputs(length)
    keep = padding(length) if padded else None
    sizes = (options.reach, options.dilation, options.global_tokens)
    packed = pack(q, k, v, keep)
    at_once = unpack(packed, parallel.attend(*packed[:4], *sizes, causal=causal))
    packed = pack(q, k, v, keep)
    mixed = unpack(packed, build(options)._attend(packed, causal=causal)[0])
    assert_close(at_once, mixed)
    assert_close(gradients(at_once, q, k, v), gradients(mixed, q, k, v))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_few_blocks_at_a_time_are_all(options: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(400)
    mixed = build(options)(q, k, v)
    wanted = gradients(mixed, q, k, v)
    monkeypatch.setattr(strips, "PIECE", 2 * HEADS * HEAD_DIM * 2 * (32 + 2 * options.reach))
    assert_close(build(options)(q, k, v), mixed)
    assert_close(gradients(build(options)(q, k, v), q, k, v), wanted)


def test_a_strip_is_a_view_of_the_keys() -> None:
    keys = torch.randn(500, 3, 7)
    for part in strips.window_parts(500, 20, 3, 5, torch.float32, causal=False):
        assert part.keys(keys).untyped_storage().data_ptr() == keys.untyped_storage().data_ptr()


def test_the_work_grows_with_the_length_and_not_with_its_square() -> None:
    def pairs(length: int, options: Window, *, causal: bool) -> int:
        sizes = (options.reach, options.dilation, options.global_tokens)
        listed = strips.window_parts(length, *sizes, torch.float32, causal=causal)
        return sum(part.count * part.block * part.strip for part in listed)

    for options in (Window(), Window(reach=16), Window(reach=40, dilation=4), Window(reach=60, global_tokens=8)):
        for causal in (False, True):
            seen = options.reach * (1 if causal else 2) + 1 + options.global_tokens
            assert pairs(2**16, options, causal=causal) < 2.05 * pairs(2**15, options, causal=causal)
            most = seen + max(32, options.reach // 2) + options.global_tokens  # for each query
            assert pairs(2**16, options, causal=causal) <= most * 2**16


def test_what_is_saved_for_the_backward_is_one_number_for_each_query() -> None:
    q, k, v = inputs(300)
    sizes: list[int] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
        parts.attend(q, k, v, [parts.Plan(slice(0, 2), strips.window_parts(300, 20, 1, 0, q.dtype, causal=True))])
    assert sum(sizes) == 4 * q.numel() + q.numel() // HEAD_DIM


def test_the_ring_holds_what_the_next_position_needs_and_no_more() -> None:
    options = Window(reach=3, dilation=2, global_tokens=2)
    _, k, v = (x.detach() for x in inputs(40))
    state: Any = build(options).remember(k, v)
    assert state.keys.shape == (2, HEADS, 2 + 3 * 2 + 1, HEAD_DIM)
    held = {int((k[0, 0] == key).all(-1).nonzero()[0, 0]) for key in state.keys[0, 0]}
    assert held == {0, 1, *range(33, 40)}
    assert_close(tuple(state), tuple(build(options).causal(k, k, v)[1]))


def test_the_hybrid_without_far_keys_is_a_window_of_blocks() -> None:
    """Where a query stands at the end of its block, both see the block before and its own."""
    q, k, v = inputs(64)
    blocks = Hybrid(block=8, rest="none").build(heads=HEADS, head_dim=HEAD_DIM).double()
    assert_close(build(Window(reach=15)).causal(q, k, v)[0][:, :, 15::8], blocks.causal(q, k, v)[0][:, :, 15::8])


def test_half_precision_states_are_half_as_large() -> None:
    q, k, v = (x.detach() for x in inputs(50, dtype=torch.bfloat16))
    attend = build(replace(OPTIONS[3]))
    assert attend.causal(q, k, v)[1].keys.dtype == torch.bfloat16
