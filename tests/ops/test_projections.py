"""Random directions."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad.ops import projections


@pytest.mark.parametrize("draw", [projections.orthogonal, projections.givens, projections.hadamard])
def test_blocks_are_orthogonal(draw: Any) -> None:
    block = draw(16, torch.Generator().manual_seed(0))
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


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 6, 7, 9])
@pytest.mark.parametrize("projection", ["orthogonal", "hadamard", "givens"])
def test_no_draw_leaves_a_direction_without_length(projection: Any, dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([projections.draw(dim, dim, projection, "fixed", generator) for _ in range(500)], dim=1)
    assert_close(drawn.norm(dim=0), torch.full((500 * dim,), math.sqrt(dim)), rtol=1e-4, atol=1e-4)
