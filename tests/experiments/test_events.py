"""The experiment on events: verdicts on figures that are known, and a tiny run for real."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquad.cli import main
from subquad.experiments.base import Training
from subquad.experiments.events import costs as event_costs
from subquad.experiments.events import grid as events
from subquad.experiments.events.grid import SCALES, Grid, Setting, Source
from subquad.experiments.events.page import events_page, speed_sentence, speed_table
from subquad.experiments.events.verdicts import (
    Trained,
    cheaper,
    difference,
    judge,
    on_sequences,
    over_seeds,
    trained,
)
from subquad.models import ModelOptions
from subquad.report.event_pairs import standing
from subquad.report.page import render
from subquad.results import Row, Run
from subquad.statistics import Interval
from subquad.tasks import Events
from subquad.training import TrainOptions
from tests.experiments.runs import finished_training

TAXI = Setting("taxi")


def run(folder: Path, setting: Setting, attention: str, seed: int, **metrics: float) -> Trained:
    """A finished training that came to these figures on the test."""
    rows: list[Row] = [{"metric": name, "value": value, "split": "test", "step": 9} for name, value in metrics.items()]
    rows.append({"metric": "nll", "value": 99.0, "split": "held out", "step": 9})
    path = folder / f"events-{setting.source}-{setting.times}-{attention}-{seed}"
    made = finished_training(path, rows, {"times": setting.times})
    return Trained(setting, attention, seed, made, made.rows())


def held(folder: Path) -> dict[str, bool | None]:
    return {verdict.claim: verdict.held for verdict in judge(folder)}


def test_means_are_over_the_seeds_of_the_test_figures(tmp_path: Path) -> None:
    runs = [run(tmp_path, TAXI, "favor", seed, nll=value) for seed, value in enumerate((1.0, 2.0, 3.0))]
    found = over_seeds(runs, "nll")
    assert found is not None
    assert found.value == 2.0
    assert found.high - found.value == pytest.approx(4.302653 / 3**0.5)  # Student, two degrees of freedom
    assert over_seeds(runs, "accuracy") is None


def test_differences_are_between_equal_seeds(tmp_path: Path) -> None:
    """Seeds differ by far more than attentions, and one seed is missing."""
    runs = [run(tmp_path, TAXI, "softmax", seed, nll=10.0 * seed) for seed in (0, 1, 2)]
    runs += [run(tmp_path, TAXI, "favor", seed, nll=10.0 * seed + 0.1 + 0.001 * seed) for seed in (2, 1)]
    found = difference(runs, TAXI, "favor", "softmax")
    assert found is not None
    assert found.value == pytest.approx(0.1015)
    assert found.low > 0.09
    assert difference(runs, Setting("taxi", "rotary"), "favor", "softmax") is None


def test_verdicts(tmp_path: Path) -> None:
    for seed in (0, 1):
        always = {"accuracy_of_most_frequent": 0.4}
        run(tmp_path, TAXI, "softmax", seed, nll=-0.40 + 0.001 * seed, accuracy=0.5 + 0.001 * seed, **always)
        run(tmp_path, TAXI, "favor", seed, nll=-0.36, accuracy=0.3, **always)
        run(tmp_path, Setting("simulated"), "softmax", seed, nll=1.0, nll_above_truth=0.02)
        run(tmp_path, Setting("simulated"), "favor", seed, nll=1.009, nll_above_truth=0.04)
    found = held(tmp_path)
    assert found["taxi, sinusoidal times: softmax has a negative log-likelihood no higher than THP's as published"] is True
    assert found["taxi, sinusoidal times: softmax has a negative log-likelihood no higher than NHP's as published"] is False
    assert found["taxi, sinusoidal times: favor has a negative log-likelihood no higher than THP's as published"] is False
    assert found["taxi, sinusoidal times: favor is at least as good as softmax, within 0.01 nats per event"] is False
    assert found["simulated, sinusoidal times: favor is at least as good as softmax, within 0.01 nats per event"] is True
    assert found["simulated, sinusoidal times: softmax comes within 0.03 nats per event of the true process"] is True
    assert found["simulated, sinusoidal times: favor comes within 0.03 nats per event of the true process"] is False
    assert found["taxi, sinusoidal times: softmax tells the next type better than always the most frequent one"] is True
    assert found["taxi, sinusoidal times: favor tells the next type better than always the most frequent one"] is False
    assert not any("published" in claim for claim in found if claim.startswith("simulated"))


def test_a_small_but_certain_difference_is_behind(tmp_path: Path) -> None:
    """Sequences differ by nats, attentions on each of them by thousandths, which an interval over sequences tells."""
    rng = np.random.default_rng(0)
    for seed in (0, 1):
        level = rng.normal(50.0, 20.0, 40)
        for attention, more in (("softmax", 0.0), ("favor", 0.05), ("linear", -0.05)):
            values = level + more * rng.uniform(0.5, 1.5, 40)
            rows = [
                {"metric": "sequence_nll", "value": value, "sequence": at, "events": 10, "step": 9}
                for at, value in enumerate(values)
            ]
            path = tmp_path / f"events-taxi-sinusoidal-{attention}-{seed}"
            nll = {"metric": "nll", "value": values.mean() / 10, "split": "test", "step": 9}
            finished_training(path, [*rows, nll], {"times": "sinusoidal"})
    runs = trained(tmp_path)
    gap = on_sequences(runs, TAXI, "favor", "softmax")
    assert gap is not None
    assert 0.004 < gap.low < gap.value < gap.high < 0.006
    figures = {verdict.claim: verdict.figures for verdict in judge(tmp_path)}
    claim = "taxi, sinusoidal times: {} is at least as good as softmax, within 0.01 nats per event"
    assert "paired over test sequences behind by 0.005" in figures[claim.format("favor")]
    assert "paired over test sequences ahead by 0.005" in figures[claim.format("linear")]
    assert standing(Interval(0.001, -0.001, 0.003)) == "level, +0.0010 (-0.0010 to +0.0030)"
    assert on_sequences(runs, TAXI, "infinity", "softmax") is None


def test_the_page_names_the_table_of_published_rows(tmp_path: Path) -> None:
    run(tmp_path, TAXI, "softmax", 0, nll=-0.5)
    html = render(events_page(tmp_path, "quick"))
    assert "Chang et al. 2025 (S2P2), on the splits of EasyTPP (Xue et al. 2024)" in html
    for model, value in (("THP", "-0.372"), ("NHP", "-0.514"), ("AttNHP", "-0.493"), ("S2P2", "-0.522")):
        assert f"{model}, published" in html
        assert value in html


def test_seeds_that_differ_decide_nothing(tmp_path: Path) -> None:
    for seed, gap in enumerate((0.0, 0.005, 0.015)):
        run(tmp_path, TAXI, "softmax", seed, nll=-0.5)
        run(tmp_path, TAXI, "favor", seed, nll=-0.5 + gap)
    assert held(tmp_path)["taxi, sinusoidal times: favor is at least as good as softmax, within 0.01 nats per event"] is None


def cost_rows(favor: tuple[float, float, float]) -> Iterator[Row]:
    """Linear is faster and smaller than softmax, favor slower than asked and as large as given."""
    found = {
        "softmax": {"times_as_fast": (1, 1, 1), "peak_bytes": (10e6, 10e6, 10e6), "times_the_peak": (1, 1, 1)},
        "linear": {"times_as_fast": (2.5, 2.4, 2.6), "peak_bytes": (9e6, 8e6, 10e6), "times_the_peak": (0.9, 0.89, 0.91)},
        "favor": {"times_as_fast": (1.9, 1.8, 1.95), "peak_bytes": (10e6, 9e6, 11e6), "times_the_peak": favor},
    }
    for name, metrics in found.items():
        for metric, (middle, low, high) in metrics.items():
            yield {"mechanism": name, "metric": metric, "value": middle, "low": low, "high": high}


def test_cost_is_time_and_memory() -> None:
    for favor, smaller in (((1.1, 1.01, 1.2), False), ((1.005, 0.99, 1.02), None), ((0.995, 0.99, 0.999), True)):
        assert [verdict.held for verdict in cheaper(list(cost_rows(favor)))] == [False, smaller, True, True]


def test_cost_is_of_the_models_that_were_trained_as_in_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for times in ("rotary", "sinusoidal"):
        for attention in ("softmax", "favor"):
            run(tmp_path, Setting("simulated", times), attention, 0, nll=1.0)
    given: list[Any] = []

    def costs(options: Any) -> list[Row]:
        given.append(options)
        return []

    monkeypatch.setattr(event_costs, "costs", costs)
    event_costs.measure(tmp_path, "quick")
    (measured,) = given
    assert {name: options["times"] for name, options in measured.items()} == dict.fromkeys(
        ("softmax", "favor"), "sinusoidal"
    )


def test_costs_that_were_not_measured_to_the_end_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("softmax", "favor"):
        run(tmp_path, Setting("simulated"), name, 0, nll=1.0)
    given: list[Row] = [
        {"mechanism": name, "metric": metric, "value": 1.0}
        for name in ("softmax", "favor")
        for metric in ("seconds", "times_the_peak")
    ]
    calls: list[int] = []
    for cut in range(len(given) + 1):  # killed after each row, with which it starts the next time

        def costs(options: Any, rows: list[Row] = given[:cut]) -> list[Row]:
            calls.append(1)
            return rows

        monkeypatch.setattr(event_costs, "costs", costs)
        event_costs.measure(tmp_path, "quick")
        assert Run.open(tmp_path / "costs", "costs").rows() == given[:cut]
    event_costs.measure(tmp_path, "quick")  # all are there
    assert len(calls) == len(given) + 1


def test_sources_are_folders_of_data(tmp_path: Path) -> None:
    for name in ("Taxi", "financial"):
        (tmp_path / name).mkdir()
    usual, taxi = (Source(ModelOptions(), TrainOptions(batch=batch)) for batch in (32, 4))
    attentions = SCALES["quick"].attentions
    grid = Grid(seeds=(0,), attentions=attentions, usual=usual, by_source={"taxi": taxi}, minutes="", data=str(tmp_path))
    assert list(grid.sources) == ["simulated", "taxi", "financial"]
    works = {trial.name: trial.work for trial in grid.trials()}
    first = works["events-taxi-sinusoidal-favor-0"]
    assert first == Training(Events(data=str(tmp_path / "Taxi")), attentions["favor"], taxi.model, taxi.training)
    assert works["events-taxi-rotary-favor-0"] == replace(first, model=ModelOptions(positions="rotary"))
    assert works["events-simulated-sinusoidal-softmax-0"] == Training(
        Events(), attentions["softmax"], usual.model, usual.training
    )
    assert not any("rotary" in name for name in works if "financial" in name)
    alone = replace(grid, data=str(tmp_path / "Taxi"))
    assert alone.sources == {"simulated": "", "taxi": str(tmp_path / "Taxi")}


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    setting = Setting("our-own-events", "rotary")
    run(tmp_path, setting, "favor", 3, nll=1.0)
    assert [(one.setting, one.attention, one.seed) for one in trained(tmp_path)] == [(setting, "favor", 3)]


@pytest.mark.slow
def test_a_tiny_run_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Source(ModelOptions(layers=1, heads=1, head_dim=8), TrainOptions(batch=4, steps=3), Events(sequences=20))
    tiny = replace(SCALES["quick"], seeds=(0, 1), usual=small, by_source={}, also_rotary=())
    monkeypatch.setitem(SCALES, "quick", tiny)
    monkeypatch.setattr(events, "ATTENTIONS", ("softmax", "linear"))
    monkeypatch.setattr(event_costs, "LONG", 64)
    monkeypatch.setattr(event_costs, "SECONDS", 0.0)
    monkeypatch.setattr(event_costs, "PEAKS", 1)
    monkeypatch.setattr(event_costs, "LENGTHS", (8, 32))
    monkeypatch.setattr(event_costs, "TOKENS", 64)
    monkeypatch.setattr(event_costs, "SECONDS_A_LENGTH", 0.0)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "events", "--jobs", "2", "--out", "run"]) == 0
    found = trained(Path("run"))
    assert [(one.attention, one.seed) for one in found] == [("linear", 0), ("linear", 1), ("softmax", 0), ("softmax", 1)]
    claims = held(Path("run"))
    assert "simulated, sinusoidal times: linear comes within 0.03 nats per event of the true process" in claims
    page = Path("run/report.html").read_text()
    assert "true process" in page
    assert "residuals_simulated_sinusoidal" in page


def test_the_best_of_ours_is_judged_beside_the_best_published_row(tmp_path: Path) -> None:
    for seed, (softmax, linear) in enumerate([(-0.51, -0.531), (-0.512, -0.530), (-0.511, -0.532)]):
        run(tmp_path, TAXI, "softmax", seed, nll=softmax)
        run(tmp_path, TAXI, "linear", seed, nll=linear)
    claim = "taxi, sinusoidal times: an attention is at or below the lowest published row, S2P2's -0.522"
    (verdict,) = (verdict for verdict in judge(tmp_path) if verdict.claim == claim)
    assert verdict.held is True
    assert verdict.figures.startswith("linear -0.531")
    assert verdict.figures.endswith("ahead by 0.009")


def test_a_model_that_loses_to_a_baseline_is_told_so(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"metric": "nll", "value": 1.0, "split": "test", "step": 9},
        {"metric": "nll", "value": 1.0, "split": "held out", "step": 9},
        {"metric": "nll_of_poisson", "value": 0.9, "time": 0.5, "type": 0.4, "split": "test", "step": 9},
        {"metric": "nll_of_hawkes", "value": 1.4, "time": 0.9, "type": 0.5, "split": "test", "step": 9},
        {"metric": "nll_above_poisson", "value": 0.1, "split": "test", "step": 9, "baseline": "poisson"},
        {"metric": "nll_above_hawkes", "value": -0.4, "split": "test", "step": 9, "baseline": "hawkes"},
    ]
    for seed in range(3):
        finished_training(tmp_path / f"events-taxi-sinusoidal-linear-{seed}", rows, {"times": "sinusoidal"})
    claim = "taxi, sinusoidal times: linear has a lower negative log-likelihood than all 2 baselines"
    (verdict,) = (verdict for verdict in judge(tmp_path) if verdict.claim == claim)
    assert verdict.held is False
    assert "poisson, the best of them" in verdict.figures
    page = render(events_page(tmp_path, "quick"))
    assert "poisson, baseline" in page
    assert "hawkes, baseline" in page


def test_lengths_at_which_an_attention_is_slower_are_said() -> None:
    def row(name: str, length: int, times: float) -> list[Row]:
        about = {"mechanism": name, "length": length}
        ends = {"low": 0.95 * times, "high": 1.05 * times}
        rate = {"metric": "tokens_per_second", "value": 1000.0 * times, "low": 1.0, "high": 2.0}
        return [{**rate, **about}, {"metric": "times_as_fast", "value": times, **ends, **about}]

    rows = [*row("softmax", 32, 1.0), *row("favor", 32, 0.7), *row("softmax", 512, 1.0), *row("favor", 512, 1.0)]
    rows += [*row("softmax", 4096, 1.0), *row("favor", 4096, 2.5)]
    assert speed_sentence(rows) == "Favor is slower than softmax at 32 events and faster at 4096."
    table = speed_table(rows)
    assert [line[0].text for line in table.rows] == ["32", "512", "4096"]
    assert table.rows[2][2].text == "2,500, 2.50 (2.38 to 2.62) times"


def test_speeds_that_were_not_measured_to_the_end_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("softmax", "favor"):
        run(tmp_path, Setting("simulated"), name, 0, nll=1.0)
    monkeypatch.setattr(event_costs, "LENGTHS", (32, 64))
    calls: list[int] = []

    def speeds(options: Any, length: int) -> list[Row]:
        calls.append(length)
        metrics = ("tokens_per_second", "times_as_fast")
        return [{"metric": metric, "value": 1.0, "mechanism": m, "length": length} for m in options for metric in metrics]

    monkeypatch.setattr(event_costs, "speeds", speeds)
    event_costs.measure_speeds(tmp_path, "quick")
    kept = Run.open(tmp_path / "speeds", "speeds")
    rows = kept.rows()
    for cut in range(len(rows)):  # killed after each row
        kept.keep_first_rows(cut)
        event_costs.measure_speeds(tmp_path, "quick")
        assert kept.rows() == rows
    assert calls == [32, 64] + [32, 64] * 4 + [64] * 4
    event_costs.measure_speeds(tmp_path, "quick")
    assert len(calls) == 14
