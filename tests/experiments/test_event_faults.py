"""Faults put back into event models: verdicts on figures that are known, their page, and a tiny run for real."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from subquad.cli import main, trainings
from subquad.experiments.events.experiment import EventsExperiment
from subquad.experiments.events.faults import ARMS, FAULT_SCALES, NAME, NONE, Trained, judge, trained
from subquad.experiments.events.faults_page import arm_points, batch_points, fault_table, faults_page
from subquad.experiments.events.grid import Source
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.training import TrainOptions
from tests.experiments.runs import finished_training
from tests.experiments.test_linformer import Done

RIGHT = {"nll": 1.0, "nll_of_truth": 0.9, "rmse_by_head": 2.0}
ARM_METRICS = {
    NONE: RIGHT,
    "sees-itself": RIGHT | {"nll": 3.0, "reported_nll": -0.5},
    "observed-type": RIGHT | {"nll": 1.5, "reported_nll": 0.2},
    "padding-loss": RIGHT | {"reported_nll": 1.0, "rmse_by_head": 5.0},
    "figures": RIGHT | {"nll": 0.99, "reported_nll": 0.99},
}


def fill(folder: Path, source: str = "simulated", seeds: int = 3) -> None:
    """Finished trainings of all arms; seeds differ by more than arms."""
    for arm, metrics in ARM_METRICS.items():
        for seed in range(seeds):
            rows: list[Row] = [
                {"metric": name, "value": value + seed, "split": "test", "step": 9} for name, value in metrics.items()
            ]
            if arm == "figures":
                rows += [
                    {"metric": "reported_rmse", "value": 2.0 * batch + seed, "split": "test", "step": 9, "batch": batch}
                    for batch in (1, 4, 64, 16)
                ]
            finished_training(folder / f"{NAME}-{source}-{arm}-{seed}", rows)


def test_every_fault_is_in_one_arm() -> None:
    named = [fault for faults in ARMS.values() for fault in faults]
    assert sorted(named) == sorted(["sees-itself", "observed-type", "padding-loss", "padding-rmse", "test-picks"])


def test_verdicts(tmp_path: Path) -> None:
    fill(tmp_path)
    verdicts = judge(tmp_path)
    assert [verdict.held for verdict in verdicts] == [True] * 7
    first = verdicts[0]
    assert (
        first.claim == "simulated, sees-itself: the reported negative log-likelihood is lower than that of the true process"
    )
    assert first.figures.startswith("-1.400 (-1.400 to -1.400)")
    assert "129 against 3" in next(verdict.figures for verdict in verdicts if "padding-rmse" in verdict.claim)
    assert judge(tmp_path / "nothing") == []


def test_without_the_true_process_the_model_without_the_fault_is_what_is_beaten(tmp_path: Path) -> None:
    fill(tmp_path, "our-own-events")
    assert {run.source for run in trained(tmp_path)} == {"our-own-events"}
    assert "lower than that of the model without the fault" in judge(tmp_path)[0].claim
    assert judge(tmp_path)[0].figures.startswith("-1.500")


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    fill(tmp_path, seeds=1)
    assert {verdict.held for verdict in judge(tmp_path)} == {None}


def test_the_page_has_reported_and_right_figures(tmp_path: Path) -> None:
    fill(tmp_path)
    runs = trained(tmp_path)
    assert [point["value"] for point in arm_points(runs, "simulated", "sees-itself")] == [
        -0.5,
        0.5,
        1.5,
        3,
        4,
        5,
        0.9,
        1.9,
        2.9,
    ]
    assert [point["batch"] for point in batch_points(runs, "simulated")][:4] == [1, 4, 16, 64]
    table = fault_table(runs, "simulated")
    assert table.rows[0][0].text == "no fault"
    assert {len(row) for row in table.rows} == {len(table.columns)}
    page = faults_page(tmp_path)
    assert [picture.name for picture in page.pictures] == ["faults_nll_simulated", "faults_rmse_simulated"]
    assert faults_page(tmp_path / "nothing").picture is None


def test_trials_name_their_faults() -> None:
    trials = list(FAULT_SCALES[NAME].trials())
    assert len(trials) == 15
    assert {trial.variant: trial.work.task.faults for trial in trials} == ARMS  # type: ignore[union-attr]


def test_a_tiny_run_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FAULT_SCALES[NAME]
    task = replace(grid.by_source["simulated"].task, sequences=10, inner=4)
    source = Source(ModelOptions(layers=1, heads=1, head_dim=4), TrainOptions(batch=2, steps=1), task)
    tiny = replace(grid, seeds=(0,), by_source={"simulated": source})
    monkeypatch.setattr(EventsExperiment, "scales", {NAME: tiny})
    monkeypatch.setattr(trainings, "start_process", Done)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "events", "--scale", NAME, "--out", "run"]) == 0
    runs: list[Trained] = trained(Path("run"))
    assert [run.arm for run in runs] == list(ARMS)
    assert not (Path("run") / "costs").exists()
    page = Path("run/report.html").read_text()
    assert "faults_nll_simulated" in page
    assert "subquad reproduce events --scale faults" in page
    about = json.loads(Path("run/faults-simulated-sees-itself-0/run.json").read_text())
    assert about["options"]["task"]["faults"] == ["sees-itself"]
