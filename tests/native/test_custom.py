"""Native kernels as operators of PyTorch: compiled code uses them, and PyTorch's own checks of operators hold."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import subquad as sq
from subquad import native
from subquad.ops.linear import custom

pytestmark = pytest.mark.skipif(not native.is_there(), reason="there was no C compiler when the package was installed")
OPTIONS = {"linear": sq.Linear(), "favor": sq.Favor(features=16), "hyperbolic": sq.Favor(features=16, kernel="hyperbolic")}


def setup(name: str, length: int = 70) -> tuple[Any, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    attend = OPTIONS[name].build(heads=2, head_dim=5, generator=generator).double()
    made = [torch.randn(2, 2, length, 5, dtype=torch.float64, generator=generator) for _ in range(3)]
    return attend, [x.requires_grad_() for x in made]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.usefixtures("unchecked_shapes")
def test_compiled_code_uses_them(name: str) -> None:
    torch.compiler.reset()
    attend, inputs = setup(name)
    graphs: list[str] = []

    def record(graph: torch.fx.GraphModule, _example: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed, state = attend.causal(q, k, v)
        later, _ = attend.causal(q, k, v, state)
        whole: Tensor = mixed + later + attend(q, k, v)
        return whole

    got, wanted = torch.compile(both, fullgraph=True, backend=record)(*inputs), both(*inputs)
    assert graphs[0].count("subquad.linear_causal") == 2
    assert graphs[0].count("subquad.linear_bidirectional") == 1
    assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(result.sin().sum(), inputs) for result in (got, wanted)]
    assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-8)


@pytest.mark.usefixtures("unchecked_shapes")
def test_compiled_code_does_without_where_they_are_not_chosen() -> None:
    torch.compiler.reset()
    attend, inputs = setup("linear")
    graphs: list[str] = []

    def record(graph: torch.fx.GraphModule, _example: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    with native.using("torch"):
        compiled: Any = torch.compile(attend.causal, fullgraph=True, backend=record)
        compiled(*inputs)
    assert "subquad" not in graphs[0]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.usefixtures("unchecked_shapes")
def test_they_pass_the_checks_of_operators(name: str) -> None:
    attend, (q, k, v) = setup(name, 40)
    maps = custom._flat(attend.feature_map.sides())
    keep = torch.arange(40).expand(2, 40) < 33
    torch.library.opcheck(custom.bidirectional, (q, k, v, keep, *maps))
    torch.library.opcheck(custom.causal, (q, k, v, keep, None, None, None, *maps))
