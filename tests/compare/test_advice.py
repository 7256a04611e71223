"""Advice from known costs."""

import pytest

from subquad.compare.advice import advise
from subquad.compare.views import Comparison
from subquad.errors import SubquadError
from tests.compare.rows import TRAITS, failed, rows


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison([*rows(), failed("favor", "causal", "training", 2048)])


def test_short_sequences_stay_with_softmax(comparison: Comparison) -> None:
    found = advise(comparison, TRAITS, length=128, form="causal", what="training")
    assert found.chosen.mechanism == "softmax"
    assert "Nothing that was measured is faster at this length." in found.sentences


def test_a_small_gain_is_not_worth_an_approximation(comparison: Comparison) -> None:
    """At 330 tokens linear is 1.1 times as fast."""
    assert advise(comparison, TRAITS, length=330, form="causal", what="training").chosen.mechanism == "softmax"
    asked = advise(comparison, TRAITS, length=330, form="causal", what="training", wish="approximate")
    assert asked.chosen.mechanism == "linear"


def test_long_sequences_get_linear_and_its_price(comparison: Comparison) -> None:
    found = advise(comparison, TRAITS, length=4096, form="causal", what="training")
    assert found.chosen.mechanism == "linear"
    assert found.chosen.basis == "measured"
    assert found.sentences[-1] == "What is given up: softmax's weights."
    assert "times as fast as PyTorch's fused softmax" in found.sentences[1]


def test_exact_if_asked(comparison: Comparison) -> None:
    found = advise(comparison, TRAITS, length=4096, form="causal", what="training", wish="exact")
    assert found.chosen.mechanism == "softmax"


def test_memory_is_kept_to(comparison: Comparison) -> None:
    """Softmax needs 671 MB at 4096, linear 1.3 MB."""
    tight = advise(comparison, TRAITS, length=4096, form="bidirectional", what="training", memory_bytes=100e6)
    assert tight.chosen.mechanism == "linear"
    softmax = next(option for option in tight.options if option.mechanism == "softmax")
    assert softmax.obstacle == "needs 671 MB"
    with pytest.raises(SubquadError, match=r"no exact attention that was measured fits 4096 tokens \(softmax: needs 671 MB"):
        advise(comparison, TRAITS, length=4096, form="causal", what="training", memory_bytes=1e6, wish="exact")


def test_what_failed_is_not_advised(comparison: Comparison) -> None:
    found = advise(comparison, TRAITS, length=4096, form="causal", what="training")
    favor = next(option for option in found.options if option.mechanism == "favor")
    assert favor.obstacle == "out of memory at 2048 tokens"


def test_an_extrapolation_is_called_one(comparison: Comparison) -> None:
    found = advise(comparison, TRAITS, length=20_000, form="causal", what="training")
    assert found.chosen.basis == "extrapolated"
    assert found.chosen.seconds == pytest.approx(3e-4 * 20_000, rel=0.1)
    assert "128..20000" in found.sentences[-1]


def test_what_was_not_measured_is_said(comparison: Comparison) -> None:
    with pytest.raises(SubquadError, match="the run has no rows for causal layer"):
        advise(comparison, TRAITS, length=512, form="causal", what="layer")


def test_a_length_below_all_is_no_interpolation() -> None:
    comparison = Comparison(rows(lengths=(1024, 2048, 4096)))
    found = advise(comparison, TRAITS, length=64, form="causal", what="training")
    assert found.chosen.basis == "of 1024 tokens, the shortest that was measured"
    assert "The length is below what was measured: `subquad compare --lengths 64` measures it." in found.sentences


def test_memory_that_is_not_known_does_not_fit() -> None:
    timed = Comparison([row for row in rows() if row["metric"] == "seconds"])
    with pytest.raises(SubquadError, match="its memory was not measured"):
        advise(timed, TRAITS, length=512, memory_bytes=1.0, form="causal", what="training")


def test_what_is_faster_but_unfit_is_said() -> None:
    unfit = {"linear": "worse in the race", "favor": "worse in the race"}
    found = advise(Comparison(rows()), TRAITS, length=4096, form="causal", what="training", unfit=unfit)
    assert "Nothing that was measured is faster at this length." not in found.sentences
    assert any("cannot be used: worse in the race" in sentence for sentence in found.sentences)
