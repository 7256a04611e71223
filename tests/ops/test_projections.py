"""Random directions."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad.feature_maps import Random, RandomMap
from subquad.ops import projections


@pytest.mark.parametrize("projection", ["orthogonal", "givens", "hadamard"])
def test_blocks_are_orthogonal(projection: Any) -> None:
    block = projections.draw(16, 16, projection, "fixed", torch.Generator().manual_seed(0)) / 4
    assert_close(block.T @ block, torch.eye(16), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 5, 13])
@pytest.mark.parametrize("projection", ["orthogonal", "hadamard", "givens", "independent"])
def test_any_width_and_number_of_columns(projection: Any, dim: int) -> None:
    drawn = projections.draw(dim, 31, projection, "fixed", torch.Generator().manual_seed(0))
    assert drawn.shape == (dim, 31)
    if projection != "independent":
        assert_close(drawn.norm(dim=0), torch.full((31,), math.sqrt(dim)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("projection", ["orthogonal", "hadamard", "givens", "independent"])
def test_lengths_are_those_of_gaussian_vectors(projection: Any) -> None:
    """chi with d degrees of freedom: its square has the mean d and the variance 2d."""
    squares = projections.draw(8, 8000, projection, "chi", torch.Generator().manual_seed(0)).square().sum(0)
    assert abs(float(squares.mean()) - 8) < 4 * math.sqrt(16 / 8000)
    assert abs(float(squares.var()) / 16 - 1) < 0.15


@pytest.mark.parametrize("projection", ["orthogonal", "hadamard", "givens"])
def test_no_direction_is_preferred(projection: Any) -> None:
    """Covariance of the columns over many draws is the identity: each entry within five standard errors."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([projections.draw(8, 8, projection, "chi", generator) for _ in range(2000)], dim=1)
    covariance = drawn @ drawn.T / drawn.shape[1]
    assert (covariance - torch.eye(8)).abs().max() < 5 * math.sqrt(2 / drawn.shape[1])


@pytest.mark.parametrize("dim", [1, 3, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (2, 5, 6, 7, 9))])
@pytest.mark.parametrize("projection", ["orthogonal", "hadamard", "givens"])
def test_no_draw_leaves_a_direction_without_length(projection: Any, dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([projections.draw(dim, dim, projection, "fixed", generator) for _ in range(500)], dim=1)
    assert_close(drawn.norm(dim=0), torch.full((500 * dim,), math.sqrt(dim)), rtol=1e-4, atol=1e-4)


PINNED = {
    ("hadamard", 3): [5.4995222, -0.4524508, 1.7452451, -5.3292069, -1.2016749],
    ("hadamard", 4): [2.7075801, 0.0000000, 0.0000000, 0.0000000, -3.5695791],
    ("givens", 3): [-1.0480542, 1.1914341, -0.9540681, -0.6625082, -0.9366449],
    ("givens", 4): [0.1511829, -2.3400168, -1.7036998, -3.2411489, 0.9470811],
}
"""Sums over the columns of five directions drawn from seed 7 before they were kept as factors."""


@pytest.mark.parametrize(("projection", "dim"), PINNED)
def test_a_seed_gives_the_directions_that_it_always_gave(projection: Any, dim: int) -> None:
    drawn = projections.draw(dim, 5, projection, "chi", torch.Generator().manual_seed(7))
    assert_close(drawn.sum(0), torch.tensor(PINNED[projection, dim]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 2048])
def test_the_fast_transform_is_the_hadamard_matrix(size: int) -> None:
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    assert_close(projections.walsh_hadamard(x), x @ projections.hadamard_matrix(size), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dim", "columns"), [(1, 3), (5, 12), (13, 7), (16, 40)])
@pytest.mark.parametrize("norms", ["chi", "fixed"])
@pytest.mark.parametrize("projection", ["hadamard", "givens"])
def test_factors_multiply_as_their_matrix_does(projection: Any, norms: Any, dim: int, columns: int) -> None:
    directions = projections.draw_directions(dim, columns, projection, norms, torch.Generator().manual_seed(0))
    matrix = directions.matrix()
    assert_close(matrix, projections.draw(dim, columns, projection, norms, torch.Generator().manual_seed(0)), rtol=0, atol=0)
    x = torch.randn(2, 3, 4, dim, generator=torch.Generator().manual_seed(1), requires_grad=True)
    weight = torch.randn(2, 3, 4, columns, generator=torch.Generator().manual_seed(2))
    fast, dense = directions.multiply(x), x @ matrix
    assert_close(fast, dense, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(mixed, x, weight)[0] for mixed in (fast, dense)]
    assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("projection", ["hadamard", "givens"])
def test_factors_in_float64(projection: Any) -> None:
    directions = projections.draw_directions(6, 9, projection, "chi", torch.Generator().manual_seed(0))
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert_close(directions.multiply(x), x @ directions.matrix().double(), rtol=1e-5, atol=1e-5)
    assert torch.autograd.gradcheck(directions.multiply, x)


def test_factors_are_used_from_some_dimension_on_and_never_for_loaded_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Random(features=24, projection="hadamard")
    x = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def results(phi: RandomMap) -> tuple[torch.Tensor, ...]:
        values, exponent = phi(x)
        assert exponent is not None
        return values, exponent, torch.autograd.grad((values * exponent).sum(), x)[0]

    dense = options.build(heads=2, head_dim=8, generator=torch.Generator().manual_seed(1))
    assert dense.factors is None
    monkeypatch.setitem(projections.FAST_FROM, "hadamard", 8)
    fast = options.build(heads=2, head_dim=8, generator=torch.Generator().manual_seed(1))
    assert fast.factors is not None
    assert torch.equal(fast.omega, dense.omega)
    for ours, theirs in zip(results(fast), results(dense), strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    other = options.build(heads=2, head_dim=8, generator=torch.Generator().manual_seed(2))
    other.load_state_dict(dense.state_dict())
    assert other.factors is None
    for ours, theirs in zip(results(other), results(dense), strict=True):
        assert_close(ours, theirs, rtol=0, atol=0)
