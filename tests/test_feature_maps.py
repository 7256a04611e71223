"""What the maps approximate, and their gradients written by hand."""

import math
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from subquad.feature_maps import CalibratedMap, Elu, FeatureMap, Kernel, Learned, Random, Relu, Taylor
from subquad.ops.scratch import Scratch

KERNELS: list[Kernel] = ["positive", "hyperbolic", "trigonometric", "relu"]
BY_HAND: list[Any] = [Elu(), Relu(), *(Random(features=16, kernel=kernel) for kernel in KERNELS)]
BY_HAND += [Learned(), Learned(features=14), *(Random(features=16, projections=how) for how in ("calibrated", "learned"))]


def build(options: Any) -> FeatureMap:
    """For 3 heads of 5 numbers, with nothing left where it starts."""
    generator = torch.Generator().manual_seed(0)
    phi: FeatureMap = options.build(heads=3, head_dim=5, generator=generator).double()
    if isinstance(phi, CalibratedMap):
        factors = torch.randn(2, 3, 5, 5, generator=generator)
        phi.calibrate(*torch.randn(2, 3, 5, generator=generator), *(factors @ factors.mT))
    for weight in phi.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, generator=generator)
    return phi


def test_elu_is_elu_plus_one() -> None:
    x = torch.linspace(-20, 20, 400, dtype=torch.float64).view(1, 1, -1, 4)
    assert_close(Elu().build(heads=1, head_dim=4)(x).values, F.elu(x) + 1, rtol=1e-12, atol=1e-12)


def test_taylor_s_kernel_is_the_polynomial() -> None:
    q, k = torch.randn(2, 1, 3, 9, 5, dtype=torch.float64)
    phi = Taylor().build(heads=3, head_dim=5)
    dots = q @ k.mT / math.sqrt(5)
    assert_close(phi(q).values @ phi(k).values.mT, 1 + dots + dots**2 / 2)


def test_learned_starts_from_the_input_itself() -> None:
    x = torch.randn(1, 3, 9, 5, dtype=torch.float64)
    for side in Learned().build(heads=3, head_dim=5).double().sides():
        y = x / 5**0.25
        assert_close(side(x).values, torch.cat([y.softmax(-1), (-y).softmax(-1)], dim=-1))


@pytest.mark.parametrize("options", BY_HAND, ids=str)
def test_gradients_by_hand_are_autograd_s(options: Any) -> None:
    phi = build(options)
    x = torch.randn(2, 3, 17, 5, dtype=torch.float64)
    for side in phi.sides():
        features = side(x)
        gradient = torch.randn_like(features.values)
        by_hand = side.pullback(x, features, gradient.clone())
        assert_close(by_hand, FeatureMap.pullback(cast(FeatureMap, side), x, features, gradient))
        assert len(by_hand) == 1 + len(side.weights())


def test_weights_that_are_frozen_get_no_gradients() -> None:
    for options in (Learned(), Random(features=16, projections="learned")):
        phi = build(options).requires_grad_(False)
        side, x = phi.sides()[0], torch.randn(2, 3, 17, 5, dtype=torch.float64)
        features = side(x)
        assert len(side.pullback(x, features, torch.randn_like(features.values))) == 1


@pytest.mark.parametrize("options", BY_HAND, ids=str)
def test_features_in_scratch_memory_are_the_same(options: Any) -> None:
    x = torch.randn(2, 3, 17, 5, dtype=torch.float64)
    for side in build(options).sides():
        with torch.no_grad():
            plain, kept = side(x), side(x, Scratch(torch.float64))
        assert_close(kept.values, plain.values)
        assert (kept.exponent is None) == (plain.exponent is None) == (not side.has_exponent)
        if kept.exponent is not None:
            assert_close(kept.exponent, plain.exponent)


def test_feature_count_is_the_number_of_features() -> None:
    x = torch.randn(1, 2, 3, 6)
    for options in (*BY_HAND, Taylor(), Learned(), Learned(features=20)):
        for side in options.build(heads=2, head_dim=6).sides():
            assert side(x).values.shape[-1] == side.feature_count(6)
