"""Gradients do not depend on whether the backward is called inside of autocast."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad.ops.autocast import product
from subquad.ops.linear import empty_state, parallel
from tests.ops.test_forms import every_map, setup

SHAPES = [
    ((5, 3), (3, 2)),
    ((2, 1, 5, 3), (4, 3, 2)),
    ((2, 4, 5, 3), (3, 2)),
    ((1, 5, 3), (2, 4, 3, 2)),
    ((0, 5, 3), (3, 2)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_a_product_is_the_product_with_its_gradients(left: Any, right: Any) -> None:
    x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (left, right))
    assert_close(product(x, y), x @ y, rtol=0, atol=0)
    assert torch.autograd.gradcheck(product, (x, y))
    assert torch.autograd.gradgradcheck(product, (x, y))


def test_a_product_computes_only_the_gradients_that_are_asked_for() -> None:
    """As `torch.autograd.grad` for some tensors does with PyTorch's own operations."""
    x, y = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    mixed = product(x * 1, y * 1).sum()
    with patch("subquad.ops.autocast.product", wraps=product) as inside:
        torch.autograd.grad(mixed, x, retain_graph=True)
        assert inside.call_count == 1
        torch.autograd.grad(mixed, (x, y), retain_graph=True)
        assert inside.call_count == 3
        mixed.backward()
        assert inside.call_count == 5
    assert x.grad is not None
    assert y.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_a_product_is_precise_inside_autocast(dtype: torch.dtype) -> None:
    x, y = (torch.randn(2, 3, 9, 9, requires_grad=True) for _ in range(2))
    wanted = torch.autograd.grad((x @ y).square().sum(), (x, y))
    mixed = product(x, y)
    with torch.autocast("cpu", dtype):
        assert_close(torch.autograd.grad(mixed.square().sum(), (x, y)), wanted)


@every_map
def test_parallel_forms_are_precise_inside_autocast(name: str) -> None:
    """The forms that a GPU takes, which the contract of the mechanisms does not reach on a CPU."""
    phi, (q, k, v) = setup(name, 300)
    phi, (q, k, v) = phi.float(), [x.detach().float().requires_grad_() for x in (q, k, v)]
    sides = phi.sides()

    def run() -> Tensor:
        state = empty_state(k, v, sides[1])
        return parallel.attend(q, k, v, sides) + parallel.attend_causal(q, k, v, sides, state)[0]

    of = (q, k, v, *phi.parameters())
    wanted, mixed = torch.autograd.grad(run().sum(), of), run()
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(torch.autograd.grad(mixed.sum(), of), wanted, rtol=0, atol=0)
