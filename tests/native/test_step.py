"""The quick path of a decoding step is the same step, and refuses what is not usual."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import subquad as sq
from subquad import native
from subquad.errors import NotFiniteError
from subquad.ops import dense, linear

pytestmark = pytest.mark.skipif(not native.is_there(), reason="there was no C compiler when the package was installed")
OPTIONS = {
    "elu": sq.Linear(),
    "relu": sq.Linear(sq.feature_maps.Relu()),
    "favor": sq.Favor(features=48),
    "odd": sq.Favor(features=19),
    "hyperbolic": sq.Favor(features=32, kernel="hyperbolic"),
    "per head": sq.Favor(features=32, per_head=True),
}


def setup(name: str, batch: int = 3, head_dim: int = 16) -> tuple[Any, list[Tensor], Any]:
    generator = torch.Generator().manual_seed(0)
    attend: Any = OPTIONS[name].build(heads=3, head_dim=head_dim, generator=generator)
    past = [torch.randn(batch, 3, 9, head_dim, generator=generator) for _ in range(3)]
    position = [torch.randn(batch, 3, 1, head_dim, generator=generator) for _ in range(3)]
    with torch.no_grad():
        return attend, position, attend.causal(*past)[1]


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("head_dim", [16, 5])
def test_the_quick_step_is_the_step(name: str, reuse: bool, head_dim: int) -> None:
    attend, position, state = setup(name, head_dim=head_dim)
    with native.using("torch"):
        wanted = attend.step(*position, state)
    start = type(state)(*(part.clone() for part in state))
    q, k, v = position
    quick = linear.quick_step(q, k, v, attend.feature_map.sides(), start, reuse)
    assert quick is not None
    assert_close(quick, wanted, rtol=2e-5, atol=2e-5)
    assert (quick[1].sums.data_ptr() == start.sums.data_ptr()) == reuse
    if not reuse:
        assert_close(start, state, rtol=0, atol=0)


@torch.no_grad()
def test_the_quick_step_leaves_unusual_inputs_to_the_slow_one() -> None:
    attend, (q, k, v), state = setup("elu")
    sides = attend.feature_map.sides()
    wide = torch.randn(3, 3, 1, 32)
    for inputs in ((q.double(), k, v), (q, wide[..., ::2], v), (q[:2], k, v), (q, k, wide)):
        assert linear.quick_step(*inputs, sides, state, False) is None
    assert linear.quick_step(q, k, v, sides, tuple(state), False) is None  # type: ignore[arg-type]
    assert linear.quick_step(q, k, v, sides, state._replace(norms=state.norms[:2]), False) is None
    favor, (q2, k2, v2), state2 = setup("favor")
    assert linear.quick_step(q2, k2, v2, favor.double().feature_map.sides(), state2, False) is None
    with torch.enable_grad():
        assert linear.quick_step(q, k, v, sides, state, False) is None
    with native.using("torch"):
        assert linear.quick_step(q, k, v, sides, state, False) is None


@torch.no_grad()
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_inputs_that_are_not_finite_are_named(value: float, where: int) -> None:
    attend, position, state = setup("favor")
    position[where][1, 2, 0, 3] = value
    with pytest.raises(NotFiniteError, match=f"{'qkv'[where]} holds"):
        attend.step(*position, state)


@torch.no_grad()
@pytest.mark.parametrize("rows", range(1, 7))
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (16, 64), (65, 33), (200, 3)])
def test_linear_layers_of_a_few_rows_are_linear_layers(rows: int, inputs: int, outputs: int) -> None:
    x, weight, bias = torch.randn(rows, 1, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    assert_close(dense.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias), rtol=1e-4, atol=1e-5)
    assert_close(dense.linear(x, weight, None), torch.nn.functional.linear(x, weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backward", [False, True])
def test_quick_forms_are_the_forms(name: str, backward: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    attend: Any = OPTIONS[name].build(heads=3, head_dim=16, generator=generator)
    q, k, v = (torch.randn(2, 3, 37, 16, generator=generator).requires_grad_(backward) for _ in range(3))
    keep = torch.arange(37) < torch.tensor([[37], [30]])
    maps = attend.feature_map.sides()
    with torch.set_grad_enabled(backward):
        both, one = linear.quick_attend(q, k, v, maps, keep), linear.quick_causal(q, k, v, maps, None, keep)
        assert both is not None
        assert one is not None
        assert_close(both, linear.attend(q, k, v, maps, keep), rtol=0, atol=0)
        assert_close(one, linear.attend_causal(q, k, v, maps, None, keep), rtol=0, atol=0)
        assert both.requires_grad == one[0].requires_grad == backward


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 36])
@pytest.mark.parametrize("backward", [False, True])
def test_quick_forms_refuse_what_is_not_finite(value: float, where: int, place: int, backward: bool) -> None:
    attend: Any = sq.Linear().build(heads=3, head_dim=64)
    inputs = [torch.randn(2, 3, 37, 64) for _ in range(3)]
    inputs[where][1, 2, place, 3] = value
    q, k, v = (x.requires_grad_(backward) for x in inputs)
    maps = attend.feature_map.sides()
    assert linear.quick_attend(q, k, v, maps, None) is None
    assert linear.quick_causal(q, k, v, maps, None, None) is None
    with pytest.raises(NotFiniteError, match=f"{'qkv'[where]} holds"):
        attend(q, k, v)
    with pytest.raises(NotFiniteError, match=f"{'qkv'[where]} holds"):
        attend.causal(q, k, v)
