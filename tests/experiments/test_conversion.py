"""Conversions of a masked language model: verdicts on rows that are known, and a tiny run for real."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from subquad.attention import Linear
from subquad.cli import main, trainings
from subquad.conversion import ConversionOptions
from subquad.experiments.base import Conversion, Trial, is_finished
from subquad.experiments.conversion.grid import (
    ADAPTED,
    CALIBRATED,
    CONVERSIONS,
    ELU,
    FAVOR,
    HYBRID,
    LEARNED,
    SCALES,
    WAYS,
    WINDOW,
    Grid,
    Way,
)
from subquad.experiments.conversion.page import CHARTS, points, published_table, way_table
from subquad.experiments.conversion.verdicts import (
    CONTROL,
    Converted,
    calibrating_helps,
    compatible,
    converted,
    fails,
    judge,
    learned,
    matching_helps,
    nats,
    recovers,
    rest_helps,
)
from subquad.feature_maps import Elu
from subquad.files import write_whole
from subquad.models import ModelOptions
from subquad.results import Row, Run
from subquad.tasks import Mlm
from subquad.training import TrainOptions
from tests.experiments.runs import finished_training
from tests.experiments.test_linformer import Done, held

QUICK = SCALES["quick"]


def row(stage: str, value: float, **more: Any) -> Row:
    return {"metric": "perplexity", "value": value, "stage": stage, "split": "test", "step": 0, "elapsed": 1.0, **more}


def runs(perplexities: Mapping[Way, Mapping[str, float]], seeds: int = 3) -> list[Converted]:
    """Seeds differ by far more than ways."""
    found = []
    for way, stages in perplexities.items():
        for seed in range(seeds):
            rows = [row(stage, value * 2**seed * (1 + 0.001 * (seed - 1))) for stage, value in stages.items()]
            rows += [row(stage, 999.0, split="watched", step=5) for stage in stages]
            found.append(Converted(way, seed, Run(Path(), {}), rows))
    return found


def test_the_failure_is_that_of_the_swap_and_of_what_is_fine_tuned() -> None:
    given = {CONTROL: {"original": 10.0, "tuned": 8.0}, Way(FAVOR): {"swapped": 50.0, "tuned": 12.0}}
    first, second = fails(runs(given))
    assert (first.held, second.held) == (True, False)
    assert "5.000 (5.000 to 5.000) times: 100.0 against 20.0" in first.figures
    assert "1.500" in second.figures
    assert [verdict.held for verdict in fails(runs(given, seeds=1))] == [None, None]  # one seed decides nothing
    assert list(fails([])) == []


def test_compatibility_is_judged_beside_the_original_with_its_cost() -> None:
    given = {CONTROL: {"original": 10.0, "tuned": 8.0}, Way(FAVOR): {"swapped": 50.0, "tuned": 10.2}}
    (verdict,) = compatible(runs(given), QUICK)
    assert verdict.held
    assert "1.020" in verdict.figures
    assert verdict.figures.endswith(
        "at the cost of 120 steps, which read 15% of the tokens that the original's training read"
    )
    given[Way(FAVOR)] = {"tuned": 12.0}
    (verdict,) = compatible(runs(given), replace(QUICK, original="a model"))
    assert verdict.held is False
    assert verdict.figures.endswith("at the cost of 120 steps")
    assert list(compatible([], QUICK)) == []


def test_the_published_curves_stand_beside_ours() -> None:
    """The published words, perplexities here before and after fine-tuning, and seconds per step."""
    found = runs({CONTROL: {"original": 10.0, "swapped": 10.0, "tuned": 8.0}, Way(FAVOR): {"swapped": 50.0, "tuned": 12.0}})
    favor, softmax = published_table(found).rows
    assert "much higher" in favor[1].text
    assert [cell.value for cell in favor[2:4]] == pytest.approx([100.0, 24.0], rel=1e-3)
    assert [cell.value for cell in softmax[2:4]] == pytest.approx([20.0, 16.0], rel=1e-3)
    assert favor[4].value == pytest.approx(1 / 5)  # one second in five steps
    assert [row[2].text for row in published_table([]).rows] == ["-", "-"]


def test_the_scale_for_a_trial_is_of_the_size_of_distilbert() -> None:
    trial = SCALES["trial"]
    assert (trial.model.layers, trial.model.heads, trial.model.head_dim) == (6, 12, 64)
    assert trial.task.vocabulary_size == 30_522
    assert {one.work.options.tune_steps for one in replace(trial, original="x").trials()} == {1, 2}  # type: ignore[union-attr]


def test_ways_are_judged_beside_softmax_fine_tuned_as_long() -> None:
    given = {
        CONTROL: {"original": 10.0, "tuned": 8.0},
        Way(ELU): {"swapped": 50.0, "tuned": 9.0},
        Way(LEARNED): {"swapped": 50.0, "tuned": 8.3},
        Way(HYBRID, is_matched=True): {"swapped": 11.0, "distilled": 10.0, "tuned": 8.1},
    }
    within = "perplexity within 1.05 times that of softmax fine-tuned as long"
    assert held(list(recovers(runs(given), QUICK))) == {
        f"elu + 1: fine-tuning alone brings {within}": False,  # though it is better than the original was
        f"learned map: fine-tuning alone brings {within}": True,
        f"hybrid: matching and fine-tuning bring {within}": True,
    }


@pytest.mark.parametrize(("matched", "is_better"), [(9.0, True), (11.0, False)])
def test_matching_is_judged_beside_fine_tuning_alone(matched: float, is_better: bool) -> None:
    given = {Way(LEARNED): {"tuned": 10.0}, Way(LEARNED, is_matched=True): {"tuned": matched}}
    assert [verdict.held for verdict in matching_helps(runs(given))] == [is_better]


def test_calibration_and_what_is_beyond_the_window_are_judged() -> None:
    given = {
        Way(FAVOR): {"tuned": 10.0},
        Way(CALIBRATED): {"swapped": 50.0, "calibrated": 30.0, "tuned": 11.0},
        Way(ADAPTED, is_matched=True): {"tuned": 9.0},
        Way(WINDOW): {"tuned": 8.0},
        Way(HYBRID): {"tuned": 8.2},
        Way(HYBRID, is_matched=True): {"tuned": 7.9},
    }
    assert [verdict.held for verdict in calibrating_helps(runs(given))] == [True, False, True]
    assert [verdict.held for verdict in rest_helps(runs(given))] == [False, True]


def test_the_original_is_judged_beside_the_unigram(tmp_path: Path) -> None:
    for seed in range(3):
        values = {"perplexity": 20.0 + seed, "perplexity_of_unigram": 100.0}
        rows: list[Row] = [{"metric": name, "value": value, "split": "test", "step": 1} for name, value in values.items()]
        finished_training(tmp_path / f"pretrain-{seed}", rows)
    (found,) = learned(tmp_path, QUICK)
    assert found.held
    assert "21.0 against 100.0" in found.figures
    assert list(learned(tmp_path / "none", QUICK)) == []


@pytest.mark.parametrize("scale", SCALES)
def test_scales_hold_what_they_promise(scale: str) -> None:
    grid = SCALES[scale]
    trials = {trial.name: trial for trial in grid.trials()}
    assert len(trials) == len(list(grid.trials())) == len(grid.seeds) * (1 + len(CONVERSIONS))
    order = list(trials)
    for trial in trials.values():
        if isinstance(trial.work, Conversion):
            assert order.index(trial.start) < order.index(trial.name)
            assert trials[trial.start].seed == trial.seed
            steps = (trial.work.options.steps, trial.work.options.tune_steps)
            assert sum(each or 0 for each in steps) == grid.total_steps
    assert len(grid.seeds) >= (1 if scale == "trial" else 3)
    assert {way for ways in CHARTS.values() for way in ways} == set(WAYS)
    assert len(WAYS) == len(CONVERSIONS) + 3  # controls


def test_a_model_that_is_there_is_taken(tmp_path: Path) -> None:
    """With the texts that are given for it; a run has its own."""
    grid = replace(QUICK, original=str(tmp_path), data="texts")
    works = [trial.work for trial in grid.trials() if isinstance(trial.work, Conversion) and not trial.start]
    assert len(works) == len(list(grid.trials()))
    assert {(work.model, work.text, work.options.cost_lengths) for work in works} == {(str(tmp_path), "texts", ())}
    (tmp_path / "run.json").write_text("{}")
    assert {trial.work.text for trial in grid.trials() if isinstance(trial.work, Conversion)} == {""}


def test_a_model_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "copy", "--original", str(tmp_path)]) == 2
    assert "copy trains all its models itself: leave out --original" in capsys.readouterr().err
    assert main(["reproduce", "conversion", "--original", str(tmp_path)]) == 2
    assert f"there is no model at {tmp_path}" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{}")
    assert main(["reproduce", "conversion", "--original", str(tmp_path), "--data", str(tmp_path)]) == 2
    assert "a run is converted on its own text" in capsys.readouterr().err


@pytest.mark.parametrize("controls", [False, True])
def test_a_conversion_is_finished_with_its_last_control(tmp_path: Path, controls: bool) -> None:
    run = Run.create(tmp_path / "run", "convert", {"options": {"conversion": {"controls": controls}}})
    assert not is_finished(run.folder)
    run.append([row("distilled", 1.0, recipe="conversion"), row("tuned", 1.0, recipe="conversion", split="watched")])
    assert not is_finished(run.folder)
    run.append([row("tuned", 1.0, recipe="conversion")])
    assert is_finished(run.folder) is not controls
    run.append([row("tuned", 1.0, recipe="softmax fine-tuned")])
    assert is_finished(run.folder)


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ('{"phases": 9, "stand": {"phase": 9}}', True),
        ('{"phases": 9, "stand": {"phase": 8}}', False),  # the model is not saved yet
        ('{"phases": 9}', False),
        ("[]", False),
        ("", False),
    ],
)
def test_a_conversion_is_finished_with_its_last_phase(tmp_path: Path, about: str, expected: bool) -> None:
    run = Run.create(tmp_path / "run", "convert", {"options": {"conversion": {"controls": False}}})
    run.append([row("tuned", 1.0, recipe="conversion")])
    write_whole(run.folder / "checkpoint" / "step-000000009" / "about.json", about)
    assert is_finished(run.folder) is expected


TINY = Grid(
    seeds=(0, 1),
    features=4,
    k=2,
    block=2,
    model=ModelOptions(layers=2, heads=1, head_dim=4),
    task=Mlm(length=16, vocabulary="bytes"),
    training=TrainOptions(batch=2, steps=2),
    match_steps=1,
    tune_steps=2,
    conversion=ConversionOptions(batch_tokens=32, texts=20),
    minutes="",
)


def write(folder: Path) -> Path:
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"text {number}: the cat sat on the mat, the dog did not. " * 4)
    return folder


@pytest.mark.slow
def test_a_tiny_run_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALES, "quick", TINY)
    monkeypatch.setattr(trainings, "start_process", Done)
    monkeypatch.chdir(tmp_path)
    texts = write(tmp_path / "texts")
    assert main(["reproduce", "conversion", "--data", str(texts), "--out", "run"]) == 0
    folder = Path("run")
    found = converted(folder, TINY)
    assert [(one.way, one.seed) for one in found] == [(way, seed) for way in WAYS for seed in TINY.seeds]
    assert all(set(nats(found, way)) == {0, 1} for way in WAYS)  # each ends with a perplexity
    taken = {way: max(row["step"] for one in found if one.way == way for row in one.rows) for way in WAYS}
    assert set(taken.values()) == {TINY.total_steps}
    exact = nats(found, CONTROL, "original")
    assert set(exact) == {0, 1}
    assert nats(found, Way(LEARNED), "distilled") == {}  # it was matched in no steps
    assert set(nats(found, Way(LEARNED, is_matched=True), "distilled")) == {0, 1}
    window = Run.open(folder / "convert-hybrid-matched-0").about["options"]["mechanism"]
    assert (window["block"], window["rest"]["kind"]) == (2, "learned")
    assert len(judge(folder, "quick")) == 1 + 2 + 1 + (len(WAYS) - 1) + 4 + 4 + 2
    starts = [row["value"] for row in points(found, CONTROL) if row["step"] == 0]
    originals = [row for one in found if one.way == CONTROL for row in one.rows if row["stage"] == "original"]
    developed = [row["value"] for row in originals if (row["metric"], row.get("split")) == ("perplexity", "development")]
    assert len(developed) == 2
    assert starts == pytest.approx(developed)  # softmax in softmax's place changes nothing
    table = way_table(found)
    assert [line[0].text for line in table.rows] == ["the original", *(way.words for way in WAYS)]
    assert {len(line) for line in table.rows} == {len(table.columns)}
    page = (folder / "report.html").read_text()
    for words in ("FAVOR+ learned, matched and fine-tuned", "the published failure", "hybrid: matching and fine-tuning"):
        assert words in page
    assert not list(folder.glob("convert-*/report.html"))
    before = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/rows.jsonl"))]
    assert main(["reproduce", "conversion", "--data", str(texts), "--out", "run"]) == 0  # nothing is done again
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*/rows.jsonl"))] == before


@pytest.mark.slow
def test_a_model_of_hugging_face_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment as it was published: DistilBERT. Nothing is pretrained, and nothing is said of a unigram."""
    pytest.importorskip("transformers", reason="transformers is not installed: the extra `hub`")
    from tests.conversion import models

    grid = replace(TINY, seeds=(0,))
    monkeypatch.setitem(SCALES, "quick", grid)
    monkeypatch.setattr(trainings, "start_process", Done)
    monkeypatch.chdir(tmp_path)
    models.save(tmp_path / "distilbert", "DistilBertForMaskedLM")
    models.write(tmp_path / "texts")
    assert main(["reproduce", "conversion", "--original", "distilbert", "--data", "texts", "--out", "run"]) == 0
    found = converted(Path("run"), grid)
    assert [one.way for one in found] == list(WAYS)
    assert {one.run.about["options"]["original"]["class"] for one in found} == {"DistilBertForMaskedLM"}
    assert all(set(nats(found, way)) == {0} for way in WAYS)
    assert not any("unigram" in verdict.claim for verdict in judge(Path("run"), "quick"))
    assert not any("the original's training read" in verdict.figures for verdict in judge(Path("run"), "quick"))
    assert (Path("run") / "report.html").exists()


def test_what_stopped_is_gone_on_with(tmp_path: Path) -> None:
    trial = Trial("b", "", 0, 3, Conversion(Linear(Elu()), ConversionOptions()), "a")
    new = ["convert", "run/a", "--attention", "linear", "--seed", "3", "--no-page", "--out", "run/b"]
    assert trainings.command_words(trial, Path("run")) == new
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text(json.dumps({"format": 1, "kind": "convert"}))
    assert trainings.command_words(trial, tmp_path) == ["convert", "--resume", str(tmp_path / "b")]
