"""Candidates of a race of conversions: which layers, in which order, and what they cost."""

import pytest

from subquad import Hybrid, Softmax
from subquad.choose.candidates import candidate_costs, rounds_of
from subquad.results import Row


def test_layers_of_low_rank_are_converted_first_and_the_cheapest_candidates_tried_first() -> None:
    rounds = rounds_of({"hybrid": Hybrid(block=4)}, [5.0, 1.0, 9.0, 3.0])
    assert [[each.converted for each in candidates] for candidates in rounds] == [[(0, 1, 2, 3)], [(1, 3)], [(1,)]]
    half = rounds[1][0]
    assert half.name == "hybrid in 2 of 4 layers"
    assert half.exact == (0, 2)
    assert [each.kind for each in half.by_layer.for_layers(4)] == ["softmax", "hybrid", "softmax", "hybrid"]
    assert half.gives_up.endswith("softmax stays in layers 0, 2, counted from 0")
    assert "softmax stays" not in rounds[0][0].gives_up


def test_a_model_of_one_layer_has_one_candidate_for_each_attention() -> None:
    rounds = rounds_of({"hybrid": Hybrid(), "softmax too": Softmax()}, [2.0])
    assert [len(candidates) for candidates in rounds] == [2]


def test_costs_are_in_proportion_to_the_layers() -> None:
    def cost(mechanism: str, what: str, value: float) -> Row:
        about = {"metric": "cost", "what": what, "form": "bidirectional", "length": 64}
        return {**about, "mechanism": mechanism, "value": value}

    rows = [cost("softmax", "layer", 8.0), cost("softmax", "memory", 100.0)]
    rows += [cost("hybrid", "layer", 4.0), cost("hybrid", "memory", 10.0)]
    whole, half, quarter = (some[0] for some in rounds_of({"hybrid": Hybrid()}, [1.0, 2.0, 3.0, 4.0]))
    composed = {(row["mechanism"], row["what"]): row["value"] for row in candidate_costs(rows, [whole, half, quarter])}
    assert composed[whole.name, "layer"] == 4.0
    assert composed[half.name, "layer"] == pytest.approx(6.0)
    assert composed[quarter.name, "layer"] == pytest.approx(7.0)
    assert (composed[whole.name, "memory"], composed[half.name, "memory"]) == (10.0, 100.0)
