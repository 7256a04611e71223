"""One run of a race: a training in a folder of its own, by the project's own loop, and its scores."""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from torch import nn

from subquad.checking import read
from subquad.choose.scoring import score_draws
from subquad.choose.space import Setting
from subquad.choose.stages import StageName
from subquad.errors import DivergedError, SubquadError
from subquad.results import Row, Run, append_rows, describe_run, holds_run, read_rows
from subquad.runs import RunOptions, build_model
from subquad.tasks.base import DataSize, Task
from subquad.tasks.comparing import Best, Judged, Rival
from subquad.training import TrainOptions
from subquad.training.loop import BATCH, Progress, generator, parameters, train

JUDGED = "judged.jsonl"
"""Name of the file in a run's folder with the scores of single test sequences."""
PROBE_SHARE, PROBE_STEPS = 0.03, 3
"""Share of a run's seconds in which the duration of a step is measured first, and the smallest number of its steps."""
OVERTIME = 1.25
"""A run ends early once it has trained for so many times its seconds, which happens if steps turn out slower."""
EVALUATIONS: dict[StageName, int] = {"search": 3, "semifinal": 4, "final": 8}
"""Largest number of evaluations on the development sequences in a run."""
LOSS_POINTS = 30
"""Number of points that the curve of a final run's training loss is averaged to."""
EVALUATION_SHARE = 0.03
"""Part of a run's seconds that its evaluations may take in addition, if there is more than one."""

Spell = Callable[[RunOptions, int, DataSize | None], list[str]]
"""The words after `subquad` that train with some options and a seed on data of a size. It must be picklable."""


@dataclass(frozen=True)
class Trial:
    """A run of a race, before it is trained. The number of its steps follows from its seconds."""

    name: str
    mechanism: str
    stage: StageName
    setting: Setting
    options: RunOptions
    seed: int
    seconds: float
    evaluations: int
    pace: float | None = None
    """Seconds of a training step in earlier runs with the same options of the attention; None if it is to be measured."""
    until: float = math.inf
    """Time of day, by `time.time`, at which the run ends early so that the race keeps its budget."""
    most_steps: int | None = None
    """Largest number of training steps, however many its seconds allow; None for no limit."""

    @property
    def expected_seconds(self) -> float:
        """Seconds of training: fewer than it may have if it reaches its largest number of steps before, as far as known."""
        if self.pace is None or self.most_steps is None:
            return self.seconds
        return min(self.seconds, self.most_steps * self.pace)

    @property
    def labels(self) -> Row:
        """Fields of the rows about the run."""
        about = {"trial": self.name, "mechanism": self.mechanism, "stage": self.stage, "seed": self.seed}
        return {**about, "setting": self.setting.as_text(), "said": self.setting.words, "allotted": self.seconds}


class _Clock:
    """Training time of a run, without evaluations."""

    def __init__(self, trial: Trial, steps: int) -> None:
        self.trial, self.step_seconds = trial, trial.pace or trial.seconds / steps
        self.trained, self.steps, self.evaluating, self.evaluations = 0.0, 0, 0.0, 0
        self.last = time.perf_counter()
        self.metrics: Mapping[str, float] = {}

    def watch(self, done: Progress) -> None:
        now = time.perf_counter()
        took, is_evaluated = now - self.last, bool(done.metrics) and done.metrics is not self.metrics
        training = min(took, self.trained / self.steps if self.steps else self.step_seconds) if is_evaluated else took
        self.trained += training
        self.evaluating += took - training
        self.evaluations += is_evaluated
        self.steps, self.metrics, self.last = self.steps + 1, done.metrics, now

    def is_over(self) -> bool:
        return self.trained > OVERTIME * self.trial.seconds or time.time() > self.trial.until


