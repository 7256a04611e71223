"""How many features reach an error."""

import pytest

from subquad.compare.accuracy import (
    InputsName,
    Variant,
    accuracy,
    output_errors,
    reach,
    usual_features,
    usual_variant,
)
from subquad.results import Row
from subquad.statistics import Interval

POSITIVE, RELU = Variant("positive", "orthogonal"), Variant("relu", "orthogonal")
HALF = InputsName("random", 0.5)


def row(value: float | None, features: int, layer: int = 1, size: float = 0.5, variant: Variant = POSITIVE) -> Row:
    ends = {} if value is None else {"low": value / 2, "high": value * 2}
    about = {"inputs": "random", "size": size, "kernel": variant.kernel, "projection": variant.projection}
    return {"metric": "output error", "value": value, **ends, "features": features, "layer": layer, **about}


def errors(by_features: dict[int, float]) -> dict[int, Interval]:
    return {features: Interval(value, value / 2, value * 2) for features, value in by_features.items()}


def test_layers_are_averaged_and_what_is_not_finite_is_left_out() -> None:
    found = output_errors([row(0.1, 16), row(0.4, 16, layer=2), row(0.1, 64), row(None, 64, layer=2)])
    assert found == {HALF: {POSITIVE: {16: pytest.approx(Interval(0.2, 0.1, 0.4))}}}


def test_a_model_s_inputs_come_first_and_then_sizes_near_1() -> None:
    rows = [row(0.1, 16, size=size) for size in (0.25, 4.0, 1.0, 0.5)]
    rows.append(rows[0] | {"inputs": "model", "size": 1.0})
    assert list(output_errors(rows)) == [
        InputsName("model", 1.0),
        *(InputsName("random", size) for size in (1.0, 0.5, 0.25, 4.0)),
    ]


def test_the_variant_with_the_fewest_features_is_found() -> None:
    found = reach(0.1, {POSITIVE: errors({16: 0.4, 256: 0.1}), Variant("hyperbolic", "givens"): errors({16: 0.2, 64: 0.05})})
    assert found.variant == Variant("hyperbolic", "givens")
    assert (found.features, found.measured_features) == (32, 64)
    assert found.sentence(0.1, HALF) == (
        "FAVOR+ reaches an error of 0.1 on random queries and keys of size 0.5 with 32 hyperbolic features along givens "
        "directions: measured 0.05 (0.025 to 0.1) with 64."
    )


def test_an_error_that_is_not_reached_is_said_with_the_smallest_one() -> None:
    found = reach(
        0.01, {POSITIVE: errors({16: 0.4, 256: 0.1}), Variant("trigonometric", "givens"): errors({16: 0.2, 64: 0.3})}
    )
    assert found.features is None
    assert found.sentence(0.01, HALF).endswith("orthogonal directions: measured 0.1 (0.05 to 0.2) with 256, the most.")
    assert found.brief == "more than 256 features"


def test_what_does_not_estimate_softmax_is_not_chosen() -> None:
    assert reach(0.1, {POSITIVE: errors({16: 0.4}), RELU: errors({16: 0.05})}).variant == POSITIVE
    assert reach(0.1, {RELU: errors({16: 0.05})}).variant == RELU


def test_the_first_inputs_decide_and_the_others_are_named() -> None:
    found = accuracy(0.1, [row(0.2, 16, size=1.0), row(0.05, 16, size=0.25)], 256)
    assert found is not None
    assert found.inputs == InputsName("random", 1.0)
    assert found.sentences()[1] == "Elsewhere: random queries and keys of size 0.25: 16 features."
    assert accuracy(0.1, [], 256) is None


def test_what_is_compared_with() -> None:
    assert usual_variant({RELU: {}, POSITIVE: {}}) == POSITIVE
    assert usual_variant({RELU: {}}) == RELU
    assert usual_features(errors({64: 0.1, 512: 0.1})) == 512
