"""The infinity-former's experiment: verdicts on rows that are known, and the cost of a segment for real."""

from collections.abc import Sequence

import pytest

from subquad import Infinity
from subquad.experiments.infinity.context import context_rows
from subquad.experiments.infinity.grid import EVEN, SCALES, STICKY, WINDOW
from subquad.experiments.infinity.verdicts import constant, helps
from subquad.results import Row
from subquad.statistics import mean_over_seeds
from tests.experiments.runs import trial

TRIALS = [trial(f"{variant}-{seed}", variant, 4096, seed) for seed in range(3) for variant in (EVEN, STICKY, WINDOW)]


def rows(variant: str, accuracies: Sequence[float]) -> dict[str, list[Row]]:
    return {
        f"{variant}-{seed}": [
            {"metric": "token_accuracy", "value": 0.0, "step": 1},
            {"metric": "token_accuracy", "value": at},
        ]
        for seed, at in enumerate(accuracies)
    }


@pytest.mark.parametrize(
    ("even", "held"),
    [((0.5, 0.51, 0.49), True), ((0.5, 0.2, 0.3), None), ((0.1, 0.11, 0.12), False), ((0.5, 0.51), None)],
)
def test_help_is_judged_by_intervals_over_seeds(even: Sequence[float], held: bool | None) -> None:
    (found,) = helps(rows(EVEN, even) | rows(WINDOW, (0.2, 0.21, 0.22)), TRIALS, EVEN, WINDOW)
    assert found.held is held


def test_intervals_are_students() -> None:
    found = mean_over_seeds([1.0, 2.0, 3.0])
    assert (found.low, found.high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)  # t of 2 degrees, 4.303 / sqrt 3
    assert mean_over_seeds([1.0]).high == float("inf")


def test_the_cost_of_a_segment_is_measured_and_judged() -> None:
    found = context_rows(Infinity(segment=16, basis=8, widths=(0.1,)), (32, 256), heads=2, head_dim=4, seconds=0.0)
    sizes = {row["context"]: row["value"] for row in found if row["metric"] == "state_bytes"}
    assert sizes[32] == sizes[256] > 0
    assert [row["value"] for row in found if row["metric"] == "times_first" and row["context"] == 32] == [1.0]
    times = [row["value"] for row in found if row["metric"] == "times_first" and row["context"] == 256]
    assert times[0] > 0


@pytest.mark.parametrize(("times", "size", "held"), [(1.02, 100, True), (1.5, 100, False), (1.0, 200, False)])
def test_cost_is_judged(times: float, size: int, held: bool) -> None:
    measured: list[Row] = []
    for context, value, state in ((2048, 1.0, 100), (32768, times, size)):
        measured.append({"metric": "times_first", "value": value, "low": value, "high": value, "context": context})
        measured.append({"metric": "state_bytes", "value": state, "context": context})
    (found,) = constant(measured)
    assert found.held is held


def test_scales_hold_what_they_promise() -> None:
    for grid in SCALES.values():
        trials = list(grid.trials())
        assert len({trial.name for trial in trials}) == len(trials)
        assert {trial.variant for trial in trials} == {EVEN, STICKY, WINDOW}
        assert len({trial.seed for trial in trials}) >= 3
    assert {trial.length for trial in SCALES["quick"].trials()} == {1024, 4096, 8192}


def test_a_wide_interval_leaves_the_cost_open() -> None:
    measured: list[Row] = [
        {"metric": metric, "context": context, "value": value, "low": 0.7, "high": 1.6}
        for context in (2048, 32768)
        for metric, value in (("times_first", 1.05), ("state_bytes", 100))
    ]
    assert [verdict.held for verdict in constant(measured)] == [None]
