"""Calibrated FAVOR is an identity for softmax under which random features err less; learned FAVOR is trained from there."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import Favor, Hybrid, Random, SubquadError
from subquad.feature_maps import CalibratedMap
from subquad.ops.calibration import balance

HEADS, HEAD_DIM = 3, 8


def crooked(count: int = 300, *, off: float = 1.5) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys that are off centre, longer in some directions than in others, and not in the same ones."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    stretched = torch.logspace(-0.6, 0.6, HEAD_DIM, dtype=torch.float64)
    q = draw(2, HEADS, count, HEAD_DIM) * stretched * 0.8 + off * draw(1, HEADS, 1, HEAD_DIM)
    k = draw(2, HEADS, count, HEAD_DIM) / stretched * 0.8 + off * draw(1, HEADS, 1, HEAD_DIM)
    return q, k, draw(2, HEADS, count, HEAD_DIM)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    flat = x.transpose(0, 1).flatten(1, 2)
    return flat.mean(1), torch.stack([torch.cov(one.mT) for one in flat])


def calibrated(options: Any, q: Tensor, k: Tensor) -> Any:
    attend = options.build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1)).double()
    (q_mean, q_cov), (k_mean, k_cov) = statistics(q), statistics(k)
    attend.feature_map.calibrate(q_mean, k_mean, q_cov, k_cov)
    return attend


def test_both_sides_have_one_covariance() -> None:
    q, k, _ = crooked()
    (_, q_cov), (_, k_cov) = statistics(q), statistics(k)
    turn, back = balance(q_cov, k_cov)
    one, other = turn @ q_cov @ turn, back @ k_cov @ back
    assert_close(turn @ back, torch.eye(HEAD_DIM, dtype=torch.float64).expand_as(turn))
    assert float((one - other).norm() / one.norm()) < 0.05  # not 0: what hardly varies is not stretched without end
    before, after = (float(x.diagonal(dim1=1, dim2=2).sum()) for x in (q_cov + k_cov, one + other))
    assert after < 0.7 * before


def test_data_that_never_vary_can_be_calibrated_to() -> None:
    flat = torch.zeros(HEADS, HEAD_DIM, HEAD_DIM, dtype=torch.float64)
    for covariances in ((flat, flat), (flat, flat + torch.eye(HEAD_DIM))):
        assert all(part.isfinite().all() for part in balance(*covariances))


def test_nothing_changes_for_softmax() -> None:
    """y_q . y_k + t_q + t_k = q . k / sqrt d: what the features estimate is the same number."""
    q, k, _ = crooked(20)
    phi: CalibratedMap = calibrated(Favor(features=16, projections="calibrated"), q, k).feature_map
    turned = [side._turned(x) for side, x in ((phi.queries, q), (phi.keys, k))]
    (y_q, t_q), (y_k, t_k) = ((y / torch.tensor(2.0).log().reciprocal(), t * torch.tensor(2.0).log()) for y, t in turned)
    assert_close(y_q @ y_k.mT + t_q + t_k.mT, q @ k.mT / HEAD_DIM**0.5, rtol=1e-6, atol=1e-6)


def test_uncalibrated_it_is_favor() -> None:
    q, k, v = crooked(40, off=0.0)
    made = [
        Favor(features=16, projections=how)
        .build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1))
        .double()
        for how in ("fixed", "calibrated", "learned")
    ]
    for attend in made[1:]:
        assert_close(attend(q, k, v), made[0](q, k, v), rtol=1e-6, atol=1e-6)
        assert_close(attend.causal(q, k, v)[0], made[0].causal(q, k, v)[0], rtol=1e-6, atol=1e-6)


def error(attend: Any, q: Tensor, k: Tensor, v: Tensor) -> float:
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return float((attend(q, k, v).detach() - exact).norm() / exact.norm())


def test_calibrating_brings_attention_closer_to_softmax() -> None:
    q, k, v = crooked()
    options = Favor(features=256, projections="calibrated")
    plain = options.build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1)).double()
    assert error(calibrated(options, q, k), q, k, v) < 0.5 * error(plain, q, k, v)


def test_the_rest_of_a_hybrid_is_at_softmax_s_scale() -> None:
    """The query's exponent matters there: with a gain of one, the sum of near and far weights is softmax's."""
    q, k, v = (x[:, :, :90] for x in crooked())
    options = Hybrid(block=10, rest=Random(features=4000, projections="calibrated"), log_gain=0.0)
    attend = calibrated(options, q, k)
    exact = error(attend, q, k, v)
    attend.log_gain.data += 1.0
    assert exact < 0.1
    assert exact < 0.5 * error(attend, q, k, v)


def test_learned_directions_are_trained_from_there() -> None:
    q, k, v = (x[:, :, :64].float() for x in crooked())
    attend = calibrated(Favor(features=16, projections="learned"), q.double(), k.double()).float()
    names = dict(attend.named_parameters())
    assert set(names) == {"feature_map.omega", "feature_map.queries.bias", "feature_map.keys.bias"}
    assert names["feature_map.omega"].shape == (HEADS, HEAD_DIM, 16)
    assert names["feature_map.keys.bias"].count_nonzero() == 0
    before, optimizer = error(attend, q, k, v), torch.optim.Adam(attend.parameters(), 0.02)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    for _ in range(60):
        optimizer.zero_grad()
        (attend(q, k, v) - exact).square().mean().backward()
        optimizer.step()
    assert error(attend, q, k, v) < 0.7 * before


def test_a_copy_has_directions_of_its_own() -> None:
    q, k, v = crooked(30)
    attend = calibrated(Favor(features=16, projections="learned"), q, k)
    other = copy.deepcopy(attend)
    other.feature_map.omega.data.zero_()
    assert not torch.allclose(other(q, k, v), attend(q, k, v))
    assert other.feature_map.queries._omega is other.feature_map.omega


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SubquadError, match="learned projections are for the positive kernel, but the kernel is relu"):
        Favor(kernel="relu", projections="learned").build(heads=2, head_dim=4)
    learned: Any = Favor(features=8, projections="learned").build(heads=2, head_dim=4)
    with pytest.raises(SubquadError, match="favor does not redraw directions that are learned"):
        learned.redraw(torch.Generator())
    bad = torch.full((2, 4), torch.nan)
    with pytest.raises(SubquadError, match="must be finite"):
        learned.feature_map.calibrate(bad, bad, torch.eye(4).repeat(2, 1, 1), torch.eye(4).repeat(2, 1, 1))
    drawn = Favor(features=8, projections="calibrated").build(heads=2, head_dim=4)
    before = drawn.feature_map.omega.clone()
    drawn.redraw(torch.Generator().manual_seed(3))
    assert not torch.equal(drawn.feature_map.omega, before)
