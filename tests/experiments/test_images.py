"""Writing images: verdicts on rows that are known, the integral over places, and a tiny measurement for real."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from subquad.experiments.base import Training
from subquad.experiments.images.grid import SCALES, Written
from subquad.experiments.images.page import images_page, speed_table
from subquad.experiments.images.throughput import CACHED, LINEAR, RECOMPUTED, seconds_of_images, throughput
from subquad.experiments.images.verdicts import as_good, best_rates, faster
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.tasks.images.model import Shape

TINY = Written(Shape(3, 4, 1), ModelOptions(layers=1, heads=1, head_dim=4), {"linear": 10.0, "cached": 2.0})
TRIALS = [trial for trial in SCALES["quick"].trials() if trial.variant in ("softmax", "linear")]


def test_seconds_of_an_image_are_an_integral() -> None:
    """t(n) = 1 + 2 n is its own trapezoid; one place stands for all."""
    places = {place: [1 + 2 * place, 2 * (1 + 2 * place)] for place in (0, 3, 10)}
    assert seconds_of_images(places, 10).tolist() == pytest.approx([110, 220])
    assert seconds_of_images({5: [2.0, 3.0]}, 10).tolist() == [20, 30]


def ratio(times: float, other: str = RECOMPUTED, spread: float = 0.01) -> Row:
    row = {"metric": f"times_{other}", "method": LINEAR, "values": TINY.values}
    return {**row, "value": times, "low": times * (1 - spread), "high": times * (1 + spread)}


@pytest.mark.parametrize(("times", "held"), [(12.0, True), (8.0, False), (10.0, None)])
def test_speed_is_judged_against_the_published_ratio(times: float, held: bool | None) -> None:
    recomputed, cached = faster([ratio(times), ratio(times, CACHED)], TINY)
    assert recomputed.claim == "linear writes images of 12 values 10 times as fast as softmax, recomputed"
    assert recomputed.held is held
    assert cached.held is True  # 5 times are published
    assert [verdict.held for verdict in faster([], TINY)] == [None, None]


def trained(bits: Sequence[float], name: str) -> dict[str, list[Row]]:
    return {
        f"images-{name}-{seed}": [{"metric": "bits_per_dimension", "split": "test", "value": value}]
        for seed, value in enumerate(bits)
    }


@pytest.mark.parametrize(
    ("bits", "held"), [([1.0, 1.1, 1.2], True), ([1.2, 1.32, 1.44], False), ([0.9, 1.1, 1.4], None), ([1.0, 1.1], None)]
)
def test_quality_is_judged(bits: Sequence[float], held: bool | None) -> None:
    (linear,) = as_good(trained([1.0, 1.1, 1.2], "softmax") | trained(bits, "linear"), TRIALS)
    assert (linear.claim, linear.held) == ("linear needs at most 1.04 times softmax's bits per dimension", held)


def test_a_tiny_measurement_has_all_methods() -> None:
    rows = list(throughput(TINY, seconds=0.0, rounds=2))
    best = best_rates(rows, TINY.values)
    assert best.keys() == {RECOMPUTED, CACHED, LINEAR}
    assert all(0 < row["low"] <= row["value"] <= row["high"] for row in rows)
    by_metric = {(row["metric"], row["method"]): row for row in rows if "batch" not in row}
    assert by_metric.keys() == {("times_recomputed", CACHED), ("times_recomputed", LINEAR), ("times_cached", LINEAR)}
    assert len(speed_table(rows).rows) == len(rows)
    assert all("images a second: softmax, recomputed" in verdict.figures for verdict in faster(rows, TINY))


def test_scales_hold_what_they_promise() -> None:
    for scale in SCALES.values():
        trials = list(scale.trials())
        assert len({trial.name for trial in trials}) == len(trials)
        assert {"linear", "softmax", "lsh"} == {trial.variant for trial in trials}
        assert [written.values for written in scale.written] == [784, 3072]
    work = next(iter(SCALES["paper"].trials())).work
    assert isinstance(work, Training)
    assert (work.model.layers, work.model.heads, work.model.model_dim, work.options.batch) == (8, 8, 256, 10)


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    page = images_page(tmp_path, "quick")
    assert page.picture is None
    assert page.answer.startswith("0 of 6 claims held, 6 not decided")
