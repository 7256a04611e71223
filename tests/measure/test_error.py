"""The published mean squared errors of random features are those that are measured."""

import math

import pytest
import torch
from torch import Tensor

from subquad.feature_maps import Kernel, Random
from subquad.measure.error import FORMULAS, estimate_error, expected_error, orthogonal_error, pairs, relative_error
from subquad.ops.projections import Projection
from subquad.statistics import mean_over_seeds

HEAD_DIM, DRAWS = 4, 4000


def inputs(size: float, positions: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (size * torch.randn(1, 1, positions, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    return q, k


def measured(kernel: Kernel, projection: Projection, features: int, q: Tensor, k: Tensor, draws: int = DRAWS) -> Tensor:
    """The error of each draw: each is a head of its own."""
    options = Random(features, kernel, projection, per_head=True)
    phi = options.build(heads=draws, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1)).double()
    q, k = (part.expand(1, draws, *part.shape[2:]) for part in (q, k))
    return estimate_error(phi(q), phi(k), q, k)[0]


@pytest.mark.parametrize("size", [0.15, 0.3])
@pytest.mark.parametrize("features", [8, 32])
@pytest.mark.parametrize("kernel", FORMULAS)
def test_the_formula_lies_in_the_interval_of_what_is_measured(kernel: Kernel, features: int, size: float) -> None:
    q, k = inputs(size)
    found = mean_over_seeds(measured(kernel, "independent", features, q, k).tolist())
    directions = features if kernel == "positive" else features // 2
    formula = float(expected_error(kernel, q, k, directions))
    width = found.high - found.low  # four standard errors, because twelve formulas are tested
    assert abs(found.value - formula) < width
    assert width < 0.2 * formula  # otherwise the line above says nothing


def test_orthogonal_directions_stay_below_their_bound_and_below_independent_ones() -> None:
    q, k = inputs(0.3)
    found = mean_over_seeds(measured("positive", "orthogonal", HEAD_DIM, q, k).tolist())
    bound = float(orthogonal_error(q, k, HEAD_DIM))
    assert found.low < bound
    assert max(found.high, bound) < float(expected_error("positive", q, k, HEAD_DIM))


def test_blocks_of_orthogonal_directions_gain_as_much_as_one_block() -> None:
    """Three blocks are the mean of three estimates, each with the error of one block."""
    q, k = inputs(0.3)
    assert float(orthogonal_error(q, k, 3 * HEAD_DIM)) == pytest.approx(float(orthogonal_error(q, k, HEAD_DIM)) / 3)


def test_the_formulas_are_those_of_a_single_pair() -> None:
    q, k = inputs(0.7, positions=1)
    x, y = q.flatten() * HEAD_DIM**-0.25, k.flatten() * HEAD_DIM**-0.25
    plus, minus, softmax = (float(part) for part in ((x + y).square().sum(), (x - y).square().sum(), (x @ y).exp()))
    wanted = {
        "trigonometric": math.exp(plus) * softmax**-2 * (1 - math.exp(-minus)) ** 2 / 2,
        "positive": math.exp(plus) * softmax**2 * (1 - math.exp(-plus)),
        "hyperbolic": math.exp(plus) * softmax**2 * (1 - math.exp(-plus)) ** 2 / 2,
    }
    for kernel, error in wanted.items():
        assert float(expected_error(kernel, q, k, 5)) == pytest.approx(error / softmax**2 / 5)


def test_a_query_equal_to_its_key_costs_trigonometric_features_nothing() -> None:
    q, _ = inputs(1.0, positions=1)
    assert float(expected_error("trigonometric", q, q, 1)) == 0
    assert float(expected_error("positive", q, -q, 1)) == 0
    assert float(measured("trigonometric", "independent", 8, q, q).max()) < 1e-20


def test_loud_inputs_do_not_overflow() -> None:
    """exp(q . k / sqrt d) is about e^8000 here."""
    q, _ = inputs(50.0)
    assert float(pairs(q, q).score.max()) > 1000
    assert 0 < float(measured("positive", "independent", 8, q, q).mean()) < math.inf


def test_relative_error() -> None:
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact, exact) == 0
    assert relative_error(1.1 * exact, exact) == pytest.approx(0.1)
    assert relative_error(exact, torch.zeros(2)) == 5
