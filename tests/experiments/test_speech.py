"""Speech: verdicts on rows that are known, and costs that are measured on a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest

from subquad.experiments.base import Training
from subquad.experiments.speech.costs import costs
from subquad.experiments.speech.grid import SCALES
from subquad.experiments.speech.page import cost_table, speech_page
from subquad.experiments.speech.verdicts import Rates, faster, gap, learned, near, ordered
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.statistics import Interval

TINY = ModelOptions(layers=1, heads=1, head_dim=4)


def one_seed(**rates: float) -> Rates:
    return {name: {0: Interval(rate, rate - 0.01, rate + 0.01)} for name, rate in rates.items()}


@pytest.mark.parametrize(("rate", "held"), [(0.3, True), (0.4, False), (0.35, None)])
def test_softmax_has_to_learn(rate: float, held: bool | None) -> None:
    (verdict,) = learned(one_seed(softmax=rate))
    assert (verdict.claim, verdict.held) == ("softmax's error rate is below 35%", held)
    (nothing,) = learned({})
    assert nothing.held is None


@pytest.mark.parametrize(("linear", "held"), [(0.3, True), (0.4, False), (0.32, None)])
def test_linear_has_to_be_near(linear: float, held: bool | None) -> None:
    (verdict,) = near(one_seed(softmax=0.3, linear=linear))
    assert verdict.claim == "linear's error rate is at most 2 points above softmax's"
    assert verdict.held is held


def test_gaps_join_the_intervals_of_one_seed_or_compare_seeds() -> None:
    single = gap(one_seed(softmax=0.3, linear=0.34), "linear", "softmax")
    assert single == pytest.approx((0.04, 0.04 - 0.01 * 2**0.5, 0.04 + 0.01 * 2**0.5))
    several = {
        name: {seed: Interval(rate + seed / 10, 0, 1) for seed in range(3)} for name, rate in (("a", 0.3), ("b", 0.2))
    }
    assert gap(several, "a", "b") == pytest.approx((0.1, 0.1, 0.1))
    assert gap({}, "a", "b") is None


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
