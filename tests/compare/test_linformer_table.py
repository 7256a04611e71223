"""Linformer's grid."""

import pytest

from subquad.compare.linformer_table import PUBLISHED, SLOTS, entry, judge, name_of, slots
from subquad.compare.views import Comparison
from subquad.report.tables import linformer_grids
from tests.compare.rows import Cost, failed, rows


def grid() -> Comparison:
    """Softmax takes L^2, its materialised form three times that, Linformer k L; memory likewise."""
    costs: dict[str, Cost] = {"softmax": lambda n: 1e-6 * n**2, "materialised": lambda n: 3e-6 * n**2}
    peaks: dict[str, Cost] = {"softmax": lambda n: 4.0 * n, "materialised": lambda n: 4.0 * n**2}
    for k in SLOTS[:2]:
        costs[name_of(k)] = lambda n, k=k: 1e-6 * k * n  # type: ignore[misc]
        peaks[name_of(k)] = lambda n, k=k: 4.0 * k * n  # type: ignore[misc]
    measured = rows(costs, peaks, views=[("bidirectional", "layer")], lengths=(512, 1024), noise=0.0)
    gone = [row for row in measured if (row["mechanism"], row["length"]) != ("materialised", 1024)]
    return Comparison([*gone, failed("materialised", "bidirectional", "layer", 1024)])


def test_entries_stand_beside_the_published() -> None:
    comparison = grid()
    assert slots(comparison) == [128, 256]
    found = entry(comparison, comparison.views[0], 512, 128)
    assert found.over_fused == pytest.approx(4.0)
    assert found.over_materialised == pytest.approx(12.0)
    assert found.memory_saved == pytest.approx(4.0)
    assert found.published == PUBLISHED[512][128] == (1.5, 1.7)
    beyond = entry(comparison, comparison.views[0], 1024, 256)
    assert (beyond.over_materialised, beyond.memory_saved) == (None, None)


def test_the_table() -> None:
    tables = list(linformer_grids(grid()))
    assert {tuple(table.columns) for table in tables} == {("n", "k=128", "k=256")}
    assert [[[cell.text for cell in row] for row in table.rows] for table in tables] == [
        [["512", "4.00", "2.00"], ["1024", "8.00", "4.00"]],
        [["512", "12.0 | 4.00", "6.00 | 2.00"], ["1024", "-", "-"]],
        [["512", "1.5 | 1.7", "1.3 | 1.5"], ["1024", "1.7 | 3", "1.6 | 2.9"]],
    ]
    assert list(linformer_grids(Comparison(rows()))) == []
    nothing = [failed(name, "bidirectional", "layer", 512) for name in ("softmax", name_of(128))]
    assert list(linformer_grids(Comparison(nothing))) == []


def test_verdicts_are_on_time_and_memory() -> None:
    """At 512 tokens 12 and 6 times as fast as the matrix, 4 and 2 as the fused form, in 4 and 2 times less memory."""
    found = {verdict.claim: verdict for verdict in judge(grid())}
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
    assert [verdict.held for verdict in judge(Comparison(measured))] == [False, False]  # of each length
