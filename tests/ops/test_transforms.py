"""The transforms of `torch.func` see through linear attention, FAVOR+ and the hybrid."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import subquad as sq

OPTIONS = {"linear": sq.Linear(), "favor": sq.Favor(features=16), "hybrid": sq.Hybrid(block=8)}


def setup(name: str) -> tuple[Any, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    attend = OPTIONS[name].build(heads=2, head_dim=8, generator=generator).double()
    return attend, [torch.randn(3, 2, 20, 8, dtype=torch.float64, generator=generator) for _ in range(3)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own code
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.usefixtures("unchecked_shapes")
def test_grad_and_jvp_agree_with_autograd(name: str, causal: bool) -> None:
    attend, (q, k, v) = setup(name)

    def total(q: Tensor) -> Tensor:
        mixed: Tensor = attend.causal(q, k, v)[0] if causal else attend(q, k, v)
        return mixed.sin().sum()

    leaf = q.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(total(leaf), leaf)
    assert_close(torch.func.grad(total)(q), wanted, rtol=1e-9, atol=1e-9)
    along: Tensor = torch.func.jvp(total, (q,), (k,))[1]
    assert_close(along, (wanted * k).sum(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.usefixtures("unchecked_shapes")
def test_vmap_is_the_loop(name: str) -> None:
    attend, inputs = setup(name)
    with torch.no_grad():
        mapped = torch.func.vmap(lambda *x: attend(*(part[None] for part in x))[0])(*inputs)
        assert_close(mapped, attend(*inputs), rtol=1e-9, atol=1e-9)
