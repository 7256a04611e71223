"""FAVOR+ estimates exp(x . y) without bias and with the error that theory gives."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import Favor, SubquadError
from subquad.feature_maps import Random
from subquad.ops import projections

HEAD_DIM, DRAWS = 16, 4000


def pair(length: float = 0.5) -> tuple[Tensor, Tensor]:
    """Two vectors of the given length at 60 degrees, as they are after the division by d^(1/4)."""
    first = torch.zeros(HEAD_DIM, dtype=torch.float64)
    second = first.clone()
    first[0], second[0], second[1] = length, length / 2, length * math.sqrt(0.75)
    return first, second


@cache
def directions(projection: Any, columns: int, draws: int) -> Tensor:
    """Many draws of that many directions."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([projections.draw(HEAD_DIM, columns, projection, "chi", generator) for _ in range(draws)]).double()


def estimates(kernel: Any, projection: str, features: int, x: Tensor, y: Tensor, draws: int = DRAWS) -> Tensor:
    """phi(x) . phi(y) for many draws: each is a head of its own."""
    phi = Random(features, kernel, "independent", per_head=True).build(heads=draws, head_dim=HEAD_DIM).double()
    phi.omega.copy_(directions(projection, phi.directions, draws))
    features_of = phi(torch.stack([x, y]).mul(HEAD_DIM**0.25).expand(1, draws, 2, HEAD_DIM))
    assert features_of.exponent is not None
    true = features_of.values * torch.exp2(features_of.exponent)
    return (true[0, :, 0] * true[0, :, 1]).sum(-1)


def mean_squared_error(kernel: str, directions: int, x: Tensor, y: Tensor) -> float:
    """The formulas for independent directions (Choromanski et al. 2021, lemma 2 and theorem 2)."""
    plus, minus, softmax = (x + y).square().sum(), (x - y).square().sum(), (x @ y).exp()
    trigonometric = plus.exp() * softmax**-2 * (1 - (-minus).exp()) ** 2 / (2 * directions)
    positive = plus.exp() * softmax**2 * (1 - (-plus).exp()) / directions
    hyperbolic = positive * (1 - (-plus).exp()) / 2
    return float({"trigonometric": trigonometric, "positive": positive, "hyperbolic": hyperbolic}[kernel])


