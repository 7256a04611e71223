"""Linformer's study: verdicts on rows that are known, and a tiny run for real."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from subquad.cli import main, reproduce, trainings
from subquad.experiments.base import Training, Trial
from subquad.experiments.linformer.grid import SCALES, SHARINGS, Effort, Grid, Variant
from subquad.experiments.linformer.learned import judge_projections
from subquad.experiments.linformer.measuring import slot_rows
from subquad.experiments.linformer.needed import judge_slots
from subquad.experiments.linformer.runs import Pretrained, accuracies, pretrained, spectra
from subquad.experiments.linformer.verdicts import close, grown, grows_better, judge, kept, low_rank, shared
from subquad.models import ModelOptions
from subquad.results import Row, Run
from subquad.statistics import Verdict
from subquad.tasks import Mlm
from subquad.training import TrainOptions
from tests.experiments.runs import finished_training, trial

QUICK = SCALES["quick"]


def runs(folder: Path, perplexities: Mapping[Variant, float], seeds: int = 3, unigram: float = 100.0) -> list[Pretrained]:
    """Seeds differ by far more than models."""
    found = []
    for variant, value in perplexities.items():
        for seed in range(seeds):
            rows: list[Row] = [
                {"metric": "perplexity", "value": value * 2**seed * (1 + 0.001 * (seed - 1)), "split": "test"},
                {"metric": "perplexity", "value": 999.0, "split": "held out"},
                {"metric": "perplexity_of_unigram", "value": unigram, "split": "test"},
            ]
            found.append(Pretrained(variant, seed, Run(folder, {}), rows))
    return found


def held(verdicts: list[Verdict]) -> dict[str, bool | None]:
    return {verdict.claim: verdict.held for verdict in verdicts}


def test_slots_are_judged_beside_softmax_at_the_same_length(tmp_path: Path) -> None:
    grid = replace(QUICK, slots={128: (16, 64)}, lengths=(128, 256), fixed_slots=64)
    given = {Variant(128): 50.0, Variant(128, 16): 60.0, Variant(128, 64): 51.0, Variant(256): 20.0, Variant(256, 64): 51.0}
    found = held(list(close(runs(tmp_path, given), grid)))
    assert found == {
        "n=128, k=16: perplexity is within 1.05 times softmax's": False,
        "n=128, k=64: perplexity is within 1.05 times softmax's": True,
        "n=256, k=64, a quarter as in the paper: perplexity is within 1.05 times softmax's": False,
    }
    assert [verdict.held for verdict in grows_better(runs(tmp_path, given), grid)] == [True]
    assert set(held(list(close(runs(tmp_path, given, seeds=1), grid))).values()) == {None}  # one seed decides nothing


def test_sharing_is_judged_beside_none(tmp_path: Path) -> None:
    given = {QUICK.shared._replace(sharing=way): value for way, value in zip(SHARINGS, (50, 52, 50, 60), strict=True)}
    assert [verdict.held for verdict in shared(runs(tmp_path, given), QUICK)] == [True, True, False]


def test_lengths_are_judged_by_themselves_and_beside_softmax(tmp_path: Path) -> None:
    """Perplexity stays as it is while softmax gains from the longer context: the first claim holds, the second does not."""
    given = {Variant(64): 50.0, Variant(64, 32): 55.0, Variant(512): 40.0, Variant(512, 32): 55.0}
    first, second = grown(runs(tmp_path, given), QUICK)
    assert (first.held, second.held) == (True, False)
    assert "from 1.100 (1.100 to 1.100) to 1.375" in second.figures


def share(model: str, layer: int, value: float) -> Row:
    place = {"index": 32.0, "length": 128.0}
    return {"metric": "share_at_index", "model": model, "layer": layer, "head": 1, "value": value, **place}


def test_matrices_are_judged_over_seeds() -> None:
    seeds = {
        seed: [
            share("trained", 1, 0.81 + seed / 500),
            share("trained", 2, 0.98),
            share("random", 1, 1),
            share("random", 2, 1),
        ]
        for seed in range(3)
    }
    low, learned, higher = low_rank(seeds)
    assert (low.held, learned.held, higher.held) == (False, False, True)
    assert low.claim == "the first 32 of 128 singular values of softmax's attention hold at least 0.9 of all"
    assert "0.896 (0.894 to 0.898) of their sum" in low.figures
    assert learned.figures == "-0.104 (-0.106 to -0.102) beside 1.000 (1.000 to 1.000) with fresh weights"
    assert list(low_rank({})) == []


@pytest.mark.parametrize(("ours", "is_kept"), [((0.7, 0.8, 0.9), True), ((0.6, 0.7, 0.8), False), ((0.5, 0.8, 0.99), None)])
def test_fine_tuning_is_judged_seed_by_seed(ours: tuple[float, ...], is_kept: bool | None) -> None:
    theirs = {0: 0.701, 1: 0.8, 2: 0.9}
    (found,) = kept({"softmax": theirs, "linformer": dict(enumerate(ours)), "nothing": {0: 0.1}})
    assert found.held is is_kept
    assert "softmax without pretraining 0.100" in found.figures


@pytest.mark.parametrize("scale", SCALES)
def test_scales_hold_what_they_promise(scale: str) -> None:
    grid = SCALES[scale]
    trials = {trial.name: trial for trial in grid.trials()}
    assert len(trials) == len(list(grid.trials()))
    order = list(trials)
    for each in trials.values():
        assert not each.start or order.index(each.start) < order.index(each.name)
    for variant in grid.variants:  # each beside softmax at its length, in as many tokens
        assert variant.baseline in grid.variants
        work = trials[variant.name(0)].work
        assert isinstance(work, Training)
        assert work.options.batch * variant.length == grid.step_tokens
    assert {variant.sharing for variant in grid.variants if variant.k == grid.shared.k} == set(SHARINGS)
    assert len(grid.seeds) >= 3


def test_texts_are_learned_from_and_their_labels_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    grid = replace(QUICK, data=str(tmp_path))
    assert {(kind, text) for kind, text in texts_of(grid)} == {("mlm", str(tmp_path)), ("classify", "")}
    (tmp_path / "b.jsonl").write_text('{"text": "good", "label": 1}')
    assert {text for _, text in texts_of(grid)} == {str(tmp_path)}


def texts_of(grid: Grid) -> list[tuple[str, str]]:
    """The task and the texts of each trial."""
    tasks: list[Any] = [trial.work.task for trial in grid.trials() if isinstance(trial.work, Training)]
    return [(task.kind, task.text) for task in tasks]


class Done:
    """A training or a conversion that ran here, without a process of its own."""

    returncode = 0

    def __init__(self, trial: Trial, folder: Path, threads: int = 1) -> None:
        assert main(trainings.command_words(trial, folder)) == 0

    def poll(self) -> int:
        return 0

    def communicate(self) -> tuple[str, str]:
        return "", ""


TINY = Grid(
    seeds=(0, 1),
    slots={16: (4,)},
    shared=Variant(16, 4),
    lengths=(8, 16),
    fixed_slots=4,
    spectrum_length=16,
    step_tokens=32,
    model=ModelOptions(layers=2, heads=1, head_dim=4),
    vocabulary=Mlm(vocabulary="bytes"),
    training=TrainOptions(steps=2),
    downstream=TrainOptions(steps=2, batch=4),
    timing=QUICK.timing,
    effort=Effort((4, 8, 16), fit_sequences=2, test_sequences=2, fit_steps=2, fit_batch=1),
    minutes="",
)


def write(folder: Path) -> Path:
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"text {number}: the cat sat on the mat, the dog did not. " * 4)
    lines = [f'{{"text": "the {("cat", "dog")[at % 2]} number {at}", "label": {at % 2}}}' for at in range(30)]
    (folder / "labelled.jsonl").write_text("\n".join(lines))
    return folder


def test_a_tiny_run_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALES, "quick", TINY)
    monkeypatch.setattr(trainings, "start_process", Done)
    monkeypatch.setattr(reproduce, "measure_timing", lambda *arguments: None)
    monkeypatch.chdir(tmp_path)
    texts = write(tmp_path / "texts")
    assert main(["reproduce", "linformer", "--data", str(texts), "--out", "run"]) == 0
    folder = Path("run")
    assert {one.variant.sharing for one in pretrained(folder) if one.variant.k} == set(SHARINGS)
    assert set(spectra(folder)) == {0, 1}
    assert {name: list(seeds) for name, seeds in accuracies(folder).items()} == {
        name: [0, 1] for name in ("linformer", "nothing", "softmax")
    }
    start = Run.open(folder / "classify-linformer-0").about["options"]
    assert start["task"]["start"] == "run/mlm-linformer-16-4-keys-values-0"
    assert (start["mechanism"]["k"], start["task"]["text"]) == (4, str(texts))
    slots = slot_rows(folder)
    verdicts = [len(list(found)) for found in (judge_slots(slots, pretrained(folder), TINY), judge_projections(slots, TINY))]
    assert verdicts[1] == 4 + 1  # what projections are close to, and how much is learned
    assert len(judge(folder, "quick")) == 2 + 3 + 2 + 3 + 1 + sum(verdicts)  # slots, sharing, length, matrices, fine-tuning
    assert {row["length"] for row in slots if row["metric"] == "output_error"} == {4, 8, 16}
    assert {row["sharing"] for row in slots if row["metric"] == "average"} == set(SHARINGS)
    page = (folder / "report.html").read_text()
    for words in (
        "a quarter as in the paper",
        "By sharing, n=16, k=4",
        "softmax, from nothing",
        "slots_16",
        "What E and F learn",
    ):
        assert words in page
    before = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/rows.jsonl"))]
    assert main(["reproduce", "linformer", "--data", str(texts), "--out", "run"]) == 0  # nothing is done again
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*/rows.jsonl"))] == before


def test_a_trial_waits_for_what_it_starts_from(tmp_path: Path) -> None:
    """It is neither started while the other runs nor before it, and does not keep others waiting."""
    first, second, third = (trial(name, start=start) for name, start in (("a", ""), ("b", "a"), ("c", "")))
    assert trainings.next_ready([second, third], {"a"}, tmp_path) == third
    assert trainings.next_ready([second], {"a"}, tmp_path) is None
    assert trainings.next_ready([first, second], {}, tmp_path) == first
    finished_training(tmp_path / "a")
    assert trainings.next_ready([second], {"a"}, tmp_path) is None
    assert trainings.next_ready([second], {}, tmp_path) == second
