"""Rows about predictions: baselines, curves and confusion."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from subquad.tasks.targets.judging import compared_rows, curve_rows, trivial_rows
from subquad.tasks.targets.kinds import Classes, Number
from subquad.tasks.targets.survival import Event

RNG = np.random.default_rng(0)
TWO = Classes(("no", "yes"))
TRUTH = RNG.integers(0, 2, (200, 1)).astype(float)


def by_metric(rows: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["metric"], []).append(row)
    return found


def test_baselines_and_the_gap_to_each() -> None:
    noise = RNG.random((200, 1))
    good, bad = 0.7 * TRUTH + 0.3 * noise, noise
    rows = by_metric(compared_rows(TWO, TRUTH, bad, {"good": good}))
    (gap,) = rows["auroc_gained"]
    assert gap["baseline"] == "good"
    assert gap["high"] < 0
    ours, theirs = rows["auroc"]
    assert gap["value"] == pytest.approx(ours["value"] - theirs["value"])
    assert (ours["split"], theirs["split"]) == ("test", "baseline")
    same = by_metric(trivial_rows(TWO, TRUTH, TWO.trivial(TRUTH)))
    assert same["auroc"][0]["value"] == 0.5
    assert same["accuracy"][0]["value"] == pytest.approx(max(TRUTH.mean(), 1 - TRUTH.mean()))


def test_curves_of_two_classes() -> None:
    score = np.clip(0.5 * TRUTH + 0.5 * RNG.random((200, 1)), 0, 1)
    rows = by_metric(curve_rows(TWO, TRUTH, score))
    roc = [(row["false_positives"], row["value"]) for row in rows["roc"]]
    assert (roc[0], roc[-1]) == ((0.0, 0.0), (1.0, 1.0))
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(roc))
    assert area == pytest.approx(TWO.metrics(TRUTH, score, 0)["auroc"][0], abs=0.01)
    assert rows["precision"][-1]["value"] == pytest.approx(TRUTH.mean())
    assert sum(row["clients"] for row in rows["calibration"]) == 200
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows["calibration"])
    cells = {(row["right"], row["answered"]): row["value"] for row in rows["confusion"]}
    assert sum(cells.values()) == 200
    assert cells["yes", "yes"] == ((TRUTH == 1) & (score >= 0.5)).sum()


def test_curves_of_other_targets() -> None:
    three = RNG.integers(0, 3, (60, 1)).astype(float)
    rows = by_metric(curve_rows(Classes(("a", "b", "c")), three, RNG.dirichlet(np.ones(3), 60)))
    assert set(rows) == {"calibration", "confusion"}
    numbers = RNG.standard_normal((60, 1))
    assert len(list(curve_rows(Number(0.0, 1.0), numbers, numbers))) == 10
    times = np.stack([RNG.exponential(1.0, 60), RNG.integers(0, 2, 60)], axis=1)
    target = Event.learned(times)
    alive = target.predict(RNG.standard_normal((60, target.outputs)))
    assert {row["metric"] for row in curve_rows(target, times, alive)} == {"calibration"}
