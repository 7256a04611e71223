"""A race in this process: its stages, failures, resuming, interrupts and what it leaves."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from subquad import Linear, ModelOptions, Softmax, SubquadError
from subquad import load as load_model
from subquad.choose import costs
from subquad.choose.decision import Wishes
from subquad.choose.entries import enter
from subquad.choose.race import Field, Race, Terms, Watch
from subquad.choose.records import Kept, describe, read_kept
from subquad.choose.space import Setting
from subquad.choose.stages import Numbers
from subquad.choose.timing import time_spent
from subquad.choose.trials import LOSS_POINTS, Trial, _Clock, loss_curve, run_trial, step_seconds, with_steps
from subquad.choose.workers import Ended, Inline, Job, MayStart
from subquad.cli.spelling import training_words
from subquad.errors import DivergedError
from subquad.report.choose import load_decision, write_choice_page
from subquad.results import Row, Run, describe_run
from subquad.runs import RunOptions
from subquad.tasks.recall import Recall
from subquad.training import TrainOptions
from subquad.training.loop import Progress
from tests.choose.made import costs as made_costs

TASK = Recall(length=12, pairs=2, keys=4, values=3, held_out=16, tested=32)
MODEL = ModelOptions(layers=1, heads=1, head_dim=8, positions="rotary", tied=False)
TRAINING = TrainOptions(batch=4, learning_rate=1e-2, schedule="cosine", optimizer="adamw")
FIELD = Field(TASK, MODEL, TRAINING, {"softmax": Softmax(), "linear": Linear()})
RIVALS = {"most frequent answer": "rival"}
TERMS = Terms(budget=600.0, jobs=1, seed=0, memory_bytes=2**30)


def quickly(patch: pytest.MonkeyPatch) -> None:
    """Few runs of three steps, and made-up costs, so that nothing depends on how fast the machine is."""
    patch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 3.5)
    patch.setattr("subquad.choose.race.plan_numbers", lambda *arguments: Numbers(settings=2, semifinalists=1, seeds=2))
    made = made_costs({"softmax": 1.0, "linear": 0.2}, {"softmax": 5.0, "linear": 1.0}, length=12)
    patch.setattr(costs, "measure_costs", lambda *arguments, **named: made)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applies `quickly` to every test."""
    quickly(monkeypatch)


def begin(folder: Path, workers: Any = None, *, terms: Terms = TERMS, told: list[str] | None = None) -> Race:
    if not (folder / "run.json").exists():
        about = describe_run(describe(Kept(FIELD, terms, Wishes())), ["choose", "recall"], seed=0)
        about["mechanisms"] = {name: {"gives_up": "something"} for name in FIELD.attentions}
        Run.create(folder, "choose", about)
    watch = Watch(tell=(told if told is not None else []).append)
    return Race(
        Run.open(folder, "choose"), FIELD, terms, TASK, workers or Inline(lambda variant: TASK), training_words, watch
    )


def trials(rows: Sequence[Row]) -> dict[str, Row]:
    return {row["trial"]: row for row in rows if row["metric"] == "score"}


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        race = begin(tmp_path_factory.mktemp("race") / "run")
        race.go()
        race.keep_best("linear")
        yield race


def test_every_attention_has_the_same_runs(raced: Race) -> None:
    by_stage: dict[tuple[str, str], list[Row]] = {}
    for row in trials(raced.run.rows()).values():
        by_stage.setdefault((row["mechanism"], row["stage"]), []).append(row)
    numbers = raced.numbers
    for name in FIELD.attentions:
        assert len(by_stage[name, "search"]) == numbers.settings
        assert len(by_stage[name, "final"]) == numbers.seeds
    assert {row["allotted"] for rows in by_stage.values() for row in rows if row["stage"] == "final"} == {
        row["value"] for row in raced.run.rows() if row["metric"] == "allotment" and row["stage"] == "final"
    }
    assert {row["steps"] for rows in by_stage.values() for row in rows} == {3}


def test_finals_are_paired_and_scored_once(raced: Race) -> None:
    rows = raced.run.rows()
    finals = [row for row in trials(rows).values() if row["stage"] == "final"]
    seeds = {name: [row["seed"] for row in finals if row["mechanism"] == name] for name in FIELD.attentions}
    assert seeds["softmax"] == seeds["linear"] == list(range(raced.numbers.seeds))
    assert len({row["setting"] for row in finals}) == 2
    tested = [row for row in rows if row["metric"] == "test_score"]
    assert [row["trial"] for row in tested] == [row["trial"] for row in finals]
    qualities = {row["mechanism"]: row["role"] for row in rows if row["metric"] == "quality"}
    assert qualities == {"softmax": "attention", "linear": "attention", "guessing": "trivial"} | RIVALS
    assert len([row for row in rows if row["metric"] == "advantage"]) == 6


