"""What every mechanism must satisfy. A new entry of MECHANISMS is tested here by itself.

Precision is in `test_contract_precision.py`, compilers and exporters are in `test_contract_graphs.py`.
"""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from subquad.attention import Mechanism
from tests.attention.cases import (
    CASES,
    CAUSAL,
    HEAD_DIM,
    HEADS,
    build,
    equation,
    every,
    every_causal,
    gradients,
    has_causal,
    inputs,
    most_causal,
    some_keep,
    with_longest,
)

pytestmark = pytest.mark.usefixtures("kernels")


@every
@pytest.mark.parametrize(("queries", "keys"), [(157, 157), (31, 131), (131, 31), (1, 5)])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_its_equation(name: str, queries: int, keys: int, padded: bool) -> None:
    attend = build(name)
    q, k, v = inputs(queries, keys)
    keep = some_keep(2, keys) if padded else None
    mixed, wanted = attend(q, k, v, keep=keep), equation(attend, q, k, v, keep)
    assert_close(mixed, wanted, rtol=1e-9, atol=1e-9)
    of = (q, k, v, *attend.parameters())
    assert_close(gradients(mixed, *of), gradients(wanted, *of), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("name", "length"), with_longest(CASES))
@pytest.mark.parametrize("padded", [False, True])
def test_equals_its_equation_at_length(name: str, length: int, padded: bool) -> None:
    if length > (CASES[name].traits.max_length or length):
        pytest.skip("longer than this variant's max_length")
    test_equals_its_equation(name, length, length, padded)


@every_causal
@pytest.mark.parametrize("length", [1, 64, 157])
@pytest.mark.parametrize("padded", [False, True])
def test_causal_equals_its_equation(name: str, length: int, padded: bool) -> None:
    attend = build(name)
    q, k, v = inputs(length)
    keep = some_keep(2, length) if padded else None
    mixed, wanted = attend.causal(q, k, v, keep=keep)[0], equation(attend, q, k, v, keep, causal=True)
    tight = 1e-7 if "trigonometric" in name else 1e-9  # its denominators come close to zero
    assert_close(mixed, wanted, rtol=tight, atol=tight)
    of = (q, k, v, *attend.parameters())
    assert_close(gradients(mixed, *of), gradients(wanted, *of), rtol=1e-6, atol=10 * tight)


@pytest.mark.parametrize(("name", "length"), with_longest(CAUSAL))
@pytest.mark.parametrize("padded", [False, True])
def test_causal_equals_its_equation_at_length(name: str, length: int, padded: bool) -> None:
    test_causal_equals_its_equation(name, length, padded)


@every
@pytest.mark.parametrize("garbage", [1e3, float("inf"), float("nan")])
def test_padding_changes_nothing(name: str, garbage: float) -> None:
    attend = build(name)
    q, k, v = (x.detach() for x in inputs(97, 83, batch=1))
    alone = attend(q, k, v)
    total = 131
    all_places = {
        "right": torch.arange(83),
        "left": torch.arange(total - 83, total),
        "anywhere": torch.randperm(total, generator=torch.Generator().manual_seed(5))[:83].sort().values,
    }
    mixed = {}
    for where, places in all_places.items():
        padded = [torch.full((1, HEADS, total, HEAD_DIM), garbage, dtype=x.dtype).index_copy(2, places, x) for x in (k, v)]
        keep = torch.zeros(1, total, dtype=torch.bool).index_fill(1, places, True)
        mixed[where] = attend(q, *padded, keep=keep)
    assert_close(mixed, dict.fromkeys(all_places, alone), rtol=1e-9, atol=1e-9)


@every_causal
def test_padding_changes_nothing_in_the_causal_form(name: str) -> None:
    attend = build(name)
    q, k, v = (x.detach() for x in inputs(83, batch=1))
    alone, after = attend.causal(q, k, v)
    padded = [torch.cat([torch.full_like(x[:, :, :40], bad), x], dim=2) for x, bad in ((q, 0.0), (k, 1e3), (v, 1e3))]
    keep = torch.arange(123)[None] >= 40
    mixed, state = attend.causal(*padded, keep=keep)
    assert_close(mixed[:, :, 40:], alone, rtol=1e-9, atol=1e-9)
    more = [x.detach() for x in inputs(5, batch=1, seed=2)]
    assert_close(attend.causal(*more, state)[0], attend.causal(*more, after)[0], rtol=1e-9, atol=1e-9)


@every_causal
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_future_changes_nothing(name: str, dtype: torch.dtype) -> None:
    """Not even keys a thousand times louder, not even by rounding beyond what the order of a sum may cost."""
    attend = build(name, dtype)
    quiet = attend.causal(*(x.detach() for x in inputs(157, dtype=dtype)))[0]
    before, after = {}, {}
    for cut in (1, 100, 140):
        louder = [x.detach() for x in inputs(157, dtype=dtype)]
        for x in louder:
            x[:, :, cut:] *= 1e3
        before[cut], after[cut] = quiet[:, :, :cut], attend.causal(*louder)[0][:, :, :cut]
    tight = 1e-12 if dtype == torch.float64 else 1e-6
    assert_close(after, before, rtol=tight, atol=tight)


