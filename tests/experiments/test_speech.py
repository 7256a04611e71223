"""Speech: verdicts on rows that are known, and costs that are measured on a tiny model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subquad.experiments.base import Training
from subquad.experiments.speech.costs import costs
from subquad.experiments.speech.grid import SCALES
from subquad.experiments.speech.page import cost_table, speech_page
from subquad.experiments.speech.verdicts import (
    METRIC,
    Recognition,
    Results,
    faster,
    gap,
    learned,
    near,
    ordered,
    results_on_test,
)
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.statistics import Interval

TINY = ModelOptions(layers=1, heads=1, head_dim=4)


def alike(rate: float, recordings: int = 20) -> Recognition:
    """Results with nearly the same error rate in every recording of 100 units."""
    wrong = 100 * rate + np.where(np.arange(recordings) % 2, 1.0, -1.0)
    return Recognition(Interval(rate, rate - 0.01, rate + 0.01), np.stack([wrong, np.full(recordings, 100.0)], axis=1))


def one_seed(**rates: float) -> Results:
    return {name: {0: alike(rate)} for name, rate in rates.items()}


@pytest.mark.parametrize(("rate", "held"), [(0.3, True), (0.4, False), (0.35, None)])
def test_softmax_has_to_learn(rate: float, held: bool | None) -> None:
    (verdict,) = learned(one_seed(softmax=rate))
    assert (verdict.claim, verdict.held) == ("softmax's error rate is below 35%", held)
    (nothing,) = learned({})
    assert nothing.held is None


@pytest.mark.parametrize(("linear", "held"), [(0.315, True), (0.4, False)])
def test_linear_has_to_be_near(linear: float, held: bool) -> None:
    (verdict,) = near(one_seed(softmax=0.3, linear=linear))
    assert verdict.claim == "linear's error rate is at most 2 points above softmax's"
    assert verdict.held is held


def test_with_one_seed_encoders_are_compared_on_each_recording() -> None:
    """Recordings that are hard for both do not widen the interval of a difference."""
    difficulty = np.linspace(0.0, 0.5, 40)
    units = np.full(40, 100.0)
    wide = Interval(0.27, 0.2, 0.35)
    results = {
        "linear": {0: Recognition(wide, np.stack([100 * difficulty + 2.0, units], axis=1))},
        "softmax": {0: Recognition(wide, np.stack([100 * difficulty, units], axis=1))},
    }
    assert gap(results, "linear", "softmax") == pytest.approx((0.02, 0.02, 0.02))


def test_several_seeds_are_compared_seed_by_seed() -> None:
    several = {name: {seed: alike(rate + seed / 10) for seed in range(3)} for name, rate in (("a", 0.3), ("b", 0.2))}
    assert gap(several, "a", "b") == pytest.approx((0.1, 0.1, 0.1))
    assert gap({}, "a", "b") is None


def test_results_without_single_recordings_are_not_compared() -> None:
    trials = [trial for trial in SCALES["quick"].trials() if trial.variant in ("softmax", "linear")]
    rate: Row = {"metric": METRIC, "split": "test", "value": 0.3, "low": 0.2, "high": 0.4}
    edits: Row = {"metric": "recording_edits", "split": "test", "recording": 0, "value": 3.0, "units": 10.0}
    kept = results_on_test({trial.name: [rate, edits] for trial in trials}, trials)
    assert kept["linear"][0].parts.tolist() == [[3.0, 10.0]]
    assert gap(kept, "linear", "softmax") == pytest.approx((0, 0, 0))
    assert gap(results_on_test({trial.name: [rate] for trial in trials}, trials), "linear", "softmax") is None


def test_the_papers_order_is_judged() -> None:
    verdicts = {verdict.claim: verdict.held for verdict in ordered(one_seed(softmax=0.2, linear=0.3, lsh=0.25))}
    assert verdicts == {
        "softmax has fewer errors than linear": True,
        "linear has fewer errors than lsh": False,
        "linear has fewer errors than lstm": None,
    }


def test_speed_is_judged_at_the_longest_sound() -> None:
    def row(encoder: str, seconds: int, times: float) -> Row:
        about = {"metric": "times_softmax", "work": "training", "encoder": encoder, "sound_seconds": seconds}
        return {**about, "value": times, "low": times * 0.9, "high": times * 1.1}

    rows = [
        row("softmax", 4, 1.0),
        row("softmax", 64, 1.0),
        row("linear", 4, 2.0),
        row("linear", 64, 0.5),
        row("lsh", 64, 0.55),
    ]
    assert [(verdict.claim.rpartition(" ")[2], verdict.held) for verdict in faster(rows)] == [
        ("softmax", True),
        ("lsh", None),
    ]
    assert list(faster([])) == []


@pytest.mark.parametrize("is_fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_costs_are_measured_for_every_encoder(is_fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_fresh:  # processes that import PyTorch take seconds
        monkeypatch.setattr("subquad.experiments.speech.costs.in_fresh_process", lambda work, *arguments: 10**6)
    works = {
        name: replace(work, model=TINY) for name, work in SCALES["quick"].works().items() if name in ("softmax", "lstm")
    }
    rows = list(costs(works, 1, duration=0.0))
    assert {row["encoder"] for row in rows} == {"softmax", "lstm"}
    assert {(row["metric"], row["work"]) for row in rows} == {
        ("seconds_per_second", "recognition"),
        ("times_softmax", "recognition"),
        ("seconds_per_second", "training"),
        ("times_softmax", "training"),
        ("peak_bytes", "training"),
    }
    assert len(cost_table(rows).rows) == 2


def test_scales_hold_what_they_promise() -> None:
    for scale in SCALES.values():
        trials = list(scale.trials())
        assert len({trial.name for trial in trials}) == len(trials)
        assert {trial.variant for trial in trials} == {"softmax", "linear", "lsh", "lstm"}
    works = SCALES["paper"].works()
    assert isinstance(works["linear"], Training)
    assert (works["linear"].model.layers, works["linear"].model.heads) == (9, 6)


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    page = speech_page(tmp_path, "quick")
    assert page.picture is None
    assert page.answer.startswith("0 of 5 claims held, 5 not decided")