def test_runs_are_those_of_the_training_loop(raced: Race) -> None:
    best = raced.run.folder / "best"
    trained = load_model(raced.run.folder)
    assert trained.run.folder == best
    assert trained.options.attention.kind == "linear"
    assert len(trained.reply("3:1 2:2 3").split()) == 1
    assert not (best / "judged.jsonl").exists()
    assert trained.run.about["command"].startswith("subquad train recall --attention linear")


def test_all_is_done_after_a_resume(raced: Race, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(raced.run.folder, folder)
    before = trials(Run.open(folder).rows())
    again = begin(folder)
    again.go()
    assert trials(again.run.rows()) == before
    assert len([row for row in again.run.rows() if row["metric"] == "quality"]) == 4


class Killed(Inline):
    """Ends like a killed process before a certain job."""

    def __init__(self, at: int) -> None:
        super().__init__(lambda variant: TASK)
        self.left = at

    def run(self, jobs: Sequence[Job], may_start: MayStart) -> Iterator[Ended]:
        for ended in super().run(jobs, may_start):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield ended


@pytest.mark.parametrize("at", [0, 3, 6])
def test_an_interrupted_race_ends_with_the_same_trials(raced: Race, tmp_path: Path, at: int) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        begin(folder, Killed(at)).go()
    assert len(trials(Run.open(folder).rows())) < len(trials(raced.run.rows()))
    whole = begin(folder)
    whole.go()
    ours, theirs = trials(whole.run.rows()), trials(raced.run.rows())
    assert list(ours) == list(theirs)
    same = ("setting", "seed", "steps", "stage", "mechanism")
    assert [[row[name] for name in same] for row in ours.values()] == [
        [row[name] for name in same] for row in theirs.values()
    ]
    assert [row["value"] for row in ours.values()] == [row["value"] for row in theirs.values()]


class Failing(Inline):
    """Fails the jobs whose name has a word in it."""

    def __init__(self, word: str, error: Callable[[], Exception]) -> None:
        super().__init__(lambda variant: TASK)
        self.word, self.error = word, error

    def run(self, jobs: Sequence[Job], may_start: MayStart) -> Iterator[Ended]:
        def fail(task: Any, folder: Path) -> list[Row]:
            raise self.error()

        return super().run([job._replace(work=fail) if self.word in job.name else job for job in jobs], may_start)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (lambda: DivergedError("the loss is nan at step 3"), "not finite"),
        (lambda: MemoryError(), "out of memory"),
        (lambda: RuntimeError("DefaultCPUAllocator: not enough memory"), "out of memory"),
        (lambda: SubquadError("a sentence"), "error"),
    ],
)
def test_a_failure_is_a_row_and_the_race_goes_on(tmp_path: Path, error: Callable[[], Exception], failure: str) -> None:
    told: list[str] = []
    race = begin(tmp_path / "run", Failing("linear-search", error), told=told)
    race.go()
    rows = race.run.rows()
    failed = [row for row in trials(rows).values() if row["value"] is None]
    assert {row["failure"] for row in failed} == {failure}
    assert {row["mechanism"] for row in failed} == {"linear"}
    assert {row["mechanism"] for row in trials(rows).values() if row["stage"] == "final"} == {"softmax"}
    assert [row["mechanism"] for row in rows if row["metric"] == "quality"] == ["softmax", "guessing", *RIVALS]
    assert any(failure in line for line in told)


def test_a_training_that_diverges_ends_with_its_reason(tmp_path: Path) -> None:
    options = RunOptions(TASK, Softmax(), MODEL, replace(TRAINING, learning_rate=1e30, warm_up=0, clip=0.0))
    trial = Trial("wild", "softmax", "search", Setting(1e30, Softmax()), options, 0, 1.0, 1)
    work = partial(run_trial, trial=trial, spell=training_words)
    workers = Inline(lambda variant: TASK)
    (ended,) = workers.run([Job("wild", work, tmp_path / "wild", 60.0)], lambda job: True)
    assert (ended.rows, ended.failure) == ([], "not finite")
    assert "NaN" in ended.message or "the loss is" in ended.message


