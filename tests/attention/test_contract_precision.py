"""What every mechanism must satisfy for loud inputs, in half precision and under autocast."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.attention.cases import (
    HEAD_DIM,
    HEADS,
    build,
    equation,
    every,
    every_causal,
    gradients,
    has_causal,
    inputs,
    most,
    some_keep,
)

pytestmark = pytest.mark.usefixtures("kernels")


@most
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
def test_finite_for_loud_input(name: str, dtype: torch.dtype, scale: float) -> None:
    attend = build(name, torch.float32)
    q, k, v = (x.clamp(-1e3, 1e3).detach().requires_grad_() for x in inputs(133, dtype=dtype, scale=scale))
    forms: list[Any] = [lambda: attend(q, k, v)]
    if has_causal(name):
        forms.append(lambda: attend.causal(q, k, v)[0])
    for form in forms:
        mixed = form()
        assert mixed.dtype == dtype
        assert mixed.isfinite().all()
        if dtype != torch.float16:  # whose own range ends at 65504
            assert all(gradient.isfinite().all() for gradient in gradients(mixed, q, k, v))


@every
def test_half_precision_is_as_good_as_its_inputs(name: str) -> None:
    """Sums and normalisers are float32: the result is off by the rounding of inputs and output, not by that of sums."""
    attend = build(name, torch.float32)
    q, k, v = (x.detach() for x in inputs(211, dtype=torch.bfloat16))
    wanted = equation(attend.double(), q.double(), k.double(), v.double(), None)
    attend.float()
    assert_close(attend(q, k, v).double(), wanted, rtol=2**-7, atol=2**-7)


@every_causal
def test_states_are_float32_under_half_precision_and_autocast(name: str) -> None:
    if name.startswith(("softmax", "window", "sparse", "lsh")):
        pytest.skip("its state holds keys and values, not sums")
    attend = build(name, torch.float32)
    q, k, v = (x.detach() for x in inputs(70, dtype=torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, state = attend.causal(q, k, v)
        stepped, after = attend.step(q[:, :, :1], k[:, :, :1], v[:, :, :1], state)
    assert mixed.dtype == stepped.dtype == torch.bfloat16
    # keys and values that are seen exactly are kept as they came
    sums = [part for one in (state, after) for field, part in one._asdict().items() if field not in ("keys", "values")]
    assert {part.dtype for part in sums if part.is_floating_point()} == {torch.float32}


@every
def test_autocast_changes_nothing_inside(name: str) -> None:
    attend = build(name, torch.float32)
    q, k, v = inputs(70, dtype=torch.float32)
    plain = attend(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = attend(q, k, v)
    tight = 1e-2 if name.startswith(("softmax", "linformer")) else 1e-6  # PyTorch's own attention does follow autocast
    assert_close(under.float(), plain, rtol=tight, atol=tight)


EACH_ONCE = [(torch.bfloat16, HEAD_DIM), (torch.float16, 5), (torch.bfloat16, 11)]
OTHER_PAIRS = [(torch.float16, HEAD_DIM), (torch.bfloat16, 5), (torch.float16, 11)]


@most
@pytest.mark.parametrize(
    ("dtype", "value_width"), [*EACH_ONCE, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHER_PAIRS)]
)
def test_a_backward_inside_autocast_is_the_one_outside(name: str, dtype: torch.dtype, value_width: int) -> None:
    if "convolution" in name and value_width != HEAD_DIM:
        pytest.skip("its slots mix the coordinates of keys or values, which are as many")
    attend = build(name, torch.float32)
    q, k, _ = inputs(133, dtype=torch.float32)
    v = torch.randn(2, HEADS, 133, value_width, requires_grad=True)
    of = (q, k, v, *attend.parameters())
    for form in [attend, *([partial(mixed_calls, attend)] if has_causal(name) else [])]:
        for keep in (None, some_keep(2, 133)):
            with torch.autocast("cpu", dtype):
                inside = gradients(form(q, k, v, keep=keep), *of)
                mixed = form(q, k, v, keep=keep)
            assert_close(inside, gradients(mixed, *of), rtol=0, atol=0)


def mixed_calls(attend: Any, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None) -> Tensor:
    """The causal form: a piece, a step, and the rest of the sequence."""
    state, parts = None, []
    for piece in (slice(0, 70), slice(70, 71), slice(71, q.shape[2])):
        some, real = [x[:, :, piece] for x in (q, k, v)], None if keep is None else keep[:, piece]
        one = some[0].shape[2] == 1
        mixed, state = attend.step(*some, state) if one else attend.causal(*some, state, keep=real)
        parts.append(mixed)
    return torch.cat(parts, dim=2)
