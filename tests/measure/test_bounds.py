"""How many features or slots an error asks for."""

import math

import pytest

from subquad.measure.bounds import (
    features_for,
    johnson_lindenstrauss_dimensions,
    linformer_slots,
    performer_features,
)

ERRORS = {16: 0.4, 64: 0.2, 256: 0.1, 1024: 0.05}  # falls as the root of the number of features


def test_the_number_of_features_is_interpolated_where_the_error_is_met() -> None:
    assert features_for(0.1, ERRORS) == pytest.approx(256)
    assert features_for(0.2 / math.sqrt(2), ERRORS) == pytest.approx(128)
    assert features_for(0.5, ERRORS) == 16
    assert features_for(0.04, ERRORS) is None


def test_an_error_that_rises_again_counts_from_where_it_stays_below() -> None:
    assert features_for(0.3, {16: 0.2, 64: 0.6, 256: 0.1}) > 64  # type: ignore[operator]


def test_performer_s_theorem_as_it_is_printed() -> None:
    d, radius, error = 16, 2.0, 0.1
    delta = error / math.exp((radius * d**-0.25) ** 2 / 2) ** 2
    printed = d / delta**2 * math.log(4 * d**0.75 * radius / delta)
    assert performer_features(error, radius=radius, head_dim=d) == pytest.approx(printed)
    assert performer_features(error, radius=100.0, head_dim=d) == math.inf


def test_linformer_s_slots_grow_with_the_logarithm_of_the_length_up_to_a_limit() -> None:
    assert linformer_slots(0.1, length=512, head_dim=64) == pytest.approx(5 * math.log(512) / 0.01)
    assert linformer_slots(0.1, length=10**9, head_dim=2) == pytest.approx(18 * math.log(2) / 0.01)
    gain = linformer_slots(0.1, length=2**20, head_dim=64) / linformer_slots(0.1, length=2**10, head_dim=64)
    assert gain == pytest.approx(2)


def test_johnson_lindenstrauss() -> None:
    """A million points within 10%, as scikit-learn's documentation has it."""
    assert int(johnson_lindenstrauss_dimensions(0.1, points=1_000_000)) == 11841
