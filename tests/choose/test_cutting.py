"""Softmax on a part of each sequence: which length, which tasks, its costs, and its place in the race."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquad import ModelOptions, Softmax, SubquadError
from subquad.choose import costs
from subquad.choose.cutting import Cutting, cut_length, enter_cut
from subquad.choose.decision import Wishes
from subquad.choose.race import Field, Terms
from subquad.choose.records import Kept, describe, read_kept
from subquad.choose.stages import Numbers
from subquad.choose.workers import Inline
from subquad.cli import main
from subquad.report.choose import load_decision
from subquad.results import Row, Run
from subquad.tasks.base import Task, TaskOptions
from subquad.tasks.classify import Classify
from subquad.tasks.lm import Lm
from subquad.tasks.recall import Recall
from subquad.tasks.series import Series
from subquad.tasks.tokens import Tokens
from subquad.tasks.transactions import Transactions
from subquad.training import TrainOptions
from tests.choose.made import costs as made_costs

MODEL = ModelOptions(layers=1, heads=1, head_dim=8, positions="rotary")
LABELLED = Tokens(goal="label", sequences=60, mean_length=32)


def test_the_length_costs_as_much_as_linear_attention() -> None:
    assert cut_length(1024, 16) == 128  # 128 * 128 = 1024 * 16
    assert cut_length(32, 16) == 24
    assert cut_length(1, 1) == 8


@pytest.mark.parametrize(
    ("options", "changed", "end"),
    [
        (LABELLED, {"latest": 8}, "last"),
        (Tokens(goal="next", sequences=60, context=100), {"length": 8, "context": None}, "last"),
        (Series(goal="label", series=60), {"latest": 8}, "last"),
        (Transactions(clients=60), {"latest": 8}, "last"),
        (Lm(), {"length": 8}, "last"),
        (Classify(), {"length": 8}, "first"),
    ],
)
def test_tasks_are_cut_by_their_options(options: Any, changed: dict[str, Any], end: str) -> None:
    assert options.prepare().cut(8) == (dataclasses.replace(options, **changed), end)


@pytest.mark.parametrize(
    "options", [Recall(), Series(goal="forecast", series=60), Transactions(clients=60, objective="next")]
)
def test_tasks_that_ask_for_all_positions_are_not_cut(options: TaskOptions) -> None:
    task = options.prepare()
    assert task.cut(8) is None
    assert enter_cut(task, Softmax(), MODEL, TrainOptions(), 1e6, None) is None
    with pytest.raises(SubquadError, match="leave --cut out"):
        enter_cut(task, Softmax(), MODEL, TrainOptions(), 1e6, 8)


def test_short_sequences_are_cut_only_if_a_length_is_named() -> None:
    task = LABELLED.prepare()
    assert enter_cut(task, Softmax(), MODEL, TrainOptions(), 24, None) is None
    named = enter_cut(task, Softmax(), MODEL, TrainOptions(), 24, 20)
    assert named is not None
    assert named.name == "softmax last 20"
    assert "before the last 20 positions" in named.traits.gives_up


@pytest.mark.parametrize("options", [Lm(length=32), Tokens(goal="next", sequences=20, length=32)])
def test_a_cut_does_not_lengthen_what_is_read(options: Any) -> None:
    cut = options.prepare().cut(1000)
    assert cut.options.length == 32


def test_both_are_judged_on_the_same_sequences() -> None:
    options = dataclasses.replace(LABELLED, sequences=200)
    whole = options.prepare()
    cut = whole.cut(8)
    assert cut is not None
    short = cut.options.prepare()
    model = whole.build(Softmax(), MODEL)
    ours, theirs = (_labels(task, model) for task in (whole, short))
    np.testing.assert_array_equal(ours, theirs)
    assert max(short.lengths()["test"]) == 8 < max(whole.lengths()["test"])


def _labels(task: Task[Any], model: Any) -> Any:
    return task.judge(model).parts[:, 0 if task.judge(model).statistic == "auroc" else 1]


def test_a_cut_costs_what_softmax_costs_at_its_length() -> None:
    about = {"metric": "cost", "what": "layer", "unit": "s", "form": "bidirectional", "mechanism": "softmax"}
    softmax: list[Row] = [{**about, "length": length, "value": float(length**2)} for length in (16, 64, 256)]
    rows = list(costs.cut_rows(softmax, {"softmax last 64": 64}))
    assert [(row["mechanism"], row["length"], row["value"]) for row in rows] == [
        ("softmax last 64", 16, 256.0),
        ("softmax last 64", 64, 4096.0),
        ("softmax last 64", 256, 4096.0),
    ]
    assert list(costs.cut_rows(softmax, {"softmax last 40": 40}))[-1]["length"] == 16  # 40 was not measured
    assert costs.cost_lengths({0.5: 100.0, 0.9: 300.0, 1.0: 900.0}, [40, 1000]) == [40, 100, 300, 900]


def test_cuts_survive_in_run_json() -> None:
    cuts = {"softmax last 8": Cutting(8, dataclasses.replace(LABELLED, latest=8))}
    field = Field(LABELLED, MODEL, TrainOptions(), {"softmax": Softmax(), "softmax last 8": Softmax()}, cuts)
    kept = Kept(field, Terms(10.0, 1, 0, 2**30), Wishes())
    assert read_kept({"options": json.loads(json.dumps(describe(kept)))}) == kept
    older = {name: value for name, value in describe(kept).items() if name != "cuts"}
    assert read_kept({"options": older}).field.cuts == {}


def test_a_cut_that_cuts_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tokens", "--goal", "label", "--sequences", "60", "--mean-length", "32", "--cut", "100000"]
    assert main(["choose", *words]) == 2
    assert "--cut 100000 cuts nothing, as no sequence has more than" in capsys.readouterr().err


def test_a_cut_is_raced_and_judged_as_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 3.5)
    monkeypatch.setattr("subquad.choose.race.plan_numbers", lambda *arguments: Numbers(2, 1, 2))
    monkeypatch.setattr("subquad.cli.choose.Pool", lambda source, jobs, memory_bytes: Inline(source))
    made = made_costs({"softmax": 1.0, "softmax last 8": 0.1}, length=40)
    monkeypatch.setattr(costs, "measure_costs", lambda *arguments, **named: made)
    words = ["tokens", "--goal", "label", "--sequences", "120", "--mean-length", "32", "--layers", "1", "--head-dim", "8"]
    words += ["--mechanisms", "softmax", "--cut", "8", "--budget", "10m", "--jobs", "1", "--quality-loss", "10"]
    assert main(["choose", *words, "--out", str(tmp_path / "race")]) == 0
    standings, decision = load_decision(Run.open(tmp_path / "race", "choose"))
    assert set(decision.levels) == {"softmax", "softmax last 8"}
    assert standings.advantage("softmax", "softmax last 8") is not None
    trial = Run.open(tmp_path / "race" / "trials" / "softmax-last-8-final-0", "train")
    assert trial.about["options"]["task"]["latest"] == 8
    assert "--latest 8" in trial.about["command"]
