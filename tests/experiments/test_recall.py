"""The experiment on recall: its trainings, verdicts on rows that are known, and its page."""

from itertools import product
from pathlib import Path

import pytest

from subquad.attention import MECHANISMS
from subquad.experiments.base import Training, Trial
from subquad.experiments.recall.grid import CAUSAL, SCALES
from subquad.experiments.recall.page import recall_page, state_picture
from subquad.experiments.recall.runs import Remembered, remembered
from subquad.experiments.recall.verdicts import grows, judge, reaches, solved
from subquad.results import Row
from tests.experiments.runs import finished_training

QUICK = SCALES["quick"]
SMALLEST, LARGEST = QUICK.sizes[0].head_dim, QUICK.sizes[-1].head_dim


def result(name: str, head_dim: int, accuracies: tuple[float, ...], task: str = "recall", planned: int = 3) -> Remembered:
    return Remembered(
        task=task,
        mechanism=name,
        head_dim=head_dim,
        rate=1e-3,
        accuracies=dict(enumerate(accuracies)),
        state_bytes=4.0 * head_dim,
        planned=planned,
    )


def test_every_causal_mechanism_is_tried_with_states_that_grow() -> None:
    assert {name for name in MECHANISMS if MECHANISMS[name]().traits.causal} == set(CAUSAL)
    for grid in SCALES.values():
        trials = list(grid.trials())
        assert len({trial.name for trial in trials}) == len(trials)
        assert {trial.variant for trial in trials} == set(CAUSAL)
        assert len(trials) == len(CAUSAL) * len(grid.rates) * (len(grid.sizes) + 1)
        rates: dict[tuple[str, str, int], set[float]] = {}
        for trial in trials:
            assert isinstance(trial.work, Training)
            assert trial.work.model.head_dim == trial.length
            tried = rates.setdefault((trial.work.task.kind, trial.variant, trial.length), set())
            tried.add(trial.work.options.learning_rate)
        assert all(tried == set(grid.rates) for tried in rates.values())


def test_mechanisms_that_hold_more_have_larger_states() -> None:
    """The state of every mechanism grows with the sizes of the scale."""
    for name in CAUSAL:
        states = []
        for size in QUICK.sizes:
            work = next(
                t.work for t in QUICK.trials() if (t.variant, t.length, t.seed) == (name, size.head_dim, QUICK.seeds[0])
            )
            assert isinstance(work, Training)
            task = QUICK.recall
            states.append(task.state_bytes(task.build(work.attention, work.model)))
        assert states == sorted(set(states)), name


def test_verdicts_on_what_is_recalled() -> None:
    whole = result("softmax", SMALLEST, (1.0, 1.0, 0.999))
    (found,) = solved([whole], QUICK)
    assert found.held is True
    assert found.figures.endswith(" to 100.0%) recalled")
    (found,) = solved([result("softmax", SMALLEST, (0.9, 0.8, 0.85))], QUICK)
    assert found.held is False
    (found,) = solved([result("softmax", SMALLEST, (0.9,))], QUICK)
    assert (found.held, found.figures) == (None, "1 of 3 runs done")
    (found,) = solved([result("linear", LARGEST, (0.2, 0.21, 0.2), task="induction")], QUICK)
    assert found.held is False
    assert "linear answers at least 99% of induction's questions" in found.claim


@pytest.mark.parametrize(
    ("few", "many", "held"),
    [
        ((0.2, 0.21, 0.22), (0.5, 0.52, 0.51), True),
        ((0.5, 0.52, 0.51), (0.2, 0.21, 0.22), False),
        ((0.2, 0.5, 0.3), (0.4, 0.4, 0.4), None),
        ((0.2, 0.21), (0.5, 0.52, 0.51), None),
    ],
)
def test_a_larger_state_is_judged_seed_by_seed(few: tuple[float, ...], many: tuple[float, ...], held: bool | None) -> None:
    (found,) = grows([result("linear", SMALLEST, few), result("linear", LARGEST, many)], QUICK)
    assert found.held is held


@pytest.mark.parametrize(("ours", "held"), [((0.995, 1.0, 0.998), True), ((0.3, 0.31, 0.3), False), ((0.9, 1.0, 1.0), None)])
def test_softmax_is_reached_or_not(ours: tuple[float, ...], held: bool | None) -> None:
    (found,) = reaches([result("softmax", LARGEST, (1.0, 1.0, 1.0)), result("hybrid", LARGEST, ours)], QUICK)
    assert found.held is held


def finish(folder: Path, trial: Trial, development: float, test: float) -> None:
    rows: list[Row] = [{"metric": "accuracy", "value": development, "step": 1, "split": "held out"}]
    values = {"accuracy": test, "state_bytes": 100.0 * trial.length}
    rows += [{"metric": name, "value": value, "step": 9, "split": "test"} for name, value in values.items()]
    options = {"model": {"head_dim": trial.length}, "mechanism": {"kind": trial.variant}}
    finished_training(folder / trial.name, rows, options)


def test_other_seeds_are_trained_at_the_rate_that_is_best_in_development(tmp_path: Path) -> None:
    cell = next(cell for cell in QUICK.cells() if cell.mechanism == "linear")
    (high, low), (first, second, third) = QUICK.rates, QUICK.seeds
    finish(tmp_path, QUICK.trial(cell, high, first), 0.4, 0.9)
    assert list(QUICK.later_trials(tmp_path)) == []  # one rate is missing
    assert remembered(tmp_path, QUICK) == []
    finish(tmp_path, QUICK.trial(cell, low, first), 0.5, 0.6)  # worse on the test, which does not count
    later = list(QUICK.later_trials(tmp_path))
    assert [trial.name for trial in later] == [QUICK.trial(cell, low, seed).name for seed in (second, third)]
    finish(tmp_path, later[0], 0.1, 0.7)
    (found,) = remembered(tmp_path, QUICK)
    assert (found.mechanism, found.head_dim, found.rate) == ("linear", LARGEST, low)
    assert found.accuracies == {first: 0.6, second: 0.7}
    assert not found.is_complete


def test_a_page_of_what_is_finished(tmp_path: Path) -> None:
    """Two seeds of two mechanisms are enough for a picture; nothing is decided by them."""
    assert judge(tmp_path, "quick") == []
    assert recall_page(tmp_path, "quick").picture is None
    for cell, rate, seed in product(QUICK.cells(), QUICK.rates, QUICK.seeds[:2]):
        if cell.mechanism in ("softmax", "linear"):
            finish(tmp_path, QUICK.trial(cell, rate, seed), 0.1, 0.9 if cell.mechanism == "softmax" else 0.3)
    page = recall_page(tmp_path, "quick")
    assert page.picture is not None
    assert {verdict.held for verdict in judge(tmp_path, "quick")} == {None}
    assert len(page.pictures) == 3
    shown = page.folds[1].parts[2]
    assert "90.0% (90.0%&nbsp;to&nbsp;90.0%)" in shown
    assert "3.20" in shown


def test_one_seed_is_drawn_without_an_interval() -> None:
    """Its interval is infinite, and would cover the whole height of the picture."""
    found = [result("linear", SMALLEST, (0.4,)), result("softmax", SMALLEST, (0.9, 0.8, 0.85))]
    drawn = state_picture(found, QUICK).chart.to_dict()
    rows = {row["label"]: row for row in drawn["layer"][0]["data"]["values"]}
    assert list(rows) == ["softmax", "linear"]  # in the order of the curves, so that colours are the same
    assert "low" not in rows["linear"]
    assert 0 < rows["softmax"]["low"] < 0.85 < rows["softmax"]["high"] <= 1
