"""The page of `subquad error`."""

from itertools import product
from pathlib import Path

import pytest

from subquad.report.error import (
    bound_table,
    error_answer,
    error_table,
    figures,
    summary_table,
    write_error_figures,
    write_error_page,
)
from subquad.report.error_charts import curves, estimate_points, kernel_points, layer_points, needed_points, size_points
from subquad.report.error_scores import score_chart, score_points
from subquad.results import Row, Run
from tests.runs.made import write_pages_quickly

FEATURES = (16, 256)


def rows(*, model: bool = True) -> list[Row]:
    """Errors that fall as the root of the number of features and grow with the size, on a model of two layers too."""
    found: list[Row] = []
    inputs = [("model", 1.0, layer) for layer in (1, 2) if model] + [("random", 0.5, 1), ("random", 1.0, 1)]
    for name, size, layer in inputs:
        shape = {"inputs": name, "size": size, "layer": layer, "length": 64, "heads": 2, "head_dim": 16}
        found.append({"metric": "largest norm", "value": 2.0, **shape})
        for kernel in ("positive", "trigonometric"):
            for projection in ("orthogonal", "independent"):
                for features in FEATURES:
                    value = size * layer * (1 if kernel == "positive" else 10) * features**-0.5
                    cell = {"kernel": kernel, "projection": projection, "features": features, **shape}
                    ends = {"value": value, "low": value / 2, "high": 2 * value}
                    found.append({"metric": "output error", **ends, **cell})
                    published = {"formula": value**2} if projection == "independent" else {}
                    found.append(
                        {"metric": "kernel error", "value": value**2, "low": -1.0, "high": 9.0, **published, **cell}
                    )
    for kernel in ("positive", "trigonometric"):
        for angle in (0, 90, 180):
            ends = {"value": 1.0, "low": -0.5, "high": 3.0, "deviation": 0.5, "deviation_low": 0.4, "deviation_high": 0.6}
            about = {"kernel": kernel, "features": 64, "angle": angle, "formula": 0.5, "negative": 0.1}
            found.append({"metric": "estimate", **ends, **about})
    for what, scaled, dim in product(("variance", "largest_weight", "slope"), (False, True), (4, 64)):
        ends = {"value": 0.5 if scaled else dim / 64, "low": 0.01, "high": 1.0}
        found.append({"metric": "scores", "what": what, "scaled": scaled, "dim": dim, **ends})
    for what in ("attention", "hidden") if model else ():
        for layer in (1, 2):
            ends = {"value": 0.1 * layer, "low": 0.09 * layer, "high": 0.11 * layer}
            cell = {"kernel": "positive", "projection": "orthogonal", "features": 16, "inputs": "model", "size": 1.0}
            found.append({"metric": "layer error", "what": what, "layer": layer, **ends, **cell})
    return found


def run(folder: Path, *, model: bool = True) -> Run:
    options = {"model": "some/model" if model else "", "origin": {"class": "BertModel"} if model else {}}
    made = Run.create(folder, "error", {"options": options, "command": "subquad error some/model"})
    made.append(rows(model=model))
    return made


def test_the_answer_is_about_the_model_if_there_is_one(tmp_path: Path) -> None:
    answer = error_answer(run(tmp_path / "model"))
    assert answer.startswith(
        "Model (class BertModel), the model's queries and keys: with 256 features FAVOR+ (positive, orthogonal)"
    )
    assert "has a relative error of 0.0884 (0.0442 to 0.177)." in answer
    assert "reaches an error of 0.1 on the model's queries and keys with 200 positive features" in answer
    answer = error_answer(run(tmp_path / "random", model=False))
    assert answer.startswith("Random queries and keys of size 1: with 256 features")