KERNELS = ["positive", "hyperbolic", "trigonometric"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("projection", ["independent", "orthogonal", pytest.param("givens", marks=pytest.mark.slow)])
@pytest.mark.parametrize("length", [0.25, 0.5])
def test_unbiased(kernel: str, projection: str, length: float) -> None:
    """The mean of many draws is exp(x . y), to within four standard errors of that mean."""
    x, y = pair(length)
    drawn = estimates(kernel, projection, 32, x, y)
    assert abs(float(drawn.mean() - (x @ y).exp())) < 4 * float(drawn.std()) / math.sqrt(DRAWS)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("length", [0.25, 0.5])
def test_mean_squared_error_is_the_formula_s(kernel: str, length: float) -> None:
    """Within four standard errors of the measured mean of squares, which is itself a matter of chance."""
    x, y = pair(length)
    squares = (estimates(kernel, "independent", 32, x, y) - (x @ y).exp()) ** 2
    error = float(squares.std()) / math.sqrt(DRAWS)
    wanted = mean_squared_error(kernel, 32 if kernel == "positive" else 16, x, y)
    assert abs(float(squares.mean()) - wanted) < 4 * error
    assert error < 0.1 * wanted  # otherwise the line above says nothing


@pytest.mark.parametrize(
    ("kernel", "projection", "draws"),
    [
        pytest.param("positive", "orthogonal", 30000, marks=pytest.mark.slow),
        pytest.param("hyperbolic", "orthogonal", 30000, marks=pytest.mark.slow),
        pytest.param("trigonometric", "orthogonal", 30000, marks=pytest.mark.slow),
        ("trigonometric", "hadamard", DRAWS),
        pytest.param("trigonometric", "givens", DRAWS, marks=pytest.mark.slow),
    ],
)
def test_orthogonal_beats_independent(kernel: str, projection: str, draws: int) -> None:
    """By at least what theory promises for positive features: 2(m-1)/(m(d+2)) (SM - e^(-(|x|^2+|y|^2)/2))^2, m <= d."""
    x, y = pair()
    truth = (x @ y).exp()
    features = HEAD_DIM if kernel == "positive" else 2 * HEAD_DIM
    errors = {drawn: (estimates(kernel, drawn, features, x, y, draws) - truth) ** 2 for drawn in ("independent", projection)}
    gain = float(errors["independent"].mean() - errors[projection].mean())
    spread = math.sqrt(sum(float(error.var()) for error in errors.values()) / draws)
    assert gain > 4 * spread
    if kernel == "positive":
        base = (truth - (-(x.square().sum() + y.square().sum()) / 2).exp()) ** 2
        assert gain > float(2 * (HEAD_DIM - 1) / (HEAD_DIM * (HEAD_DIM + 2)) * base) - 4 * spread


@pytest.mark.parametrize("kernel", KERNELS)
def test_error_falls_as_one_over_m(kernel: str) -> None:
    x, y = pair()
    errors, spreads = [], []
    for features in (16, 32, 64, 128):
        squares = (estimates(kernel, "independent", features, x, y) - (x @ y).exp()) ** 2
        errors.append(float(squares.mean()) * features)
        spreads.append(float(squares.std()) / math.sqrt(DRAWS) * features)
    for error, spread in zip(errors, spreads, strict=True):
        assert abs(error - errors[0]) < 4 * math.hypot(spread, spreads[0])
        assert spread < 0.1 * error


def test_attention_comes_closer_to_softmax_with_more_features() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, 64, HEAD_DIM, generator=generator) / 2 for _ in range(3))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    errors = [
        float((Favor(features=features).build(heads=4, head_dim=HEAD_DIM, generator=generator)(q, k, v) - exact).norm())
        for features in (16, 256, 4096)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_redraw_is_explicit_seeded_and_refused_in_eval() -> None:
    attend = Favor(features=8).build(heads=2, head_dim=4, generator=torch.Generator().manual_seed(0))
    first = attend.feature_map.omega.clone()
    q = torch.randn(1, 2, 5, 4)
    attend(q, q, q)
    assert_close(attend.feature_map.omega, first, rtol=0, atol=0)
    attend.redraw(torch.Generator().manual_seed(1))
    second = attend.feature_map.omega.clone()
    assert not torch.equal(second, first)
    other = Favor(features=8).build(heads=2, head_dim=4, generator=torch.Generator().manual_seed(5))
    other.redraw(torch.Generator().manual_seed(1))
    assert_close(other.feature_map.omega, second, rtol=0, atol=0)
    attend.eval()
    with pytest.raises(SubquadError, match="favor does not redraw in eval mode"):
        attend.redraw(torch.Generator().manual_seed(2))


def test_a_loud_key_does_not_silence_what_came_before_it() -> None:
    """The trap of a maximum over the whole sequence: in float32 every earlier key would underflow beside this one."""
    generator = torch.Generator().manual_seed(0)
    attend = Favor(features=64).build(heads=2, head_dim=16, generator=generator)
    q, k, v = (torch.randn(1, 2, 40, 16, generator=generator) for _ in range(3))
    quiet = attend.causal(q, k, v)[0]
    k[:, :, 39] *= 60
    loud = attend.causal(q, k, v)[0]
    assert_close(loud[:, :, :39], quiet[:, :, :39], rtol=0, atol=0)
    assert attend.weights(q, k, causal=True)[:, :, :39].sum(-1).allclose(torch.ones(1))


def test_rows_underflow_only_for_loud_input() -> None:
    """In float32: no row at five times standard normal, about one in a hundred at ten times, most at twenty times."""
    shares = {}
    for scale in (5, 10, 20):
        generator = torch.Generator().manual_seed(0)
        attend = Favor().build(heads=8, head_dim=64, generator=generator)
        q, k, v = (torch.randn(1, 8, 256, 64, generator=generator) for _ in range(3))
        rows = torch.cat([attend(scale * q, scale * k, v), attend.causal(scale * q, scale * k, v)[0]])
        shares[scale] = float((rows == 0).all(-1).float().mean())
    assert shares[5] == 0
    assert 0 < shares[10] < 0.03
    assert shares[20] > 0.5
