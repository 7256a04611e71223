"""Native kernels compute what the PyTorch forms compute, values and gradients, at any length, width and layout."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import native
from subquad.feature_maps import Random
from subquad.ops import linear
from subquad.ops.linear import LinearState, attend_in_blocks, attend_in_chunks
from subquad.ops.linear import native as native_form
from subquad.types import Maps
from tests.native.forms import (
    MAPS,
    QKV,
    TOLERANCES,
    assert_as_close_as_rounding,
    bidirectional,
    causal,
    each,
    inputs,
    maps_of,
    some_keep,
)

FORMS: dict[str, Callable[..., list[Tensor]]] = {"bidirectional": bidirectional, "causal": causal}
every_form = pytest.mark.parametrize("form", FORMS)


def check(form: str, name: str, x: QKV, keep: Tensor | None = None, state: LinearState | None = None) -> None:
    """Compares both forms on the same inputs."""
    maps = maps_of(name, x[0].shape[3], x[0].shape[1], x[0].dtype)

    def run(is_native: bool) -> list[Tensor]:
        if form == "bidirectional":
            return bidirectional(x, maps, keep, is_native=is_native)
        return causal(x, maps, keep, state, is_native=is_native)

    assert_as_close_as_rounding(run(True), run(False), TOLERANCES[x[0].dtype])


@every_form
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MAPS)
def test_equals_the_form_of_pytorch(name: str, dtype: torch.dtype, form: str) -> None:
    check(form, name, inputs(157, 157, 7, 5, dtype))
    check(form, name, inputs(70, 70, 7, 7, dtype), some_keep(2, 70))


def test_gradients_are_the_same_where_not_all_features_are_kept() -> None:
    """The causal backward keeps what its first pass computes for its second, up to a million numbers."""
    x, keep = inputs(205, 205, 5, 7), some_keep(2, 205)
    maps: Maps = (
        Random(features=4096).build(heads=2, head_dim=5, generator=torch.Generator().manual_seed(1)).double().sides()
    )
    results, wanted = (causal(x, maps, keep, is_native=is_native) for is_native in (True, False))
    assert_as_close_as_rounding(results, wanted, TOLERANCES[torch.float64])


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_continues_from_a_state_and_gives_its_gradient(name: str, dtype: torch.dtype) -> None:
    maps = maps_of(name, 7, dtype=dtype)
    with torch.no_grad():
        start = attend_in_chunks(*inputs(45, 45, 7, 5, dtype), maps)[1]
    state = LinearState(start.sums.requires_grad_(), start.norms.requires_grad_(), start.peak)
    check("causal", name, inputs(83, 83, 7, 5, dtype), some_keep(2, 83), state)
    check("causal", name, inputs(0, 0, 7, 5, dtype), None, state)


@every_form
@pytest.mark.parametrize("name", ["elu", "hyperbolic"])
def test_every_length(form: str, name: str) -> None:
    """From none to 200: no position, whole chunks, and all that is left over behind them."""
    for length in range(201):
        check(form, name, inputs(length, length, 5, 3, torch.float32, batch=1))


@pytest.mark.parametrize("name", ["elu", "positive"])
def test_queries_and_keys_of_different_number(name: str) -> None:
    for queries, keys in ((0, 9), (9, 0), (1, 200), (200, 1), (33, 95), (95, 33)):
        check("bidirectional", name, inputs(queries, keys, 5, 3, batch=1))


@every_form
@pytest.mark.parametrize("name", ["elu", "relu", "positive", "hyperbolic"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_odd_widths(form: str, name: str, dtype: torch.dtype) -> None:
    for width in (1, 3, 5, 7, 13, 17, 33, 65, 100):
        check(form, name, inputs(37, 37, width, width, dtype, batch=1, heads=1))
    check(form, name, inputs(37, 37, 17, 1, dtype, batch=1, heads=1))
    check(form, name, inputs(37, 37, 1, 65, batch=1, heads=1))  # with one feature all weights cancel: in float64 only


def as_strided(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another layout of memory."""
    x = x.detach()
    if layout == "positions before heads":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    elif layout == "misaligned":
        room = torch.empty(x.numel() + 1, dtype=x.dtype)
        x = room[1:].view(x.shape).copy_(x)
    elif layout == "columns first":
        x = x.mT.contiguous().mT
    elif layout == "every second":
        x = x.repeat_interleave(2, dim=2)[:, :, ::2]
    elif layout == "within a larger tensor":
        x = torch.cat([x, x, x], dim=3)[..., x.shape[3] : 2 * x.shape[3]]
    elif layout == "expanded":
        x = x[:1, :1].expand_as(x)
    return x.requires_grad_()


