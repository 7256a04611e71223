"""The quick path of the hybrid's decoding step is the same step, and refuses what is not usual."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import subquad as sq
from subquad import native
from subquad.errors import NotFiniteError
from subquad.ops import hybrid

pytestmark = pytest.mark.skipif(not native.is_there(), reason="there was no C compiler when the package was installed")
OPTIONS = {
    "learned": sq.Hybrid(block=4),
    "elu": sq.Hybrid(block=20, rest=sq.feature_maps.Elu()),
    "favor": sq.Hybrid(block=3, rest=sq.feature_maps.Random(features=19)),
}
KERNELS: tuple[native.Kernels, ...] = ("native", "torch")
WIDE = sq.Hybrid(block=24, rest=sq.feature_maps.Random(features=4096))  # kernels keep features of the last hundred positions


def setup(name: str, before: int, head_dim: int = 16) -> tuple[Any, list[Tensor], Any]:
    generator = torch.Generator().manual_seed(0)
    attend: Any = OPTIONS[name].build(heads=3, head_dim=head_dim, generator=generator)
    past = [torch.randn(2, 3, before, head_dim, generator=generator) for _ in range(3)]
    position = [torch.randn(2, 3, 1, head_dim, generator=generator) for _ in range(3)]
    with torch.no_grad():
        return attend, position, attend.causal(*past)[1]


def quick(attend: Any, position: list[Tensor], state: Any) -> Any:
    q, k, v = position
    return hybrid.quick_step(q, k, v, attend.feature_map.sides(), state, attend.log_gain, attend.options.block)


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("before", [1, 5, 7, 39])
@pytest.mark.parametrize("head_dim", [16, 5])
def test_the_quick_step_is_the_step(name: str, before: int, head_dim: int) -> None:
    attend, position, state = setup(name, before, head_dim)
    with native.using("torch"):
        wanted = attend.step(*position, state)
    start = type(state)(*(part.clone() for part in state))
    mixed, after, is_finite = quick(attend, position, start)
    assert is_finite
    assert_close((mixed, after), wanted, rtol=2e-5, atol=2e-5)
    assert after.keys.data_ptr() == start.keys.data_ptr()
    again = type(state)(*(part.clone() for part in state))
    assert_close(attend.step(*position, again, reuse=True), wanted, rtol=2e-5, atol=2e-5)


@torch.no_grad()
def test_the_quick_step_leaves_unusual_inputs_to_the_slow_one() -> None:
    attend, (q, k, v), state = setup("learned", 9)
    for inputs in ([q.double(), k, v], [q[:1], k, v], [q, torch.randn(2, 3, 1, 32)[..., ::2], v]):
        assert quick(attend, inputs, state) is None
    for name, part in state._asdict().items():
        assert quick(attend, [q, k, v], state._replace(**{name: part[:1]})) is None
        assert quick(attend, [q, k, v], state._replace(**{name: part.half()})) is None
    assert quick(attend, [q, k, v], tuple(state)) is None
    with torch.enable_grad():
        assert quick(attend, [q, k, v], state) is None
    with native.using("torch"):
        assert quick(attend, [q, k, v], state) is None


@torch.no_grad()
@pytest.mark.parametrize("before", [5, 7])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_inputs_that_are_not_finite_are_named(before: int, where: int) -> None:
    attend, position, state = setup("learned", before)
    position[where][1, 2, 0, 3] = float("nan")
    with pytest.raises(NotFiniteError, match=f"{'qkv'[where]} holds"):
        attend.step(*position, state, reuse=True)


def causal_results(name: str, length: int, head_dim: int, dtype: torch.dtype, kernels: native.Kernels) -> list[Tensor]:
    """Mixed values, the state after them, and gradients of all inputs and weights, through the state too."""
    generator = torch.Generator().manual_seed(length)
    options = OPTIONS.get(name, WIDE)
    attend: Any = options.build(heads=3, head_dim=head_dim, generator=generator).to(dtype)
    x = [torch.randn(2, 3, length, head_dim, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
    with native.using(kernels):
        mixed, state = attend.causal(*x)
        outputs = [mixed, *(part for part in state if part.requires_grad)]
        weights = [torch.randn(part.shape, generator=generator).to(part.dtype) for part in outputs]
        of = [*x, *attend.parameters()]
        gradients = torch.autograd.grad(outputs, of, weights, allow_unused=True, materialize_grads=True)
    return [mixed, *state, *gradients]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("length", [0, 1, 3, 8, 43, 80])
@pytest.mark.parametrize("head_dim", [16, 5])
def test_the_quick_causal_form_is_the_causal_form(name: str, length: int, head_dim: int) -> None:
    results, wanted = (causal_results(name, length, head_dim, torch.float64, kernels) for kernels in KERNELS)
    assert_close(results, wanted, rtol=1e-9, atol=1e-9)


def test_gradients_are_the_same_where_not_all_features_are_kept() -> None:
    results, wanted = (causal_results("wide", 205, 5, torch.float64, kernels) for kernels in KERNELS)
    assert_close(results, wanted, rtol=1e-9, atol=1e-9)


def test_the_quick_causal_form_takes_half_precision() -> None:
    results = causal_results("learned", 43, 16, torch.bfloat16, "native")
    wanted = causal_results("learned", 43, 16, torch.bfloat16, "torch")
    assert [x.dtype for x in results] == [x.dtype for x in wanted]
    assert_close(results[0], wanted[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("place", ["q", "k", "v"])
def test_the_quick_causal_form_names_the_input_that_is_not_finite(place: str) -> None:
    attend = OPTIONS["learned"].build(heads=3, head_dim=16)
    x = {name: torch.randn(2, 3, 21, 16) for name in ("q", "k", "v")}
    x[place][1, 2, 20, 3] = torch.nan
    with pytest.raises(NotFiniteError, match=f"{place} holds NaN"):
        attend.causal(x["q"], x["k"], x["v"])