def run_trial(task: Task[Any], folder: Path, *, trial: Trial, spell: Spell) -> list[Row]:
    """Trains a run, scores it on the development sequences, and a final one on the test sequences; returns rows."""
    ranked = task.ranked_by
    assert ranked is not None
    before = time.perf_counter()
    run, options = _open(task, trial, folder, spell)
    opened = time.perf_counter()
    model = build_model(options, task, seed=trial.seed).model
    clock = _Clock(trial, options.training.steps)
    with run.writing():
        train(
            task,
            model,
            options.training,
            run,
            seed=trial.seed,
            watch=clock.watch,
            restart=True,
            judged=False,
            is_over=clock.is_over,
        )
    evaluated = [row for row in run.rows() if row["metric"] == ranked.metric and row.get("split") == "held out"]
    score = _score(evaluated, ranked, is_best=task.chosen_by == ranked and options.training.keep_best)
    ended = time.perf_counter()
    rows = [_test_row(task, model, trial, run)] if trial.stage == "final" else []
    about = {"steps": clock.steps, "seconds": clock.trained, "parameters": parameters(model)}
    about |= {"probing": opened - before, "evaluating": clock.evaluating, "judging": time.perf_counter() - ended}
    about["evaluation_seconds"] = clock.evaluating / max(1, clock.evaluations)
    known = {**about, "of": ranked.metric, "good": ranked.good, "unit": task.units.get(ranked.metric, "share")}
    labels = {name: trial.labels[name] for name in ("trial", "mechanism", "seed", "stage")}
    curve = [
        {"metric": "curve", "value": row["value"], "step": row["step"], "unit": known["unit"], "of": ranked.metric} | labels
        for row in evaluated
        if row["value"] is not None
    ]
    if trial.stage == "final":
        curve += [row | labels for row in loss_curve(run.rows())]
    took = {"wall_seconds": time.perf_counter() - before}
    return [*curve, *rows, {"metric": "score", "value": score, **known, **took, **trial.labels}]


