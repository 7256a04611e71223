"""Verdicts on Linformer's table of speed-ups."""

from subquad.compare.linformer_table import name_of
from subquad.compare.views import Comparison
from subquad.experiments.linformer.speed import judge_table
from tests.compare.rows import Cost, rows
from tests.compare.test_linformer_table import grid


def test_verdicts_are_on_time_and_memory() -> None:
    """At 512 tokens 12 and 6 times as fast as the matrix, 4 and 2 as the fused form, in 4 and 2 times less memory."""
    found = {verdict.claim: verdict for verdict in judge_table(grid())}
    assert {verdict.held for claim, verdict in found.items() if claim.startswith("n=512")} == {True}
    published = found["n=512: a layer is as many times as fast as with the materialised matrix as was published"]
    assert published.figures.startswith("k=128: 12.0 (")
    assert "published 1.5; k=256: 6.0" in published.figures
    assert not any("materialised" in claim for claim in found if claim.startswith("n=1024"))  # it did not run there
    assert found["n=1024: a layer is faster than with fused softmax, with any number of slots"].held is True


def test_a_layer_that_is_slower_with_many_slots_is_not_faster() -> None:
    costs: dict[str, Cost] = {"softmax": lambda n: 1e-6 * n**2, name_of(256): lambda n: 2e-6 * n**2}
    costs[name_of(128)] = lambda n: 5e-7 * n**2
    measured = rows(costs, costs, views=[("bidirectional", "layer")], lengths=(512, 1024), noise=0.0)
    assert [verdict.held for verdict in judge_table(Comparison(measured))] == [False, False]  # of each length
