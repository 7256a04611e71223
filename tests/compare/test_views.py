"""What rows say, where the truth is known."""

import numpy as np
import pytest

from subquad.compare.sentences import failure_remarks, layer_remarks, pays_from, sentence
from subquad.compare.views import Comparison, name_view
from tests.compare.rows import BYTES, SECONDS, failed, rows


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison([*rows(), failed("favor", "bidirectional", "training", 8192)])


def test_views_and_mechanisms_are_found(comparison: Comparison) -> None:
    assert [name_view(view) for view in comparison.views] == [
        "attention, forward and backward, bidirectional",
        "attention, forward and backward, causal",
        "one decoding step after so many tokens",
    ]
    assert comparison.mechanisms == ["softmax", "linear", "favor"]


def test_the_crossover_is_where_it_was_put(comparison: Comparison) -> None:
    found = comparison.crossover(comparison.views[0], "linear")
    assert found is not None
    assert found.middle == pytest.approx(300, rel=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 300 < found.high
    other = comparison.crossover(comparison.views[0], "favor", "linear")
    assert other is not None
    assert other.middle is None


def test_growth_is_measured(comparison: Comparison) -> None:
    for name, wanted in (("softmax", 2.0), ("linear", 1.0)):
        found = comparison.growth(comparison.views[0], name)
        assert found is not None
        assert found.exponent is not None
        assert found.exponent.value == pytest.approx(wanted, abs=0.1)


def test_memory_pays_from_the_first_length_on(comparison: Comparison) -> None:
    """40 L^2 against 312 L: from 8 on; against a million: from 158 on, so from the length after."""
    assert comparison.memory_crossover(comparison.views[0], "linear") == 128
    assert comparison.memory_crossover(comparison.views[0], "favor") == 256


def test_sentences(comparison: Comparison) -> None:
    view = comparison.views[0]
    linear, favor = sentence(comparison, view, "linear"), sentence(comparison, view, "favor")
    assert linear.startswith("linear pays from ")
    assert "at 4096 it is 13." in linear
    assert "1/524 of the memory (1.28 MB against 671 MB)" in linear
    assert favor.startswith("favor does not pay within the measured range, up to 4096 tokens (by extrapolation")
    assert favor.endswith("; at 8192 it ran out of memory.")


def test_a_crossover_below_the_first_length_is_not_made_up() -> None:
    costs = {"softmax": lambda length: 1e-6 * length**2, "linear": lambda length: 1e-6 * length}
    comparison = Comparison(rows(costs, {"softmax": lambda length: 1.0, "linear": lambda length: 1.0}))
    assert pays_from(comparison.crossover(comparison.views[0], "linear")) == "128 or fewer"
    assert "pays at every measured length, 128 tokens and more" in sentence(comparison, comparison.views[0], "linear")


def test_what_failed_is_said_once_for_each_mechanism() -> None:
    """Long sequences need much memory, which is said of attentions of others, and where nothing else was measured."""
    views = (("bidirectional", "forward"), ("bidirectional", "training"), ("causal", "step"))
    raised = [failed("favor", *view, 512 * (at + 1), "error") for at, view in enumerate(views)]
    usual = failed("linear", "causal", "training", 8192, "timeout")
    hung = failed("pkg.mod:Mine", "causal", "training", 256, "timeout")
    alone = failed("window", "causal", "step", 128)
    assert list(failure_remarks(Comparison([*rows(), *raised, usual, hung, alone]))) == [
        "favor failed at 512 tokens (because): bidirectional forward, bidirectional training and 1 more.",
        "pkg.mod:Mine took too long at 256 tokens: causal training.",
        "window ran out of memory at 128 tokens: step.",
    ]


def test_what_figures_of_layers_are_is_said() -> None:
    costs = {"softmax": SECONDS["softmax"], "linear*3,softmax": SECONDS["linear"]}
    (said,) = layer_remarks(Comparison(rows(costs, dict.fromkeys(costs, BYTES["linear"]))))
    assert said.startswith("linear*3,softmax: times are the mean of its layers, which run one after the other; memory is ")
    assert list(layer_remarks(Comparison(rows()))) == []


def test_settings_are_told_apart() -> None:
    both = [*rows(), *({**row, "threads": 2} for row in rows())]
    comparison = Comparison(both)
    names = {name_view(view, comparison.views) for view in comparison.views}
    assert len(comparison.views) == len(names) == 6
    assert "attention, forward and backward, causal, threads 2" in names


def test_a_crossover_that_may_lie_below_the_first_length() -> None:
    """It pays at the first length, but a repeated run may find that it does not yet."""
    costs = {"softmax": lambda length: 1e-6 * length**2, "linear": lambda length: 1.05e-4 * length}
    flat = {"softmax": lambda length: 1.0, "linear": lambda length: 1.0}
    comparison = Comparison(rows(costs, flat, noise=0.1))
    said = pays_from(comparison.crossover(comparison.views[0], "linear"))
    assert said.startswith("128 or fewer (to ")
    assert "pays from 128 tokens on, or from fewer (to " in sentence(comparison, comparison.views[0], "linear")


def test_costs_of_two_mechanisms_have_noise_of_their_own(comparison: Comparison) -> None:
    first, second = (comparison.costs(comparison.views[0], name) for name in ("softmax", "linear"))
    assert first is not None
    assert second is not None
    noise = [np.log(each.draws / each.middle)[:, 0] for each in (first, second)]
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.2
