"""The order of measuring, its budget, and going on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from subquad.attention import Layers, Linear, Linformer, Softmax
from subquad.compare import plan as planning
from subquad.compare.cells import Cell, Setting
from subquad.compare.plan import VISITS, Group, Plan, Progress, measure
from subquad.compare.views import Comparison
from subquad.measure.workers import OUT_OF_MEMORY, Limits, Outcome
from subquad.results import Row, Run
from subquad.types import AttentionOptions

SETTING = Setting(heads=2, head_dim=8)
OPTIONS: dict[str, AttentionOptions] = {"softmax": Softmax(), "linear": Linear()}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", "compare", {})


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.001, failing: tuple[str, int] | None = None) -> list[Group]:
    """Visits that cost nothing; gives the list that the visited groups go to."""
    visited: list[Group] = []

    def visit(candidates: dict[str, object], limits: Limits, running: object = None) -> dict[str, Outcome]:
        return {name: _outcome(candidate, name) for name, candidate in candidates.items()}

    def _outcome(candidate: object, name: str) -> Outcome:
        cell: Cell = candidate.prepare.args[0]  # type: ignore[attr-defined]
        group = Group(cell.setting, cell.form, cell.what, cell.length)
        if not visited or visited[-1] != group or name == "softmax":
            visited.append(group)
        if failing and name == failing[0] and cell.length >= failing[1]:
            return Outcome(failure=OUT_OF_MEMORY, message="no")
        cost = cell.length / 100 if name == "linear" else (cell.length / 100) ** 2
        return Outcome([seconds * cost] * 3, 1000)

    monkeypatch.setattr(planning, "visit", visit)
    return visited


def test_every_group_is_visited_as_often_as_meant(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = pretend(monkeypatch)
    plan = Plan(OPTIONS, [64, 128, 256], settings=[SETTING])
    assert measure(plan, run, budget=1e6, limits=Limits()) == []
    assert sorted(set(visited)) == sorted(plan.groups)
    assert len(visited) == VISITS * len(plan.groups)
    assert len(plan.groups) == 3 * (3 + 3 + 1)  # steps are causal only
    first = replace(plan, first=plan.lengths[1:2])
    assert {group.length for group in first.groups[: len(first.groups) // 3]} == {plan.lengths[1]}
    assert sorted(first.groups) == sorted(plan.groups)


def test_every_other_length_comes_first_and_crossovers_come_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = pretend(monkeypatch)
    plan = Plan(OPTIONS, [16, 32, 64, 128, 256], forms=["causal"], whats=["forward"], settings=[SETTING])
    measure(plan, run, budget=1e6, limits=Limits())
    lengths = [group.length for group in visited]
    assert lengths[:5] == [16, 64, 256, 32, 128]
    assert set(lengths[5:7]) == {64, 128}  # linear pays from 100 on


def test_the_budget_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is expected to take longer than what is left is not started, and said."""
    pretend(monkeypatch, seconds=100.0)
    plan = Plan(OPTIONS, [64, 128, 256], forms=["causal"], whats=["forward"], settings=[SETTING])
    left = measure(plan, run, budget=5.0, limits=Limits())
    assert [group.length for group in left] == [256, 128]


def test_longer_lengths_are_not_tried_after_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, failing=("linear", 128))
    plan = Plan(OPTIONS, [64, 128, 256, 512, 1024], forms=["causal"], whats=["forward"], settings=[SETTING])
    assert measure(plan, run, budget=1e6, limits=Limits()) == []
    rows = [row for row in run.rows() if row["metric"] == "seconds" and row["mechanism"] == "linear"]
    assert {row["length"] for row in rows if row["value"] is not None} == {64}
    assert [row["length"] for row in rows if row["value"] is None] == [256, 128]
    softmax = {row["length"] for row in run.rows() if row["metric"] == "seconds" and row["mechanism"] == "softmax"}
    assert softmax == {64, 128, 256, 512, 1024}


