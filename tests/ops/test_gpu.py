"""Triton kernels, in Triton's interpreter on the CPU, are the equation: values, gradients, states, steps and edge cases."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad.errors import SubquadError
from subquad.feature_maps import Elu, FeatureMap, Learned, Random, Relu
from subquad.ops import linear
from subquad.ops.linear import LinearState, custom, empty_state, gpu, parallel, reference
from subquad.ops.linear import native as kernels
from subquad.types import Maps
from tests.interpreting import interpreted

pytestmark = pytest.mark.slow
MAPS: dict[str, Any] = {
    "elu": Elu(),
    "relu": Relu(),
    "positive": Random(features=20),
    "per head": Random(features=20, per_head=True),
    "hyperbolic": Random(features=36, kernel="hyperbolic"),
    "learned": Learned(features=20),  # features by PyTorch, with weights
    "trigonometric": Random(features=20, kernel="trigonometric"),  # features by PyTorch, with exponents
}
FUSED = ("elu", "positive", "hyperbolic")
causal: Any = linear.attend_causal  # called with lists of tensors
one_step: Any = kernels.step
every_map = pytest.mark.parametrize("name", MAPS)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several chunks and several tiles at small sizes."""
    with interpreted():
        from subquad.ops.linear.gpu import plans

        monkeypatch.setattr(plans, "CHUNK", 16)
        monkeypatch.setattr(plans, "TILE", 16)
        yield