def test_measuring_a_step_leaves_the_weights() -> None:
    """A learning rate that only works with its warm-up or clipping must not end a run before it begins."""
    wild = replace(TRAINING, learning_rate=1e30, clip=0.0)
    assert step_seconds(TASK, RunOptions(TASK, Softmax(), MODEL, wild), 0, 1.0) > 0


def test_the_curve_of_losses_is_averaged_over_ranges_of_steps() -> None:
    steps = 2 * LOSS_POINTS
    losses: list[Row] = [
        {"metric": "loss", "value": float(step), "unit": "nats", "step": step, "split": "train"}
        for step in range(1, steps + 1)
    ]
    other: Row = {"metric": "nll", "value": 9.0, "unit": "nats", "step": steps, "split": "held out"}
    curve = loss_curve([*losses, other])
    assert [row["step"] for row in curve] == list(range(2, steps + 1, 2))
    assert [row["value"] for row in curve[:2]] == [1.5, 3.5]
    assert loss_curve([other]) == []


def test_rivals_that_fail_leave_the_attentions(tmp_path: Path) -> None:
    race = begin(tmp_path / "run", Failing("rivals", lambda: RuntimeError("broken")))
    race.go()
    assert {row["role"] for row in race.run.rows() if row["metric"] == "quality"} == {"attention"}
    said = load_decision(race.run)[1].sentences[-1]
    assert said.startswith("Models without attention were not judged (error: RuntimeError: broken")
    write_choice_page([race.run], tmp_path / "page.html")
    assert "models without attention: error" in (tmp_path / "page.html").read_text()


def test_a_budget_that_is_used_up_starts_nothing(tmp_path: Path) -> None:
    race = begin(tmp_path / "run", terms=replace(TERMS, budget=1.0))
    race.go()
    assert trials(race.run.rows()) == {}
    assert race.chosen("") == ""
    assert race.keep_best("softmax") is None


class Slow(Inline):
    """Lets so much of the budget pass after the second run that no further settings are searched."""

    race: Race

    def run(self, jobs: Sequence[Job], may_start: MayStart) -> Iterator[Ended]:
        for ended in super().run(jobs, may_start):
            yield ended
            if len(trials(self.race.ledger.rows)) == len(FIELD.attentions):
                self.race.start -= 0.7 * TERMS.budget


def test_a_slow_search_leaves_time_for_the_final_runs(tmp_path: Path) -> None:
    workers = Slow(lambda variant: TASK)
    race = workers.race = begin(tmp_path / "run", workers)
    assert race.numbers.settings > 1
    race.go()
    stages = Counter((row["mechanism"], row["stage"]) for row in trials(race.run.rows()).values())
    assert {name: stages[name, "search"] for name in FIELD.attentions} == {"softmax": 1, "linear": 1}
    assert {name: stages[name, "final"] for name in FIELD.attentions} == dict.fromkeys(FIELD.attentions, race.numbers.seeds)
    again = begin(tmp_path / "run", terms=replace(TERMS, budget=6000.0))
    again.go()
    assert trials(again.run.rows()) == trials(race.run.rows())


def test_options_survive_in_run_json() -> None:
    kept = Kept(FIELD, TERMS, Wishes(quality_loss=0.1, max_memory=100))
    read = read_kept({"options": json.loads(json.dumps(describe(kept)))})
    assert read == kept


def test_attentions_that_the_task_refuses_are_left_out() -> None:
    entries = enter([["softmax"], ["linformer"], ["linear", "softmax"]], TASK, TASK, MODEL, TRAINING, 12)
    assert list(entries.attentions) == ["softmax"]
    assert "no causal form" in entries.left_out["linformer"]
    assert "2 layers" in entries.left_out["linear,softmax"]
    with pytest.raises(SubquadError, match="none of the attentions"):
        enter([["linformer"]], TASK, TASK, MODEL, TRAINING, 12)


def test_usual_attentions_have_the_form_that_the_task_needs() -> None:
    assert list(enter([], TASK, TASK, MODEL, TRAINING, 12).attentions) == ["softmax", "linear", "favor", "hybrid", "window"]


def test_lengths_of_costs_make_a_curve() -> None:
    assert costs.cost_lengths({0.5: 100.0, 0.9: 300.0, 1.0: 900.0}) == [100, 300, 900]
    assert costs.cost_lengths({0.5: 64.0, 0.9: 64.0, 1.0: 64.0}) == [16, 32, 64]
    assert costs.cost_lengths({0.5: 1.0, 0.9: 1.0, 1.0: 1.0}) == [2]