def test_only_what_is_missing_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = pretend(monkeypatch)
    shorter = Plan(OPTIONS, [64, 128], forms=["causal"], whats=["forward"], settings=[SETTING])
    measure(shorter, run, budget=1e6, limits=Limits())
    before = len(visited)
    longer = Plan(OPTIONS, [64, 128, 256], forms=["causal"], whats=["forward"], settings=[SETTING])
    measure(longer, run, budget=1e6, limits=Limits())
    assert {group.length for group in visited[before:]} == {256}
    measure(longer, run, budget=1e6, limits=Limits())
    assert len(visited) == before + VISITS


def test_a_variant_starts_where_it_is_meant_to() -> None:
    plan = Plan(OPTIONS | {"linformer": Linformer()}, [64, 128], forms=["bidirectional"], shortest={"linformer": 128})
    cells = {group.length: [cell.mechanism for cell in plan.cells(group)] for group in plan.groups}
    assert cells == {64: ["softmax", "linear"], 128: ["softmax", "linear", "linformer"]}
    causal = Plan(OPTIONS | {"linformer": Linformer()}, [64], forms=["causal"])
    assert {cell.mechanism for group in causal.groups for cell in causal.cells(group)} == {"softmax", "linear"}


class Broken(nn.Module):
    """Hangs, fills the memory or raises, by its kind, and is well for a tiny input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        if q.shape[2] > 100:
            if self.kind == "hangs":
                while True:
                    torch.ones(10).sum()
            if self.kind == "fills":
                torch.ones(2**30, dtype=torch.uint8)
            if self.kind == "raises":
                raise RuntimeError("on purpose")
        return v


class BrokenOptions(Softmax):
    """Options that build something broken."""

    def __init__(self, kind: str) -> None:
        object.__setattr__(self, "broken", kind)
        super().__init__()

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> Broken:  # type: ignore[override]
        return Broken(self.broken)  # type: ignore[attr-defined]


def test_a_run_with_broken_cells_ends_normally(run: Run) -> None:
    """For real: one cell hangs, one allocates past the limit, one raises; the rest is measured."""
    options = OPTIONS | {kind: BrokenOptions(kind) for kind in ("hangs", "fills", "raises")}
    plan = Plan(options, [128, 256], forms=["bidirectional"], whats=["forward"], settings=[SETTING])
    finished: list[Row] = []
    limits = Limits(memory_bytes=300 * 2**20, run_seconds=2.0)
    progress = Progress(finished=lambda group, rows: finished.extend(rows))
    assert measure(plan, run, budget=30, limits=limits, progress=progress) == []
    comparison = Comparison(run.rows())
    (view,) = comparison.views
    failures = {name: found for (_, name), found in comparison.failures.items()}
    assert {name: found.failure for name, found in failures.items()} == {
        "hangs": "timeout",
        "fills": "out of memory",
        "raises": "error",
    }
    assert {found.length for found in failures.values()} == {128}  # and 256 was not tried
    assert comparison.lengths(view, "linear") == comparison.lengths(view, "softmax") == [128, 256]
    assert [row for row in run.rows() if row["metric"] in ("seconds", "peak_memory")] == finished


def test_rows_of_layers_are_their_mean_and_the_budget_counts_them_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    by_layer = Layers((Linear(), Linear(), Linear(), Softmax()))
    plan = Plan({**OPTIONS, "linear*3,softmax": by_layer}, [100], forms=["causal"], whats=["forward"], settings=[SETTING])
    assert measure(plan, run, budget=1e6, limits=Limits()) == []
    seconds = {row["mechanism"]: row["value"] for row in run.rows() if row["metric"] == "seconds"}
    assert seconds == {"softmax": 0.001, "linear": 0.001, "linear*3,softmax": 0.00025}
    slow = {"softmax": 10.0, "linear": 10.0, "linear*3,softmax": 10.0}
    rows = [row | {"value": slow[row["mechanism"]]} for row in run.rows() if row["metric"] == "seconds"]
    expected = planning._State(plan, Comparison(rows)).expected_seconds(plan.groups[0])
    assert expected == pytest.approx(10 + 10 + 4 * 10, rel=0.05)
