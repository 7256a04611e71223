"""flash-linear-attention, where it is chosen: a stand-in with its interface gives our equation, and misfits are refused."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import native
from subquad.errors import SubquadError
from subquad.feature_maps import Elu, Random
from subquad.ops import linear
from subquad.ops.linear import empty_state, fla, parallel
from subquad.types import Maps

Inputs = tuple[Tensor, Tensor, Tensor]


def stand_in(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    normalize: bool = True,
) -> tuple[Tensor, Tensor]:
    """The recurrence of linear attention on "b n h d", position by position."""
    assert (scale, output_final_state, normalize) == (1.0, True, False)
    assert initial_state is not None
    state, rows = initial_state, []
    for at in range(q.shape[1]):
        state = state + k[:, at, :, :, None] * v[:, at, :, None, :]
        rows.append((q[:, at, :, None, :] @ state).squeeze(2))
    return torch.stack(rows, dim=1), state


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "DEVICES", ("cpu",))


def install(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    for name in ("fla", "fla.ops", "fla.ops.linear_attn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["fla.ops.linear_attn"].chunk_linear_attn = function  # type: ignore[attr-defined]


def inputs(options: Elu | Random = Elu(), dtype: torch.dtype = torch.float32) -> tuple[Maps, Inputs]:  # noqa: B008
    maps = options.build(heads=2, head_dim=3).to(dtype).sides()
    q, k, v = (torch.randn(2, 2, 9, 3, dtype=dtype, requires_grad=True) for _ in range(3))
    return maps, (q, k, v)


@pytest.mark.usefixtures("on_cpu")
def test_its_sums_give_mixed_values_states_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, stand_in)
    maps, (q, k, v) = inputs()
    keep = torch.rand(2, 9) > 0.3
    with native.using("torch"):
        start = parallel.attend_causal(v, q, k, maps, empty_state(k, v, maps.keys))[1]
        wanted, after = parallel.attend_causal(q, k, v, maps, start, keep)
    with native.using("fla"):
        mixed, state = linear.attend_causal(q, k, v, maps, start, keep)
    assert_close(mixed, wanted, rtol=1e-5, atol=1e-5)
    assert_close(state, after, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(x.sin().sum(), (q, k, v), retain_graph=True) for x in (mixed, wanted)]
    assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("on_cpu")
def test_what_does_not_fit_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, stand_in)
    maps, tensors = inputs()
    with native.using("fla"):
        with pytest.raises(SubquadError, match="no bidirectional form of linear attention: leave SUBQUAD_KERNELS"):
            linear.attend(*tensors, maps)
        random, tensors = inputs(Random(features=4))
        with pytest.raises(SubquadError, match="no features with exponents"):
            linear.attend_causal(*tensors, random)
        double, tensors = inputs(dtype=torch.float64)
        with pytest.raises(SubquadError, match="not float64"):
            linear.attend_causal(*tensors, double)


@pytest.mark.usefixtures("on_cpu")
def test_a_missing_or_old_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, tensors = inputs()
    monkeypatch.setitem(sys.modules, "fla", None)
    with native.using("fla"), pytest.raises(SubquadError, match=r"cannot be imported.*pip install flash-linear-attention"):
        linear.attend_causal(*tensors, maps)

    def old(q: Tensor, k: Tensor, v: Tensor, head_first: bool = True) -> None: ...

    install(monkeypatch, old)
    with native.using("fla"), pytest.raises(SubquadError, match="too old"):
        linear.attend_causal(*tensors, maps)


def test_a_cpu_keeps_its_kernels() -> None:
    maps, tensors = inputs()
    with native.using("fla"):
        assert linear.attend_causal(*tensors, maps)[0].shape == (2, 2, 9, 3)