def loss_curve(rows: list[Row]) -> list[Row]:
    """Rows with the training loss of a run, averaged over ranges of steps; `step` is the last one of its range."""
    losses = [row for row in rows if row["metric"] == "loss" and row.get("split") == "train" and row["value"] is not None]
    width = max(1, -(-len(losses) // LOSS_POINTS))
    ranges = [losses[at : at + width] for at in range(0, len(losses), width)]
    return [
        {
            "metric": "loss_curve",
            "value": mean(row["value"] for row in each),
            "step": each[-1]["step"],
            "unit": each[-1]["unit"],
        }
        for each in ranges
    ]


def _open(task: Task[Any], trial: Trial, folder: Path, spell: Spell) -> tuple[Run, RunOptions]:
    """Returns the run of a trial and its options with the number of steps, which a run that was killed has already."""
    if holds_run(folder):
        run = Run.open(folder, "train")
        place = f"{folder / 'run.json'}: options: training"
        return run, trial.options._replace(training=read(TrainOptions, run.about["options"]["training"], place))
    shutil.rmtree(folder, ignore_errors=True)
    pace = trial.pace or step_seconds(task, trial.options, trial.seed, trial.seconds)
    steps = max(2, int(trial.seconds / pace))
    if trial.most_steps is not None:
        steps = min(steps, trial.most_steps)
    options = trial.options._replace(training=with_steps(trial.options.training, steps, trial.evaluations))
    about = describe_run(options.as_json(), spell(options, trial.seed, task.data_size), seed=trial.seed, page=False)
    if (learned := task.learned) is not None:
        about["learned"] = learned
    return Run.create(folder, "train", about), options


def with_steps(training: TrainOptions, steps: int, evaluations: int) -> TrainOptions:
    """The same training with another number of steps, and with warm-up, evaluations and checkpoints to match."""
    return replace(
        training,
        steps=steps,
        warm_up=min(training.warm_up, steps // 10),
        drop_at=min(training.drop_at, max(1, 2 * steps // 3)),
        evaluate_every=max(1, -(-steps // evaluations)),
        checkpoint_every=steps,
        patience=0,
    )


def step_seconds(task: Task[Any], options: RunOptions, seed: int, seconds: float) -> float:
    """Duration of a training step, measured with the batches of the run on a model of its own.

    The first half of the steps is a warm-up: allocators and caches may make it twice as slow as the second half. The weights
    stay as they are, since nothing here keeps a high learning rate from making them infinite.
    """
    model = build_model(options, task, seed=seed).model.train()
    optimizer = options.training.build_optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    start = time.perf_counter()
    durations: list[float] = []
    while len(durations) < PROBE_STEPS or time.perf_counter() - start < PROBE_SHARE * seconds:
        before = time.perf_counter()
        batch = task.batch(options.training.batch, generator(seed, BATCH, len(durations)))
        for losses in task.losses(model, batch):
            (losses.total / max(1, task.count(batch))).backward()
        optimizer.step()
        optimizer.zero_grad()
        durations.append(time.perf_counter() - before)
        if time.perf_counter() - start > seconds / 2:  # a single step takes a large part of the time
            break
    return max(1e-6, mean(durations[len(durations) // 2 :]))


def pace_rows(task: Task[Any], folder: Path, *, options: RunOptions, seed: int, seconds: float) -> list[Row]:
    """A row with the duration of a training step, measured for about so many seconds. Nothing is written."""
    value = step_seconds(task, options, seed, seconds)
    return [{"metric": "pace", "value": value, "unit": "s", "mechanism": options.attention.name}]


def _score(evaluated: list[Row], ranked: Best, *, is_best: bool) -> float:
    """The score of the weights that a run ends with: the best evaluation if best weights are kept, else the last."""
    values = [float(row["value"]) for row in evaluated if row["value"] is not None]
    if not values:
        raise DivergedError("no evaluation on the development sequences gave a finite number")
    if not is_best:
        return values[-1]
    return max(values) if ranked.good == "high" else min(values)


def _test_row(task: Task[Any], model: nn.Module, trial: Trial, run: Run) -> Row:
    """Scores a final run on the test sequences, keeps the scores in its folder, and returns a row about them."""
    judged = task.judge(model)
    if not np.isfinite(judged.parts).all():
        raise DivergedError("scores on the test sequences are not finite")
    write_judged(run.folder / JUDGED, {"": Rival(judged)})
    value = float(score_draws(judged, resamples=0)[0])
    if not math.isfinite(value):
        raise DivergedError("the score on the test sequences is not defined: there may be too few of them")
    score = {"metric": "test_score", "value": value, "of": judged.metric, "unit": judged.unit}
    return {**score, **{name: trial.labels[name] for name in ("trial", "mechanism", "seed")}}


def judge_rivals(task: Task[Any], folder: Path, *, name: str) -> list[Row]:
    """Fits and judges the models without attention, keeps their scores in a file, and returns a row for each."""
    before, path = time.perf_counter(), folder / name
    rivals = {name: rival for name, rival in task.rivals().items() if np.isfinite(rival.judged.parts).all()}
    path.unlink(missing_ok=True)
    write_judged(path, rivals)
    took = {"seconds": time.perf_counter() - before}
    return [{"metric": "rival", "value": len(rivals), "unit": "models", "names": "; ".join(rivals), **took}]


def write_judged(path: Path, rivals: Mapping[str, Rival]) -> None:
    """Writes scores of single test sequences, of one model or of several by name, into a file that is replaced."""
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    for name, rival in rivals.items():
        judged = rival.judged
        about: Row = {"of": judged.metric, "good": judged.good, "unit": judged.unit, "statistic": judged.statistic}
        about |= {"model": name, "trivial": rival.is_trivial}
        parts = judged.parts.tolist()
        append_rows(aside, ({"metric": "judged", "value": first, "weight": second, **about} for first, second in parts))
    if aside.exists():
        aside.replace(path)


def read_judged(path: Path) -> dict[str, Rival]:
    """Reads the scores that `write_judged` wrote; none if the file does not exist."""
    if not path.exists():
        return {}
    by_name: dict[str, list[Row]] = {}
    for row in read_rows(path):
        by_name.setdefault(row["model"], []).append(row)
    rivals = {}
    for name, rows in by_name.items():
        parts = np.array([[row["value"], row["weight"]] for row in rows], dtype=float)
        first = rows[0]
        if first["good"] not in ("low", "high") or first["statistic"] not in ("ratio", "auroc"):
            raise SubquadError(f"{path} is not a file of scores: delete the folder and go on with --resume")
        judged = Judged(first["of"], first["good"], first["unit"], parts, first["statistic"])
        rivals[name] = Rival(judged, bool(first["trivial"]))
    return rivals
