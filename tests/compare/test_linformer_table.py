"""Linformer's grid."""

import pytest

from subquad.compare.linformer_table import PUBLISHED, SLOTS, entry, name_of, slots
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