def test_tables() -> None:
    table = error_table(rows())
    assert table.columns == ["inputs", "kernel", "directions", "16", "256"]
    assert len(table.rows) == 12
    assert [cell.text for cell in table.rows[0]][:3] == ["the model", "positive", "independent"]
    summary = summary_table(rows())
    assert summary.columns == ["inputs", "kernel", "16", "256"]
    assert [[cell.text for cell in row] for row in summary.rows[:2]] == [
        ["the model", "positive", "0.35", "0.088"],
        ["the model", "trigonometric", "3.5", "0.88"],
    ]
    bounds = {(row[0].text, row[1].text): [cell.value for cell in row[2:]] for row in bound_table(rows()).rows}
    measured = bounds["random, size 1", "measured, the best kernel"]
    assert measured[:4] == [16, 16, 26, 100]
    assert measured[4:] == [None, None]  # the smallest error that was measured is 0.0625
    by_formula = bounds["random, size 1", "mean squared error, positive"]
    assert by_formula[3] == pytest.approx(100)


def test_points() -> None:
    points = list(kernel_points(rows()))
    assert {point["label"] for point in points} == {"positive", "trigonometric"}
    assert points[0]["view"] == "the model"
    assert {(point["x"], point["value"]) for point in size_points(rows()) if point["label"] == "positive"} == {
        (0.5, 0.03125),
        (1.0, 0.0625),
    }
    labels = {point["label"] for point in needed_points(rows())}
    assert {"Performer, theorem 4", "Linformer, theorem 2", "Johnson and Lindenstrauss"} < labels
    layers = [(point["label"], point["layer"]) for point in layer_points(rows()) if point["features"] == 16]
    assert len(layers) == 6
    assert layers[-1] == ("attention, on the inputs of the exact model", 2)


def test_scores_are_drawn_with_and_without_their_division() -> None:
    points = list(score_points(rows()))
    assert {(point["label"], point["dim"]) for point in points} == set(product(("q . k", "q . k / sqrt d"), (4, 64)))
    drawn = score_chart(points, interactive=True).to_dict()
    titles = [panel["title"] for panel in drawn["concat"]]
    assert titles == ["variance of scores", "largest weight of a query", "slope of the weights"]


def test_intervals_that_reach_below_zero_are_drawn_on_a_logarithmic_axis() -> None:
    points = list(estimate_points(rows()))
    assert {point["kind"] for point in points} == {"measured", "published"}
    assert all(0 < point["low"] <= point["value"] for point in points)
    drawn = curves(points, "features", "error", interactive=True).to_dict()
    assert drawn["layer"][0]["encoding"]["y"]["scale"]["type"] == "log"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages_quickly(monkeypatch)
    runs = [run(tmp_path / "model"), run(tmp_path / "random", model=False)]
    write_error_page(runs[:1], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    names = ("kernels", "projections", "sizes", "formulas", "estimates", "deviations", "layers", "needed", "lengths")
    places = [page.index(f'id="chart-{name}-0"') for name in names]
    assert places == sorted(places)
    assert "<option>the model</option><option>random, size 1</option><option>random, size 0.5</option>" in page
    write_error_page(runs, tmp_path / "both.html")
    assert 'id="chart-needed-1"' in (tmp_path / "both.html").read_text()
    assert 'id="chart-layers-1"' not in (tmp_path / "both.html").read_text()


def test_figures(tmp_path: Path) -> None:
    charts = dict(figures(rows()))
    by_view = ("kernels", "projections", "formulas", "needed")
    single = {"sizes", "estimates", "deviations", "layers", "lengths", "scores"}
    views = ("the model", "random, size 0.5", "random, size 1")
    assert set(charts) == single | {f"{name} {view}" for name in by_view for view in views}
    for name in (*single, "kernels the model"):
        assert charts[name].to_dict()  # which checks it against the grammar of charts
    first = next(iter(write_error_figures([run(tmp_path / "random", model=False)], tmp_path / "figures")))
    assert first.stat().st_size > 1000
    assert first.with_suffix(".svg").exists()


def test_a_run_without_errors_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages_quickly(monkeypatch)
    begun = Run.create(tmp_path / "begun", "error", {"options": {}})
    begun.append([row for row in rows() if row["metric"] == "estimate"])
    write_error_page([begun], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "no error of an output was measured yet" in page
    assert 'id="chart-estimates-0"' in page