@most_causal
@settings(max_examples=8)
@given(cuts=st.lists(st.integers(0, 157), max_size=4))
def test_causal_cut_anywhere_and_continued_is_the_whole(name: str, cuts: list[int]) -> None:
    attend = build(name)
    q, k, v = inputs(157)
    keep = some_keep(2, 157)
    whole, last = attend.causal(q, k, v, keep=keep)
    state, parts = None, []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 157], strict=True):
        piece = slice(start, stop)
        mixed, state = attend.causal(q[:, :, piece], k[:, :, piece], v[:, :, piece], state, keep=keep[:, piece])
        parts.append(mixed)
    tight = 1e-6 if "trigonometric" in name else 1e-8
    assert_close(torch.cat(parts, dim=2), whole, rtol=tight, atol=tight)
    assert_close(tuple(state or ()), tuple(last), rtol=1e-8, atol=1e-8)
    of = (q, k, v, *attend.parameters())
    assert_close(gradients(torch.cat(parts, dim=2), *of), gradients(whole, *of), rtol=1e-6, atol=10 * tight)


@every_causal
def test_step_equals_causal(name: str) -> None:
    attend = build(name)
    q, k, v = inputs(23)
    whole, last = attend.causal(q, k, v)
    state, parts = None, []
    for place in range(23):
        one = slice(place, place + 1)
        mixed, state = attend.step(q[:, :, one], k[:, :, one], v[:, :, one], state)
        parts.append(mixed)
    assert_close(torch.cat(parts, dim=2), whole, rtol=1e-7, atol=1e-7)
    assert_close(tuple(state or ()), tuple(last), rtol=1e-9, atol=1e-9)
    of = (q, k, v, *attend.parameters())
    assert_close(gradients(torch.cat(parts, dim=2), *of), gradients(whole, *of), rtol=1e-6, atol=1e-6)


@every_causal
def test_a_state_is_not_changed_by_what_continues_it(name: str) -> None:
    attend = build(name)
    q, k, v = (x.detach() for x in inputs(70))
    state = attend.causal(q, k, v)[1]
    kept = [part.clone() for part in state]
    one = [x[:, :, :1] for x in (q, k, v)]
    attend.step(*one, state)
    attend.causal(q, k, v, state)
    assert_close(tuple(state), tuple(kept), rtol=0, atol=0)


@every_causal
def test_steps_that_reuse_the_state_are_the_same_steps(name: str) -> None:
    attend = build(name)
    q, k, v = inputs(9)
    wanted = attend.causal(q, k, v)
    with torch.no_grad():
        state, parts = None, []
        for place in range(9):
            one = slice(place, place + 1)
            mixed, state = attend.step(q[:, :, one], k[:, :, one], v[:, :, one], state, reuse=True)
            parts.append(mixed)
    assert_close((torch.cat(parts, dim=2), tuple(state or ())), (wanted[0], tuple(wanted[1])), rtol=1e-7, atol=1e-7)


@every
def test_gradcheck(name: str) -> None:
    attend = build(name)
    q, k, v = (x.detach()[:1].requires_grad_() for x in inputs(4, 5))
    keep = torch.tensor([[True, False, True, True, True]])
    assert torch.autograd.gradcheck(lambda *qkv: attend(*qkv, keep=keep), (q, k, v), fast_mode=True)