def test_the_time_of_each_phase_is_known(raced: Race) -> None:
    rows = raced.run.rows()
    assert [row["what"] for row in rows if row["metric"] == "phase"] == [
        "start", "plan", "search", "semifinal", "cost", "final", "conclude"
    ]  # fmt: skip
    spent = time_spent(rows, 1)
    assert {each.what for each in spent} >= {"training", "evaluations during training", "scores on the test"}


def test_later_stages_know_the_duration_of_a_step(raced: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = raced.ledger.finalists()["linear"]
    assert raced.ledger.pace("linear", setting) is None  # three steps tell too little
    monkeypatch.setattr("subquad.choose.ledger.ENOUGH_STEPS", 3)
    rows = [row for row in raced.ledger.rows if row["metric"] == "score" and row["mechanism"] == "linear"]
    same = [row for row in rows if Setting.from_text(row["setting"]).attention == setting.attention]
    fastest = min(row["seconds"] / row["steps"] for row in same)
    assert raced.ledger.pace("linear", setting) == fastest
    assert raced.ledger.pace("linear", setting._replace(learning_rate=9.0)) == fastest
    assert raced.ledger.pace("linear", setting._replace(attention=Softmax())) is None


def test_a_training_with_other_steps_keeps_its_proportions() -> None:
    training = with_steps(TrainOptions(warm_up=50, schedule="cosine", patience=3), 80, 4)
    assert (training.steps, training.warm_up, training.evaluate_every, training.checkpoint_every) == (80, 8, 20, 80)
    assert training.patience == 0


def test_only_evaluations_count_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step has no metrics yet, and steps between two evaluations have those of the first of them."""
    monkeypatch.setattr("subquad.choose.trials.time", SimpleNamespace(perf_counter=iter(range(100)).__next__))
    options = RunOptions(TASK, Softmax(), MODEL, TRAINING)
    clock = _Clock(Trial("timed", "softmax", "search", Setting(1e-2, Softmax()), options, 0, 8.0, 1), 4)
    first, second = {"accuracy": 0.1}, {"accuracy": 0.1}
    for step, metrics in enumerate(({}, first, first, second), start=1):
        clock.watch(Progress(step, 0.5, metrics, 1.0))
    assert (clock.steps, clock.evaluations) == (4, 2)


def test_a_run_ends_with_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 1000)
    options = RunOptions(TASK, Softmax(), MODEL, TRAINING)
    trial = Trial("late", "softmax", "search", Setting(1e-2, Softmax()), options, 0, 1e6, 1, until=time.time() - 1)
    row = run_trial(TASK, tmp_path / "late", trial=trial, spell=training_words)[-1]
    assert row["steps"] == 1  # of a thousand
    assert row["value"] is not None


@pytest.mark.parametrize(("most", "steps"), [(5, 5), (50, 20), (None, 20)])
def test_a_run_has_no_more_than_the_usual_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None, steps: int
) -> None:
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 20.5)
    options = RunOptions(TASK, Softmax(), MODEL, TRAINING)
    trial = Trial("capped", "softmax", "search", Setting(1e-2, Softmax()), options, 0, 1e6, 1, most_steps=most)
    assert run_trial(TASK, tmp_path / "capped", trial=trial, spell=training_words)[-1]["steps"] == steps


def test_a_race_with_time_to_spare_ends_with_usual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 1000)
    told: list[str] = []
    field = replace(FIELD, training=replace(TRAINING, steps=4))
    race = begin(tmp_path / "run", told=told)
    race.field = field
    race.go()
    assert {row["steps"] for row in trials(race.run.rows()).values()} == {4}
    assert any("or 4 steps if that is less" in line for line in told)


def test_a_model_of_a_user_has_no_usual_steps() -> None:
    assert (FIELD.usual_steps, replace(FIELD, has_usual_steps=False).usual_steps) == (3000, 0)


def test_the_duration_of_a_step_is_measured() -> None:
    torch.manual_seed(0)
    assert 0 < step_seconds(TASK, RunOptions(TASK, Softmax(), MODEL, TRAINING), 0, 0.01) < 10


def test_the_first_half_of_the_measured_steps_is_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, durations = [0.0], iter([1.0, 1.0, 1.0, *[0.1] * 100])
    draw = Recall.batch

    def slow_batch(self: Recall, size: int, generator: torch.Generator) -> Any:
        clock[0] += next(durations)
        return draw(self, size, generator)

    monkeypatch.setattr(Recall, "batch", slow_batch)
    monkeypatch.setattr("subquad.choose.trials.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert step_seconds(TASK, RunOptions(TASK, Softmax(), MODEL, TRAINING), 0, 200.0) == pytest.approx(0.1)
