"""The page of trainings: labels and figures."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from subquad.cli.show import CountColumn, PlainColumn
from subquad.report.client_baselines import baseline_sentences, lost_to
from subquad.report.clients import overview_sentence
from subquad.report.curves import curves
from subquad.report.events import data_sentence, event_charts
from subquad.report.page import render
from subquad.report.training import final_table, label_runs, points, training_answer, training_page
from subquad.results import Row, Run
from tests.experiments.runs import finished_training


def labels(folder: Path, *options: dict[str, Any]) -> list[str]:
    runs = [finished_training(folder / str(at), options=about) for at, about in enumerate(options)]
    return [trained.label for trained in label_runs(runs)]


def test_labels_name_what_differs_and_the_attention_first(tmp_path: Path) -> None:
    softmax = {"mechanism": {"materialised": False, "kind": "softmax"}, "task": {"chunk": 512}}
    favor = {"mechanism": {"features": 64, "kind": "favor"}, "task": {"chunk": 512}}
    assert labels(tmp_path / "kinds", softmax, favor) == ["softmax", "favor"]
    more = {**favor, "mechanism": {"features": 128, "kind": "favor"}}
    assert labels(tmp_path / "sizes", softmax, favor, more) == ["softmax", "favor, features 64", "favor, features 128"]
    plain = {**softmax, "mechanism": {"materialised": True, "kind": "softmax"}}
    assert labels(tmp_path / "switch", softmax, plain) == ["softmax, no materialised", "softmax, materialised"]
    whole = {**favor, "task": {"chunk": 0}}
    assert labels(tmp_path / "tasks", softmax, whole) == ["softmax, chunk 512", "favor, chunk 0"]


def test_hundredths_of_nats_are_shown(tmp_path: Path) -> None:
    rows = [
        {"metric": "nll", "value": 6.3541, "split": "test", "step": 9},
        {"metric": "nll", "value": 12.3456, "split": "held out", "step": 9},
        {"metric": "loss", "value": 2.2144, "split": "train", "step": 9},
    ]
    trained = label_runs([finished_training(tmp_path / "run", rows, {"mechanism": {"kind": "softmax"}})])
    assert training_answer(trained) == "Softmax ended with a negative log-likelihood of 6.354 on the test."
    assert [cell.text for cell in final_table(trained).rows[0]][3:5] == ["2.214", "12.346"]
    rows = [{"metric": "nll", "value": -0.5304, "split": "test", "step": 9}, {**rows[1], "value": 0.012345}, rows[2]]
    small = label_runs([finished_training(tmp_path / "small", rows, {"mechanism": {"kind": "softmax"}})])
    assert training_answer(small) == "Softmax ended with a negative log-likelihood of -0.530 on the test."
    assert final_table(small).rows[0][4].text == "0.0123"


def test_curves_are_of_the_model_alone(tmp_path: Path) -> None:
    rows = [
        {"metric": "crps", "value": 0.2, "split": "held out", "step": 5},
        {"metric": "crps", "value": 0.1, "split": "held out", "step": 9},
        {"metric": "crps", "value": 0.7, "split": "test", "step": 9},
        {"metric": "crps", "value": 0.8, "split": "baseline", "baseline": "drift", "step": 9},
        {"metric": "crps", "value": 0.9, "split": "trivial", "step": 9},
    ]
    trained = label_runs([finished_training(tmp_path / "run", rows, {"mechanism": {"kind": "softmax"}})])
    assert [(row["step"], row["value"]) for row in points(trained, "crps")] == [(5, 0.2), (9, 0.1)]


def test_80_columns_show_the_step() -> None:
    console = Console(width=80, force_terminal=True, color_system=None, record=True)
    columns = (TextColumn("step"), CountColumn(), BarColumn(10), PlainColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console)
    words = "loss 0.4966, nll 0.0962, accuracy 0.3656, rmse 0.3447, 2954 tokens/s"
    bar.add_task(words, total=500, completed=120)
    console.print(bar.get_renderable())
    line = console.export_text()
    assert "120/500" in line
    assert "loss 0.4966, nll 0.0962" in line
    assert line.count("\n") == 1


def baselines(*gaps: tuple[float, float, float]) -> list[Row]:
    """Rows of a model on the test, whose differences from two baselines are these."""
    names = ("poisson", "hawkes")
    rows: list[Row] = [{"metric": "nll", "value": 1.0, "split": "test", "step": 9, "low": 0.9, "high": 1.1}]
    for name, (value, low, high) in zip(names, gaps, strict=True):
        about = {"split": "test", "step": 9}
        rows.append({"metric": f"nll_of_{name}", "value": 1.0 - value, "time": 0.5, "type": 0.5 - value, **about})
        rows.append({"metric": f"nll_above_{name}", "value": value, "low": low, "high": high, "baseline": name, **about})
    return [*rows, {"metric": "nll", "value": 1.0, "split": "held out", "step": 9}]


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        (
            [(-0.4, -0.5, -0.3), (0.1, 0.05, 0.15)],
            "Softmax loses to the baseline hawkes by 0.100 (0.050 to 0.150) nats per event; softmax ended with a",
        ),
        (
            [(-0.4, -0.5, -0.3), (0.1, -0.05, 0.25)],
            "Softmax ended with a negative log-likelihood of 1.000 on the test; softmax is level with the baseline hawkes: "
            "+0.100",
        ),
        (
            [(-0.4, -0.5, -0.3), (-0.1, -0.2, -0.05)],
            "Softmax ended with a negative log-likelihood of 1.000 on the test; softmax is ahead of all 2 baselines, of "
            "hawkes by 0.100",
        ),
        (
            [(0.4, -0.1, 0.9), (0.1, 0.05, 0.15)],  # poisson may be no better at all
            "Softmax loses to the baseline hawkes by 0.100 (0.050 to 0.150) nats per event; softmax ended with a",
        ),
        (
            [(0.4, 0.3, 0.5), (0.1, 0.05, 0.15)],
            "Softmax loses to the baseline poisson by 0.400 (0.300 to 0.500) nats per event and to hawkes; softmax ended",
        ),
    ],
)
def test_what_a_model_loses_to_comes_first(gaps: list[tuple[float, float, float]], said: str, tmp_path: Path) -> None:
    trained = label_runs([finished_training(tmp_path / "run", baselines(*gaps), {"mechanism": {"kind": "softmax"}})])
    assert training_answer(trained).startswith(said)
    page = render(training_page(trained))
    assert "Beside baselines" in page
    assert page.index(said.split(";")[0]) < page.index("Beside baselines")


def test_models_of_events_are_compared_on_each_test_sequence(tmp_path: Path) -> None:
    """Sequences differ by nats, attentions by thousandths; a model of other data or sequences is not compared."""
    draw = random.Random(0)
    levels = [draw.gauss(50.0, 20.0) for _ in range(40)]

    def trained_run(name: str, kind: str, seed: int, more: float, data: str = "a", events: int = 10) -> Run:
        values = [level + seed + more * draw.uniform(0.5, 1.5) for level in levels]
        rows: list[Row] = [
            {"metric": "sequence_nll", "value": value, "sequence": at, "events": events, "step": 9}
            for at, value in enumerate(values)
        ]
        about = {"mechanism": {"kind": kind}, "task": {"data": data}}
        return finished_training(tmp_path / name, rows, about, seed=seed)

    runs = [trained_run(f"favor-{seed}", "favor", seed, 0.05) for seed in (0, 1)]
    runs += [trained_run(f"softmax-{seed}", "softmax", seed, 0.0) for seed in (0, 1)]
    answer = training_answer(label_runs([*runs, trained_run("other", "linear", 0, 9.0, data="b")]))
    assert re.search(
        r"on each test sequence beside softmax, .*favor.* is behind by 0\.00\d+ \(0\.00\d+ to 0\.00\d+\)", answer, re.I
    )
    assert "linear" not in answer.partition("on each test sequence")[2]
    page = render(training_page(label_runs(runs)))
    assert "Beside each other" in page
    assert "0, 1" in page
    longer = trained_run("longer", "linear", 0, 0.0, events=11)
    assert "on each test" not in training_answer(label_runs([runs[0], longer])).lower()
    assert "Beside each other" not in render(training_page(label_runs(runs[:2])))


@pytest.mark.parametrize(
    ("unit", "kind", "first"), [("time", "quantitative", 5.0), ("seconds since 1970", "temporal", 5000.0)]
)
def test_a_timeline_of_dates_has_dates(unit: str, kind: str, first: float) -> None:
    about = {"metric": "timeline", "unit": unit, "sequence": "s", "type": "a", "step": 9}
    rows: list[Row] = [
        {**about, "value": 5.0, "kind": "before"},
        {**about, "value": 7.0, "low": 6.0, "high": 9.0, "event": 1, "kind": "forecast"},
    ]
    drawn = event_charts(rows)["timeline_1"].to_dict()
    points = drawn["layer"][1]
    assert points["encoding"]["x"]["type"] == kind
    assert points["encoding"]["x"]["scale"] == ({"type": "utc"} if kind == "temporal" else {"zero": False})
    assert f'"time": {first},' in json.dumps(drawn)


@pytest.mark.parametrize(
    ("unit", "types", "said"),
    [
        ("time", ["a"], "40 events, 1 type; gaps have the median 90 (90 to 7.2e+03 for nine in ten)."),
        (
            "seconds",
            ["a", "b", "all others"],
            "more than 2 types; gaps have the median 1.50 minutes (1.50 minutes to 2.00 hours",
        ),
    ],
)
def test_the_data_in_one_sentence(unit: str, types: list[str], said: str) -> None:
    values = [
        ("sequences", None, 4.0),
        ("events", None, 40.0),
        ("gap", 0.05, 90.0),
        ("gap", 0.5, 90.0),
        ("gap", 0.95, 7200.0),
    ]
    rows: list[Row] = [
        {"metric": "data", "part": "train", "what": what, "value": value, "unit": unit}
        | ({} if level is None else {"quantile": level})
        for what, level, value in values
    ]
    rows += [
        {"metric": "data", "part": "train", "what": "type", "value": 0.3, "unit": "share", "type": name} for name in types
    ]
    assert said in data_sentence(rows)


def test_a_curve_of_one_evaluation_is_seen() -> None:
    one = [{"label": "linear", "run": "r", "step": 9, "value": 1.0}]
    opacities = [
        [layer["mark"]["opacity"] for layer in curves(rows, "nll").to_dict()["layer"] if layer["mark"]["type"] == "point"]
        for rows in (one, [*one, {**one[0], "step": 18}])
    ]
    assert opacities == [[1], [0]]


@pytest.mark.parametrize(
    ("gap", "said", "is_lost"),
    [
        (
            (-0.0001, -0.0003, 0.0002),
            "Level with the counts: AUROC 0.956 against 0.956, difference -0.000 (-0.000 to +0.000).",
            0,
        ),
        (
            (-0.004, -0.009, 0.001),
            "Behind the counts: AUROC 0.956 against 0.960, difference -0.004 (-0.009 to +0.001), which",
            1,
        ),
        (
            (-0.0004, -0.0006, -0.0002),
            "Behind the counts: AUROC 0.956 against 0.956, difference -0.000 (-0.001 to -0.000).",
            1,
        ),
        ((0.01, 0.005, 0.015), "Ahead of the counts: AUROC 0.956 against 0.946, difference +0.010 (+0.005 to +0.015).", 0),
    ],
)
def test_a_difference_too_small_to_be_shown_is_level(gap: tuple[float, float, float], said: str, is_lost: int) -> None:
    value, low, high = gap
    rows: list[Row] = [
        {"metric": "auroc", "value": 0.9561, "split": "test"},
        {"metric": "auroc", "value": 0.9561 - value, "split": "baseline", "baseline": "counts"},
        {"metric": "auroc_gained", "value": value, "low": low, "high": high, "split": "baseline", "baseline": "counts"},
    ]
    (sentence,) = baseline_sentences(rows)
    assert sentence.startswith(said)
    assert len(lost_to(rows)) == is_lost


def test_the_page_tells_what_clients_there_are() -> None:
    summary = [
        {"name": "clients", "where": "overview", "kind": "", "values": 1200, "missing": 0.0, "note": "1 to 9 events each"},
        {"name": "target", "where": "target", "kind": "classes", "values": 1200, "missing": 0.0, "note": "yes: 7, no: 9"},
        {"name": "city", "where": "event", "kind": "category", "values": 3, "missing": 0.0, "note": ""},
    ]
    sentence = overview_sentence({"summary": summary})
    assert sentence == "Data: 1,200 clients, 1 to 9 events each; the target is a class, yes: 7, no: 9."
    assert overview_sentence({}) == ""


@pytest.mark.parametrize(("value", "domain"), [(0.65, [0.585, 0.715]), (-2.0, [-2.2, -1.8]), (0.0, [-1.0, 1.0])])
def test_the_axis_of_a_metric_that_never_changes_is_around_its_value(value: float, domain: list[float]) -> None:
    rows: list[Row] = [{"label": "linear", "run": 0, "step": step, "value": value} for step in (10, 20)]
    scales = [layer["encoding"]["y"]["scale"] for layer in curves(rows, "accuracy").to_dict()["layer"]]
    assert [scale["domain"] for scale in scales] == [pytest.approx(domain)] * 4
    rows[0]["value"] = value + 1
    assert "domain" not in curves(rows, "accuracy").to_dict()["layer"][0]["encoding"]["y"]["scale"]
