"""The variance argument for dividing dot products by sqrt d."""

import pytest
import torch

from subquad.measure.scores import examine_scores, random_scores


@pytest.mark.parametrize("head_dim", [4, 64, 256])
def test_dot_products_have_variance_d_and_scaled_ones_1(head_dim: int) -> None:
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    plain, scaled = (
        random_scores(head_dim, 512, generator, scaled=scaled)
        for scaled, generator in zip((False, True), generators, strict=True)
    )
    assert plain.variance == pytest.approx(head_dim, rel=0.15)
    assert scaled.variance == pytest.approx(plain.variance / head_dim)


def test_unscaled_weights_saturate_and_scaled_ones_do_not() -> None:
    plain, scaled = (random_scores(256, 256, torch.Generator().manual_seed(0), scaled=scaled) for scaled in (False, True))
    assert plain.largest_weight > 0.8 > 0.1 > scaled.largest_weight
    assert plain.slope < 0.3 < 0.9 < scaled.slope


def test_the_slope_is_the_trace_of_the_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    scores = q @ k.mT / 3**0.5
    traces = [torch.trace(torch.autograd.functional.jacobian(lambda row: row.softmax(-1), row)) for row in scores]
    assert examine_scores(q, k, scaled=True).slope == pytest.approx(float(torch.stack(traces).mean()))


def test_equal_scores_have_equal_weights() -> None:
    figures = examine_scores(torch.zeros(4, 2), torch.zeros(8, 2), scaled=False)
    assert figures == pytest.approx((0.0, 1 / 8, 7 / 8))
