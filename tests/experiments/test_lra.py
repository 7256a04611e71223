"""The Long Range Arena: its trainings, the search of the learning rate, verdicts on rows that are known, and its page."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from subquad.attention import MECHANISMS
from subquad.cli import main, trainings
from subquad.compare.views import Comparison
from subquad.experiments.base import Instruments, Scale, Training, Trial
from subquad.experiments.lra.charts import accuracy_picture, tradeoff_picture
from subquad.experiments.lra.grid import SCALES
from subquad.experiments.lra.page import lra_page, published_table, result_table, setting_table
from subquad.experiments.lra.published import ACCURACIES, COUNTERPARTS, gaps
from subquad.experiments.lra.runs import Score, scores
from subquad.experiments.lra.verdicts import differs, is_faster, judge, learns, no_winner
from subquad.experiments.registry import EXPERIMENTS
from subquad.report.page import Page
from subquad.results import Row
from subquad.statistics import Interval, Verdict
from tests.compare.rows import SECONDS, rows
from tests.experiments.runs import finished_training
from tests.experiments.test_linformer import Done
from tests.experiments.test_registry import Pair, PairExperiment

QUICK = SCALES["quick"]
KINDS = ("lra-listops", "lra-text", "lra-retrieval", "lra-image", "lra-pathfinder")


def test_scales_hold_what_they_promise() -> None:
    for grid in SCALES.values():
        trials = list(grid.trials())
        assert len({trial.name for trial in trials}) == len(trials)
        assert {trial.variant for trial in trials} == set(MECHANISMS)
        assert {plan.task.kind for plan in grid.plans} == set(KINDS)
        assert all(plan.seeds[0] == trial.seed for plan in grid.plans[:1] for trial in trials)
        for plan in grid.plans:
            of_task = [trial for trial in trials if trial.name.startswith(plan.task.kind)]
            works = [trial.work for trial in of_task if isinstance(trial.work, Training)]
            assert len({(work.model, work.options.steps, work.options.batch) for work in works}) == 1
            tried = {trial.variant: set() for trial in of_task}  # type: ignore[var-annotated]
            for trial, work in zip(of_task, works, strict=True):
                tried[trial.variant].add(work.options.learning_rate)
            assert set(map(frozenset, tried.values())) == {frozenset(plan.rates)}


def finish(folder: Path, trial: Trial, held_out: float, test: float, guessing: float = 0.1) -> None:
    about = {"step": 9}
    made: list[Row] = [
        {"metric": "accuracy", "value": held_out, "split": "held out", **about},
        {"metric": "tokens_per_second", "value": 1000.0, "split": "train", **about},
        {"metric": "accuracy", "value": test, "low": test - 0.04, "high": test + 0.05, "split": "test", **about},
        {"metric": "accuracy_of_most_frequent", "value": guessing, "split": "test", **about},
    ]
    finished_training(folder / trial.name, made, {"task": {"data": ""}, "mechanism": {"kind": trial.variant}})


def test_other_seeds_are_trained_at_the_rate_that_is_best_in_development(tmp_path: Path) -> None:
    plan = QUICK.plans[0]
    low, high = plan.rates
    first, second, _ = plan.seeds
    assert list(QUICK.later_trials(tmp_path)) == []
    finish(tmp_path, QUICK.trial(plan, "linear", low, first), 0.5, 0.3)
    assert QUICK.best_rate(tmp_path, plan, "linear") is None  # one rate is missing
    finish(tmp_path, QUICK.trial(plan, "linear", high, first), 0.4, 0.9)  # better on the test, which does not count
    assert QUICK.best_rate(tmp_path, plan, "linear") == low
    later = list(QUICK.later_trials(tmp_path))
    assert [(trial.variant, trial.seed) for trial in later] == [("linear", seed) for seed in plan.seeds[1:]]
    assert all(isinstance(trial.work, Training) and trial.work.options.learning_rate == low for trial in later)
    (score,) = scores(tmp_path, QUICK)
    assert (score.mechanism, score.rate, score.accuracies, score.is_complete) == ("linear", low, {first: 0.3}, False)
    assert score.accuracy == pytest.approx((0.3, 0.26, 0.35))  # over test sequences, as one seed tells nothing of others
    finish(tmp_path, later[0], 0.0, 0.5)
    (score,) = scores(tmp_path, QUICK)
    assert score.accuracies == {first: 0.3, second: 0.5}
    assert score.accuracy.low < 0


def test_data_are_found_by_the_names_of_folders(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    grid = replace(QUICK, data=str(tmp_path))
    data: dict[str, Any] = {
        trial.name.partition("-softmax")[0]: trial.work.task.data  # type: ignore[union-attr]
        for trial in grid.trials()
        if trial.variant == "softmax"
    }
    assert data == dict.fromkeys(KINDS, "") | {"lra-text": str(tmp_path / "text")}


def test_a_folder_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "lra", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "holds nothing for the Long Range Arena: there should be some of the folders listops" in capsys.readouterr().err


class Later(Scale):
    """One training after that of another scale."""

    def trials(self) -> Iterator[Trial]:
        yield from list(Pair(minutes="").trials())[:1]

    def later_trials(self, folder: Path) -> Iterator[Trial]:
        assert (folder / "pair-softmax" / "run.json").exists()
        yield from list(Pair(minutes="").trials())[1:]


def test_trainings_that_depend_on_others_come_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged: list[Path] = []

    def judge_nothing(experiment: PairExperiment, folder: Path, scale: str) -> list[Verdict]:
        judged.append(folder)
        return []

    monkeypatch.setattr(PairExperiment, "scales", {"quick": Later(minutes="a second")})
    monkeypatch.setattr(PairExperiment, "judge", judge_nothing)
    page = Page("Two trainings", "One after the other.")
    monkeypatch.setattr(PairExperiment, "page", lambda self, folder, scale: page)
    monkeypatch.setitem(EXPERIMENTS, "pair", PairExperiment())
    monkeypatch.setattr(trainings, "start_process", Done)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "pair"]) == 0
    assert (judged[0] / "pair-linear" / "checkpoint").exists()


def score(task: str, name: str, accuracies: tuple[float, ...], guessing: float = 0.1) -> Score:
    return Score(
        task=task,
        mechanism=name,
        rate=1e-3,
        accuracies=dict(enumerate(accuracies)),
        guessing=guessing,
        tokens_per_second=1.0,
        planned=3,
        tested=Interval(accuracies[0], 0.0, 1.0),
    )


def all_scores(values: Mapping[str, tuple[float, ...]]) -> list[Score]:
    """The same for each task and mechanism, except for those named."""
    return [score(task, name, values.get(name, (0.5, 0.51, 0.49))) for task in KINDS for name in MECHANISMS]


def test_learning_is_judged_by_the_most_frequent_class() -> None:
    assert {verdict.held for verdict in learns(all_scores({}), QUICK)} == {True}
    assert {verdict.held for verdict in learns(all_scores({"lsh": (0.05, 0.06, 0.05)}), QUICK)} == {False}
    assert {verdict.held for verdict in learns(all_scores({"lsh": (0.05, 0.3, 0.05)}), QUICK)} == {None}
    assert {verdict.held for verdict in learns(all_scores({})[:-1], QUICK)} == {True, None}
    guessing = all_scores({})[0].guessing
    assert {verdict.held for verdict in learns(all_scores({"lsh": (guessing,) * 3}), QUICK)} == {None}  # no better, no worse


def test_published_differences_have_a_sign() -> None:
    found = {verdict.claim: verdict.held for verdict in differs(all_scores({"linear": (0.3, 0.31, 0.29)}))}
    assert found["linear is below softmax on listops"] is True
    assert found["linear is above softmax on pathfinder"] is False
    assert found["favor is below softmax on listops"] is None
    assert all("published" in verdict.figures for verdict in differs(all_scores({})))


def test_nobody_wins_or_somebody_may() -> None:
    (found,) = no_winner(all_scores({}), QUICK)
    assert found.held is None
    first = [
        replace(entry, accuracies={0: 0.9, 1: 0.9, 2: 0.91}) if entry.mechanism == name else entry
        for entry in all_scores({})
        for name in ["linear" if entry.task == "lra-text" else "softmax"]
    ]
    (found,) = no_winner(first, QUICK)
    assert found.held is True
    assert list(no_winner(first[:-1], QUICK)) == []


def test_speed_is_judged_beside_fused_softmax() -> None:
    seconds = {name: SECONDS[name] for name in ("softmax", "linear", "favor")}
    timing = Comparison(rows(seconds, views=[("bidirectional", "training")]))
    found = list(is_faster(timing))
    assert [verdict.claim.partition(" ")[0] for verdict in found] == ["linear", "favor"]
    assert all("published" in verdict.figures for verdict in found)


def test_costs_stand_beside_accuracies_once_they_are_timed() -> None:
    timing = Comparison(rows({name: SECONDS[name] for name in ("softmax", "linear")}, views=[("bidirectional", "training")]))
    view = timing.views[0]
    timed = result_table(all_scores({}), timing, view)
    length = max(timing.lengths(view, "softmax"))
    assert timed.columns[-2:] == [f"times as fast as fused softmax, {length} tokens", f"memory, {length} tokens"]
    assert {len(row) for row in timed.rows} == {len(timed.columns)}
    speeds = {row[0].text: row[-2].text for row in timed.rows}
    assert (speeds["softmax"], speeds["favor"]) == ("1", "-")
    assert "to" in speeds["linear"]
    untimed = result_table(all_scores({}), Comparison([]), None)
    assert untimed.columns[-1] == "mean"
    assert {len(row) for row in untimed.rows} == {len(untimed.columns)}


def test_accuracies_stand_in_a_panel_for_each_task_that_tells_who_is_above_guessing() -> None:
    drawn = accuracy_picture(all_scores({"lsh": (0.05, 0.3, 0.05)})).chart.to_dict()
    assert [panel["title"] for panel in drawn["concat"]] == [f"{kind.removeprefix('lra-')}, 3 seeds" for kind in KINDS]
    rows = drawn["concat"][0]["layer"][1]["data"]["values"]
    assert {row["attention"] for row in rows if row["beside"] == "not above guessing"} == {"lsh"}
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in rows)


def test_speed_is_drawn_against_tasks_with_several_seeds() -> None:
    timing = Comparison(rows({name: SECONDS[name] for name in ("softmax", "linear")}, views=[("bidirectional", "training")]))
    measured = [
        replace(entry, accuracies={0: 0.9}, planned=1) if entry.task == "lra-pathfinder" else entry
        for entry in all_scores({"linear": (0.4, 0.2, 0.3)})
    ]
    picture = tradeoff_picture(measured, timing, timing.views[0])
    assert picture is not None
    assert picture.caption.startswith("Mean accuracy over listops, text, retrieval, image against speed")
    points = {row["attention"]: row for row in picture.chart.to_dict()["data"]["values"]}
    assert set(points) == {"softmax", "linear"}
    assert points["linear"]["accuracy"] == pytest.approx(0.3)
    assert points["linear"]["low"] == pytest.approx(0.3 - 4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert tradeoff_picture([], timing, timing.views[0]) is None
    assert tradeoff_picture(measured, Comparison([]), None) is None


def test_published_figures_are_those_of_the_paper() -> None:
    averages = {"Transformer": 54.39, "Linformer": 51.36, "Reformer": 50.67, "BigBird": 55.01}
    averages |= {"Linear Transformer": 50.55, "Performer": 51.41}
    for model, accuracies in ACCURACIES.items():
        assert sum(accuracies) / 5 == pytest.approx(averages[model], abs=0.006)
    assert len(published_table().rows) == len(averages)
    assert set(COUNTERPARTS.values()) == set(averages)
    assert ("lra-listops", "linear", -20.24) in gaps(3)


def test_a_page_of_what_is_finished(tmp_path: Path) -> None:
    page = lra_page(tmp_path, "quick")
    assert page.picture is None
    plan = QUICK.plans[0]
    for name in ("softmax", "linear"):
        for rate in plan.rates:
            for test, seed in zip((0.3, 0.31, 0.32), plan.seeds, strict=True):
                finish(tmp_path, QUICK.trial(plan, name, rate, seed), 0.4, test, 0.15)
    page = lra_page(tmp_path, "quick")
    assert page.picture is not None
    assert "listops: drawn by the grammar" in page.about
    assert judge(tmp_path, "quick")[0].figures == "2 of 11 attentions done"
    assert "31.0% (28.5%&nbsp;to&nbsp;33.5%)" in page.folds[1].parts[1]


@pytest.mark.parametrize(("scale", "pixels"), [("quick", "256"), ("paper", "1,024")])
def test_settings_name_the_length_of_the_data(scale: str, pixels: str) -> None:
    settings = setting_table(SCALES[scale], {"lra-image": "cifar"})
    lengths = {row[0].text: row[1].text for row in settings.rows}
    assert lengths["image"] == pixels
    assert set(lengths) == {kind.removeprefix("lra-") for kind in KINDS}


def test_what_is_measured_is_time(tmp_path: Path) -> None:
    asked: list[Path] = []
    instruments = Instruments(time=lambda folder, timing: asked.append(folder), look=lambda *folders: None)
    EXPERIMENTS["lra"].measure(tmp_path, "quick", instruments)
    assert asked == [tmp_path / "timing"]
    assert set(QUICK.timing.plan.variants) == set(MECHANISMS)