def setup(name: str, length: int, keys: int = 0, dtype: torch.dtype = torch.float64) -> tuple[FeatureMap, list[Tensor]]:
    """A map, and queries, keys and values of other widths: 18 and 19 are no powers of 2, and more than one tile."""
    generator = torch.Generator().manual_seed(0)
    phi = MAPS[name].build(heads=2, head_dim=18, generator=generator).to(dtype)
    shapes = ((1, 2, length, 18), (1, 2, keys or length, 18), (1, 2, keys or length, 19))
    made = [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return phi, [x.requires_grad_() for x in made]


def equation(q: Tensor, k: Tensor, v: Tensor, maps: Maps, keep: Tensor | None, *, causal: bool) -> Tensor:
    return reference.weights(maps.queries(q), maps.keys(k), keep, causal) @ v


def gradients(of: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, of.numel(), dtype=of.dtype).view_as(of)
    return torch.autograd.grad((of * weights).sum(), inputs, retain_graph=True)


def some_keep(length: int) -> Tensor:
    keep = torch.rand(1, length, generator=torch.Generator().manual_seed(1)) > 0.3
    keep[:, :2] = False
    return keep


@every_map
def test_the_causal_form_is_the_equation(name: str) -> None:
    phi, (q, k, v) = setup(name, 37)
    keep, inputs = some_keep(37), (q, k, v, *phi.parameters())
    assert gpu.serves(q)
    mixed, _ = linear.attend_causal(q, k, v, phi.sides(), None, keep)
    wanted = equation(q, k, v, phi.sides(), keep, causal=True)
    assert_close(mixed, wanted, rtol=1e-9, atol=1e-9)
    assert_close(gradients(mixed, *inputs), gradients(wanted, *inputs), rtol=1e-7, atol=1e-8)


@every_map
def test_the_bidirectional_form_is_the_equation(name: str) -> None:
    phi, (q, k, v) = setup(name, 21, 37)
    keep, inputs = some_keep(37), (q, k, v, *phi.parameters())
    mixed = linear.attend(q, k, v, phi.sides(), keep)
    wanted = equation(q, k, v, phi.sides(), keep, causal=False)
    assert_close(mixed, wanted, rtol=1e-9, atol=1e-9)
    assert_close(gradients(mixed, *inputs), gradients(wanted, *inputs), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", FUSED)
def test_a_state_goes_in_and_out_with_its_gradient(name: str) -> None:
    phi, (q, k, v) = setup(name, 37)
    maps, parts = phi.sides(), [(x[:, :, :20], x[:, :, 20:]) for x in (q, k, v)]
    first, state = causal(*(part[0] for part in parts), maps)
    second, last = causal(*(part[1] for part in parts), maps, state)
    wanted, after = parallel.attend_causal(q, k, v, maps, empty_state(k, v, maps.keys))
    assert_close(torch.cat([first, second], dim=2), wanted, rtol=1e-9, atol=1e-9)
    assert_close(last, after, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.cat([x.sums.flatten(), x.norms.flatten()]) for x in (last, after))
    ours, theirs = torch.cat([second.flatten(), ours]), torch.cat([wanted[:, :, 20:].flatten(), theirs])
    assert_close(gradients(ours, q, k, v), gradients(theirs, q, k, v), rtol=1e-7, atol=1e-8)


@every_map
def test_steps_are_the_causal_form(name: str) -> None:
    phi, (q, k, v) = setup(name, 5, dtype=torch.float32)
    maps, state = phi.sides(), None
    wanted, after = parallel.attend_causal(q, k, v, maps, empty_state(k, v, maps.keys))
    with torch.no_grad():
        for at in range(5):
            rows, before = [x[:, :, at : at + 1] for x in (q, k, v)], state
            mixed, state = one_step(*rows, maps, before, reuse=at % 2 == 1)
            assert_close(mixed, wanted[:, :, at : at + 1].detach(), rtol=2e-5, atol=2e-5)
            assert before is None or (state.sums.data_ptr() == before.sums.data_ptr()) == (at % 2 == 1)
    assert isinstance(state, LinearState)
    assert_close(state, LinearState(*(x.detach() for x in after)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_have_sums_of_float32(name: str, dtype: torch.dtype) -> None:
    phi, (q, k, v) = setup(name, 20, dtype=dtype)
    phi = phi.double()
    mixed, state = linear.attend_causal(q, k, v, phi.sides())
    assert (mixed.dtype, state.sums.dtype, state.norms.dtype) == (dtype, torch.float32, torch.float32)
    exact = q64, k64, v64 = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = equation(q64, k64, v64, phi.sides(), None, causal=True)
    close = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert_close(mixed.double(), wanted, rtol=close, atol=close)
    pairs = zip(gradients(mixed, q, k, v), gradients(wanted, *exact), strict=True)
    for ours, theirs in pairs:
        assert ours.dtype == dtype
        assert_close(ours.double(), theirs, rtol=close, atol=close * float(theirs.abs().max()))


@pytest.mark.parametrize("name", ["positive", "hyperbolic"])
@pytest.mark.parametrize("scale", [30.0, 1e3])
def test_loud_inputs_do_not_overflow_and_change_nothing_before_them(name: str, scale: float) -> None:
    phi, inputs = setup(name, 20, dtype=torch.float32)
    q, k, v = (x.detach() * scale for x in inputs)
    quiet = linear.attend_causal(q, k, v, phi.sides())[0]
    louder = k.clone()
    louder[:, :, 15:] *= 10
    loud, state = linear.attend_causal(q, louder, v, phi.sides())
    assert all(bool(x.isfinite().all()) for x in (quiet, loud, *state, linear.attend(q, louder, v, phi.sides())))
    assert_close(loud[:, :, :15], quiet[:, :, :15], rtol=0, atol=0)


@pytest.mark.parametrize("name", FUSED)
def test_padding_may_hold_anything_and_rows_without_keys_are_zero(name: str) -> None:
    phi, inputs = setup(name, 20)
    q, k, v = (x.detach() for x in inputs)
    keep = some_keep(20)
    hidden = ~keep[:, None, :, None]
    k, v = k.masked_fill(hidden, torch.nan).requires_grad_(), v.masked_fill(hidden, torch.nan).requires_grad_()
    mixed, state = linear.attend_causal(q, k, v, phi.sides(), None, keep)
    assert mixed[:, :, :2].eq(0).all()
    for_k, for_v = gradients(mixed, k, v)
    for x in (mixed, state.sums, linear.attend(q, k, v, phi.sides(), keep), for_k, for_v):
        assert x.isfinite().all()
    assert for_k.masked_select(hidden).eq(0).all()
    nothing = linear.attend(q, k, v, phi.sides(), torch.zeros_like(keep))
    assert nothing.eq(0).all()


def test_heads_need_not_be_contiguous() -> None:
    phi, inputs = setup("elu", 20)
    q, k, v = (x.detach() for x in inputs)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    strided = [torch.stack([x, x], dim=-1)[..., 0] for x in (q, k, v)]
    wanted = linear.attend_causal(q, k, v, phi.sides())[0]
    for form in (turned, strided):
        assert_close(causal(*form, phi.sides())[0], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["elu", "positive"])
def test_the_operators_of_compiled_code_are_the_same(name: str) -> None:
    phi, (q, k, v) = setup(name, 20)
    keep = some_keep(20)
    for ours, wanted in (
        (custom.attend_causal(q, k, v, phi.sides(), None, keep)[0], causal(q, k, v, phi.sides(), None, keep)[0]),
        (custom.attend(q, k, v, phi.sides(), keep), linear.attend(q, k, v, phi.sides(), keep)),
    ):
        assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
        assert_close(gradients(ours, q, k, v), gradients(wanted, q, k, v), rtol=1e-12, atol=1e-12)


def test_directions_of_wide_heads_are_left_to_pytorch() -> None:
    q = torch.zeros(1, 1, 1, gpu.WIDEST + 1)
    phi = Random(features=4).build(heads=1, head_dim=gpu.WIDEST + 1).sides()
    assert kernels._kernel_maps(q, phi) is None
    assert kernels._kernel_maps(q[..., 1:], phi) is not None
    assert kernels._kernel_maps(q, Elu().build(heads=1, head_dim=gpu.WIDEST + 1).sides()) is not None


def test_a_gpu_that_is_too_small_is_said() -> None:
    from triton.runtime.errors import OutOfResources

    from subquad.ops.linear.gpu.plans import launch

    def refuse(*_arguments: object) -> None:
        raise OutOfResources(131072, 65536, "shared memory")

    with pytest.raises(SubquadError, match=r"this GPU is too small.*shared memory.*: set SUBQUAD_KERNELS=torch"):
        launch(torch.zeros(1), {(1,): refuse}, (1,))
