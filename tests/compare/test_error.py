"""Cells of `subquad error`."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from subquad import Favor, SubquadError
from subquad.attention.looking import LayerOutputs
from subquad.compare import error
from subquad.compare.error import ANGLES, ErrorGrid, Inputs, Sample, check_memory, measure, plan, random_inputs
from subquad.compare.error_cell import SCORE_DIMS, Cell
from subquad.measure.error import relative_error
from subquad.results import Row, Run

TINY = ErrorGrid(features=(4, 64), kernels=("positive",), projections=("independent",), length=6, head_dim=4, draws=2)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error, "PAIR_DRAWS", 20)


def layered(noise: float = 0.0) -> list[LayerOutputs]:
    """Two layers for one sequence, moved by noise."""
    outputs = [torch.ones(1, 3, 2) + noise for _ in range(2)]
    return [LayerOutputs(outputs, [2 * output for output in outputs])]


def swap_layers(favor: Favor | None, seed: int) -> list[LayerOutputs]:
    return layered(0.0 if favor is None else 1 / favor.features)


def rows_of(grid: ErrorGrid, inputs: list[Inputs], metric: str) -> list[Row]:
    return [row for cell in plan(grid, inputs) if cell.about["metric"] == metric for row in cell.measure()]


def test_a_cell_gives_as_many_rows_as_it_says_and_each_has_what_identifies_it() -> None:
    for cell in plan(TINY, [random_inputs(0.5, TINY)], swap_layers):
        rows = cell.measure()
        assert len(rows) == cell.rows
        assert all(row.items() >= cell.about.items() for row in rows)


def test_errors_fall_with_features_and_lie_on_the_formula() -> None:
    grid = ErrorGrid((16, 1024), ("positive", "hyperbolic", "trigonometric"), ("independent",), length=8, head_dim=8)
    inputs = [random_inputs(0.3, grid)]
    outputs = rows_of(grid, inputs, "output error")
    for few, many in zip(outputs[::2], outputs[1::2], strict=True):
        assert few["value"] > 3 * many["value"] > 0
        assert few["low"] < few["value"] < few["high"]
    for row in rows_of(grid, inputs, "kernel error"):
        assert row["value"] == pytest.approx(row["formula"], rel=0.5)


def test_formulas_stand_where_there_are_some() -> None:
    grid = ErrorGrid((8,), projections=("orthogonal", "independent", "givens"), length=4, head_dim=4, draws=2)
    found = {(row["kernel"], row["projection"]): row for row in rows_of(grid, [random_inputs(0.3, grid)], "kernel error")}
    assert {kernel for kernel, _ in found} == {"positive", "hyperbolic", "trigonometric"}
    with_formula = {key for key, row in found.items() if "formula" in row}
    assert with_formula == {key for key in found if key[1] == "independent"}
    assert [key for key, row in found.items() if "at_most" in row] == [("positive", "orthogonal")]


def test_a_layer_s_error_is_that_of_its_own_queries_and_keys() -> None:
    grid = ErrorGrid((64,), ("positive",), ("orthogonal",), draws=2)
    quiet = random_inputs(0.1, TINY).samples[0]
    samples = [quiet._replace(layer=layer, q=layer**2 * quiet.q, causal=layer == 3) for layer in (1, 2, 3)]
    rows = rows_of(grid, [Inputs("model", 1.0, samples)], "output error")
    assert [row["layer"] for row in rows] == [1, 2, 3]
    assert rows[0]["value"] < rows[1]["value"] < rows[2]["value"]


def test_causal_samples_are_compared_with_causal_attention() -> None:
    sample = random_inputs(0.1, TINY).samples[0]._replace(causal=True)
    exact = Inputs("model", 1.0, [sample]).exact[0]
    assert torch.allclose(exact[:, :, 0], sample.v[:, :, 0])
    close = error.mixed(Favor(features=4096), sample, torch.Generator().manual_seed(0))
    assert relative_error(close, exact) < 0.05


def test_estimates_by_angle_are_those_of_theory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error, "PAIR_DRAWS", 1000)
    grid = ErrorGrid((8,), ("trigonometric", "relu"), ("independent",))
    estimates = {row["angle"]: row for row in rows_of(grid, [], "estimate")}
    assert list(estimates) == list(ANGLES)
    assert estimates[0]["deviation"] == pytest.approx(0, abs=1e-6)
    assert estimates[0]["formula"] == 0
    for angle in (90, 180):
        assert estimates[angle]["value"] == pytest.approx(1, abs=0.15)
        assert estimates[angle]["deviation"] == pytest.approx(estimates[angle]["formula"], rel=0.2)
    assert estimates[90]["negative"] < 0.01
    assert estimates[180]["negative"] > 0.02


def test_layers_of_a_swapped_model_are_compared_with_the_original() -> None:
    rows = [row for cell in plan(TINY, [], swap_layers) if cell.about["metric"] == "layer error" for row in cell.measure()]
    assert [(row["features"], row["what"], row["layer"]) for row in rows[:4]] == [
        (4, "attention", 1),
        (4, "attention", 2),
        (4, "hidden", 1),
        (4, "hidden", 2),
    ]
    assert {row["features"]: row["value"] for row in rows} == pytest.approx({4: 0.25, 64: 1 / 64})


def test_the_same_values_twice_are_measured_once() -> None:
    twice = ErrorGrid((4, 4), ("positive",), ("independent",), length=4, head_dim=4)
    without_inputs = len(ANGLES) + 2 * len(SCORE_DIMS)
    assert len(plan(twice, [])) == without_inputs
    assert len(plan(twice, [random_inputs(1.0, twice)])) == without_inputs + 3


def test_errors_that_are_not_finite_are_rows_without_a_value() -> None:
    silent = torch.zeros(1, 1, 2, 4)
    infinite = Sample(1, silent, silent, torch.full((1, 1, 2, 4), 3e38), None, causal=False)
    found = rows_of(TINY, [Inputs("model", 1.0, [infinite])], "output error")
    assert [(row["value"], row.get("failure")) for row in found] == [(None, "not finite")] * 2


@pytest.mark.parametrize("kept", [0, 1, 14, 15, 16, 18])
def test_any_prefix_goes_on_to_the_same_end(kept: int, tmp_path: Path) -> None:
    cells = plan(TINY, [random_inputs(0.5, TINY)], swap_layers)
    whole, cut = (Run.create(tmp_path / name, "error", {}) for name in ("whole", "cut"))
    seen: list[Cell] = []
    measure(cells, whole, seen.append)
    assert seen == cells
    cut.append(whole.rows()[:kept])
    measure(cells, cut, lambda cell: None)
    assert cut.rows() == whole.rows()


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(SubquadError, match="features must be even and at least 2 for trigonometric features, but is 3"):
        ErrorGrid(features=(4, 3), kernels=("positive", "trigonometric"))
    with pytest.raises(SubquadError, match="draws must be at least 2, but is 1"):
        ErrorGrid(draws=1)
    with pytest.raises(SubquadError, match="give a smaller --length, --head-dim or --features"):
        check_memory(ErrorGrid(length=2**40))


def test_random_inputs_differ_by_their_size_only() -> None:
    small, large = (random_inputs(size, TINY).samples[0] for size in (0.5, 2.0))
    parts: list[tuple[Tensor, Tensor]] = [(4 * small.q, large.q), (4 * small.k, large.k), (small.v, large.v)]
    for ours, theirs in parts:
        assert torch.equal(ours, theirs)