@most_causal
def test_gradcheck_of_the_causal_form_and_its_state(name: str) -> None:
    attend = build(name)
    q, k, v = (x.detach()[:1].requires_grad_() for x in inputs(5))
    start = attend.causal(*(x.detach()[:1] for x in inputs(3, seed=9)))[1]
    held = {field: part for field, part in start._asdict().items() if field in ("keys", "values", "sums", "norms", "signal")}
    floats = [part.requires_grad_() for part in held.values()]

    def run(q: Tensor, k: Tensor, v: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        mixed, state = attend.causal(q, k, v, start._replace(**dict(zip(held, parts, strict=True))))
        if not hasattr(state, "peak"):
            return mixed, *(getattr(state, field) for field in held)
        # sums are relative to 2**peak, which moves with the keys: only their product has a derivative
        return mixed, state.sums * torch.exp2(state.peak)[..., None, None], state.norms * torch.exp2(state.peak)[..., None]

    assert torch.autograd.gradcheck(run, (q, k, v, *floats), fast_mode=True)


@every
def test_nothing_to_see_gives_zeros(name: str) -> None:
    attend = build(name)
    q, k, v = inputs(9, 13)
    keep = torch.zeros(2, 13, dtype=torch.bool)
    keep[1] = True
    mixed = attend(q, k, v, keep=keep)
    assert mixed[0].count_nonzero() == 0
    if name != "hybrid-none":  # which sees neighbours only, and these queries have none among the keys
        assert mixed[1].count_nonzero() > 0
    assert all(gradient.isfinite().all() for gradient in gradients(mixed, q, k, v))


@every
def test_an_empty_sequence_gives_an_empty_result(name: str) -> None:
    attend = build(name)
    q, k, v = inputs(0, 13)
    assert attend(q, k, v).shape == (2, HEADS, 0, HEAD_DIM)
    q, k, v = inputs(9, 0)
    assert attend(q, k, v).count_nonzero() == 0
    q, k, v = inputs(9, batch=0)
    assert attend(q, k, v).shape == (0, HEADS, 9, HEAD_DIM)
    if has_causal(name):
        q, k, v = inputs(9)
        state = attend.causal(q, k, v)[1]
        empty = [x[:, :, :0] for x in (q, k, v)]
        mixed, after = attend.causal(*empty, state)
        assert mixed.shape == (2, HEADS, 0, HEAD_DIM)
        assert_close(tuple(after), tuple(state))


@most_causal
@pytest.mark.parametrize("length", [0, 1, 9, 200])
def test_no_sequences_give_none(name: str, length: int) -> None:
    """In every form, from a state and from none, with gradients."""
    attend = build(name)
    q, k, v = inputs(length, batch=0)
    for form in (attend.causal, attend.step):
        for state in (None, attend.causal(*inputs(70, batch=0))[1]):
            mixed, after = form(q, k, v, state)
            assert mixed.shape == (0, HEADS, length, HEAD_DIM)
            gradients(mixed, q, k, v, *attend.parameters())
            assert attend.step(*inputs(1, batch=0), after)[0].shape == (0, HEADS, 1, HEAD_DIM)


@every
def test_the_matrix_of_an_empty_sequence_is_empty(name: str) -> None:
    attend = build(name)
    if not CASES[name].traits.has_weights:
        pytest.skip("it has no matrix")
    for causal in (False, True):
        assert attend.weights(*inputs(0)[:2], causal=causal).shape == (2, HEADS, 0, 0)


@every
def test_survives_copying_and_saving(name: str, tmp_path: Path) -> None:
    attend = build(name)
    q, k, v = inputs(50)
    wanted = attend(q, k, v)
    assert_close(copy.deepcopy(attend)(q, k, v), wanted, rtol=0, atol=0)
    save_file(attend.state_dict(), tmp_path / "weights.safetensors")
    other = CASES[name].build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(2)).double()
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert_close(other(q, k, v), wanted, rtol=0, atol=0)


@every
def test_the_generator_decides(name: str) -> None:
    q, k, v = inputs(50)
    assert_close(build(name)(q, k, v), build(name)(q, k, v), rtol=0, atol=0)


SEEDED = (
    *("favor", "linear-random", "linear-learned-wide", "hybrid-random", "hybrid-learned-projections"),
    *("infinity", "lsh", "sparse-mixture"),
)
"""Beginnings of the names of mechanisms that draw random numbers when they are built, linformers with weights aside."""


@every
def test_a_second_seed_gives_something_else_where_anything_is_drawn(name: str) -> None:
    first, second = (
        CASES[name].build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)
    )
    same = [torch.equal(part, second.state_dict()[key]) for key, part in first.state_dict().items()]
    is_drawn = name.startswith(SEEDED) or name == "sparse" or (name.startswith("linformer") and name != "linformer-mean")
    assert all(same) != is_drawn
    if is_drawn and (not name.startswith("infinity") or CASES[name].sticky):
        q, k, v = inputs(1200 if name == "sparse" else 157, dtype=torch.float32)  # blocks enough to draw from
        assert not torch.equal(first(q, k, v), second(q, k, v))


@every
def test_what_a_mechanism_declares_is_what_it_does(name: str) -> None:
    """Traits say without building what the built module has."""
    attend, traits = build(name), CASES[name].traits
    assert attend.options == CASES[name]
    assert traits.causal == all(hasattr(attend, form) for form in ("causal", "step"))
    assert traits.has_weights == hasattr(attend, "weights")
    assert traits.has_gain == (hasattr(attend, "log_gain") and attend.feature_map.feature_count(HEAD_DIM) > 0)
    assert traits.redraws == (type(attend).redraw is not Mechanism.redraw)
    if traits.causal:
        sizes = {sum(part.numel() for part in attend.causal(*inputs(length))[1]) for length in (5, 64, 157)}
        assert traits.constant_state == (len(sizes) == 1)


@every
def test_split_heads_need_not_be_contiguous(name: str) -> None:
    """As they come from a projection: positions before heads in memory."""
    attend = build(name)
    q, k, v = inputs(157)
    strided = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    mixed, wanted = attend(*strided), attend(q, k, v)
    assert_close(mixed, wanted, rtol=1e-12, atol=1e-12)
    assert_close(gradients(mixed, *strided), gradients(wanted, q, k, v), rtol=1e-10, atol=1e-10)
    if has_causal(name):
        assert_close(attend.causal(*strided)[0], attend.causal(q, k, v)[0], rtol=1e-9, atol=1e-9)