LAYOUTS = ("positions before heads", "misaligned", "columns first", "every second", "within a larger tensor", "expanded")


@every_form
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["elu", "positive"])
def test_any_layout(form: str, layout: str, name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        x = each(lambda part: as_strided(part, layout), inputs(70, 70, 7, 5, dtype))
        check(form, name, x, some_keep(2, 70))


def test_an_expanded_gradient_and_an_expanded_mask() -> None:
    """As `mixed.sum().backward()` gives it: one number seen everywhere, with strides of zero."""
    q, k, v = inputs(45, 45, 7, 5)
    keep, maps = some_keep(1, 45).expand(2, 45), maps_of("elu", 7)
    for ours, theirs in ((native_form.attend, attend_in_blocks), (native_form.attend_causal, attend_in_chunks)):
        results = []
        for run in (ours, theirs):
            mixed = run(q, k, v, maps, keep=keep)
            results.append(torch.autograd.grad((mixed if isinstance(mixed, Tensor) else mixed[0]).sum(), (q, k, v)))
        assert_as_close_as_rounding(list(results[0]), list(results[1]), 1e-10)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_denominators_underflow_at_the_same_number_as_in_pytorch(kernels: native.Kernels, dtype: torch.dtype) -> None:
    """A row below the limit is zero; between two different limits it would be right in one form and lost in the other."""
    limit, n, maps = torch.finfo(dtype).tiny ** 0.8, 48, maps_of("relu", 1, 1, dtype)
    above = torch.tensor([0.8, 0.99, 1.01, 1.2], dtype=dtype).repeat(n // 4)  # denominators, in units of the limit
    k, v = torch.zeros(1, 1, n, 1, dtype=dtype), torch.ones(1, 1, n, 16, dtype=dtype)
    q, k[:, :, 0] = (limit * above).view(1, 1, n, 1), 1.0
    wanted = (above > 1).to(dtype).view(1, 1, n, 1).expand_as(v)
    with native.using(kernels):
        steps = [linear.step(q[:, :, i : i + 1], k[:, :, :1], v[:, :, :1], maps)[0] for i in range(n)]
        for mixed in (linear.attend(q, k, v, maps), linear.attend_causal(q, k, v, maps)[0], torch.cat(steps, dim=2)):
            assert_close(mixed, wanted)


@pytest.mark.parametrize("name", ["elu", "relu", "positive", "hyperbolic"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_nan_and_infinities_are_named(name: str, bad: float, side: int) -> None:
    """Rows that see such a number are as in the PyTorch form: NaN, infinite or finite. No earlier row is worse."""
    at, maps = 90, maps_of(name, 5, 1, torch.float32)
    x = each(Tensor.detach, inputs(200, 200, 5, 5, torch.float32, batch=1, heads=1))
    x[side][0, 0, at, 2] = bad
    ours, theirs = native_form.attend(*x, maps), attend_in_blocks(*x, maps)
    assert torch.equal(kinds(ours), kinds(theirs))
    ours, theirs = native_form.attend_causal(*x, maps)[0], attend_in_chunks(*x, maps)[0]
    assert torch.equal(ours[:, :, at:].isfinite(), theirs[:, :, at:].isfinite())
    assert ours[:, :, :64].isfinite().all()
    is_finite = theirs.isfinite()
    assert ours[is_finite].isfinite().all()
    assert_as_close_as_rounding([ours[is_finite]], [theirs[is_finite]], 2e-5)


def kinds(x: Tensor) -> Tensor:
    """0 for finite numbers, 1 for NaN, 2 and 3 for infinities."""
    return x.isnan() + 2 * x.isposinf() + 3 * x.isneginf()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_rounds_the_float32_result_once(dtype: torch.dtype, form: str) -> None:
    """Sums are float32 whatever the inputs: values are those of float32 kernels on the same numbers, rounded at the end."""
    half = each(Tensor.detach, inputs(133, 133, 7, 7, dtype))
    maps = maps_of("elu", 7, dtype=torch.float32)
    attend = native_form.attend if form == "bidirectional" else lambda *x: native_form.attend_causal(*x)[0]
    assert torch.equal(attend(*half, maps), attend(*each(Tensor.float, half), maps).to(dtype))
