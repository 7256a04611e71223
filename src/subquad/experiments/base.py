"""The contract of an experiment, and the trainings and conversions that it consists of.

An experiment is a package `subquad.experiments.<name>` with a subclass of `Experiment`, and a line in `EXPERIMENTS`
(`subquad.experiments.registry`). Its scales say which trainings to run, as options. Verdicts and the page are made from the
rows in the folder of `subquad reproduce <name>`, finished or not.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from subquad.compare.plan import Plan
from subquad.conversion.options import ConversionOptions
from subquad.conversion.recipes import CONVERSION, EXACT
from subquad.files import read_text
from subquad.machine import circumstances
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.report.page import Page
from subquad.report.training import Trained
from subquad.results import Row, Run
from subquad.statistics import Verdict
from subquad.tasks.base import TaskOptions
from subquad.training import TrainOptions
from subquad.types import AttentionOptions


@dataclass(frozen=True)
class Training:
    """A training of a model on a task, as by `subquad train`."""

    task: TaskOptions
    attention: AttentionOptions
    model: ModelOptions
    options: TrainOptions


@dataclass(frozen=True)
class Conversion:
    """A conversion of a trained model to another attention, as by `subquad convert`."""

    attention: AttentionOptions
    options: ConversionOptions
    model: str = ""
    """Run or folder of the trained model; empty if the trial starts from another trial."""
    text: str = ""
    """Texts for a model that is not a run; empty for the default texts."""


@dataclass(frozen=True)
class Trial:
    """A training or conversion of an experiment, in a folder of its own."""

    name: str
    """Name of the trial and of its folder."""
    variant: str
    """What distinguishes the trial from those that it is compared with, such as the attention."""
    length: int
    """Length of its sequences, or 0 if trials do not differ in length."""
    seed: int
    work: Training | Conversion
    start: str = ""
    """Name of the trial whose model it starts from and which must be finished before; empty for none."""


class Timing(NamedTuple):
    """A comparison of attentions that an experiment measures, as by `subquad compare`."""

    plan: Plan
    limits: Limits
    budget_seconds: float


class Instruments(NamedTuple):
    """Commands for measurements, provided by the command line. Each continues the run in its folder."""

    time: Callable[[Path, Timing], None]
    """Measures a comparison into a folder."""
    look: Callable[[Path, Path], None]
    """Measures the spectrum of a trained run, the first folder, into the second folder."""


@dataclass(frozen=True, kw_only=True)
class Scale(ABC):
    """The trainings and conversions of an experiment at one scale."""

    minutes: str
    """Expected duration, in words."""
    data: str = ""
    """Path of real data; empty for data that are simulated or come with Python."""
    original: str = ""
    """Path of a trained model; empty if the experiment trains it."""

    @abstractmethod
    def trials(self) -> Iterator[Trial]:
        """Yields the trainings and conversions, each after the one that it starts from."""

    def later_trials(self, folder: Path) -> Iterator[Trial]:
        """Yields trials that depend on the results of `trials`, which are finished in the folder; none by default."""
        yield from ()


class Experiment(ABC):
    """A published claim, and how it is tested."""

    claim: ClassVar[str]
    """The published claim, in one sentence."""
    scales: ClassVar[Mapping[str, Scale]]
    """Trials by the name of the scale, one of which is "quick"."""
    takes_data: ClassVar[bool] = False
    takes_original: ClassVar[bool] = False

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:  # noqa: B027, nothing by default
        """Takes measurements other than trainings, after all trainings are finished."""

    @abstractmethod
    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        """Returns a verdict on each part of the claim, from the finished trials in the folder."""

    @abstractmethod
    def page(self, folder: Path, scale: str) -> Page:
        """Returns the page, from the finished trials in the folder, without the command that made them."""


def open_part(folder: Path, kind: str, command: str) -> Run:
    """Opens the run of an experiment's own measurements, such as ``costs``, or creates it."""
    return Run.open(folder, kind) if (folder / "run.json").exists() else Run.create(folder, kind, circumstances(command))


def part_rows(folder: Path, kind: str) -> list[Row] | None:
    """The rows of a run that `open_part` created, or None if there is none."""
    return Run.open(folder, kind).rows() if (folder / "run.json").exists() else None


def is_finished(folder: Path) -> bool:
    """Whether a training, or a conversion with its controls, has its last checkpoint, at its last step or stopped early."""
    if not (folder / "run.json").exists():
        return False
    run = Run.open(folder)
    if run.about.get("kind") == "convert":
        return _is_converted(run)
    training = Run.open(folder, "train").about["options"]["training"]
    if (folder / "checkpoint" / f"step-{training['steps']:09d}").exists():
        return True
    return bool(training.get("patience")) and _stopped_early(run)


def _stopped_early(run: Run) -> bool:
    """Whether a training ended before its last step, as evaluations no longer got better: then it has the final rows."""
    newest = max(run.folder.glob("checkpoint/step-?????????"), default=None)
    ends = {row["step"] for row in run.rows() if row["metric"] == "best_step"} if newest is not None else set()
    return newest is not None and int(newest.name.removeprefix("step-")) in ends


def _is_converted(run: Run) -> bool:
    """Whether the newest checkpoint is after the last phase. Checkpoints of earlier versions lack the number of phases."""
    newest = max(run.folder.glob("checkpoint/step-?????????/about.json"), default=None)
    try:
        about = {} if newest is None else json.loads(read_text(newest))
        if isinstance(about, dict) and "phases" not in about:
            return _has_last_control(run)
        return bool(about["stand"]["phase"] == about["phases"])
    except (ValueError, KeyError, TypeError):  # a damaged checkpoint is not the last
        return False


def _has_last_control(run: Run) -> bool:
    """Whether the last control of a language model's conversion, softmax, has been tuned."""
    last_recipe = EXACT if run.about["options"]["conversion"]["controls"] else CONVERSION
    ends = {"recipe": last_recipe, "stage": "tuned", "split": "test"}
    return any(all(row.get(name) == value for name, value in ends.items()) for row in run.rows())


def finished_rows(folder: Path, trials: Sequence[Trial]) -> dict[str, list[Row]]:
    """The rows of the finished trials, by name."""
    return {trial.name: Run.open(folder / trial.name).rows() for trial in trials if is_finished(folder / trial.name)}


def labelled_runs(folder: Path, trials: Sequence[Trial]) -> list[Trained]:
    """The finished trainings with their rows, labelled by what distinguishes them."""
    rows = finished_rows(folder, trials)
    return [
        Trained(Run.open(folder / trial.name), rows[trial.name], trial.variant) for trial in trials if trial.name in rows
    ]


def last_value(rows: Sequence[Row], metric: str) -> float:
    """The value of a metric at the last step that has it."""
    return [row["value"] for row in rows if row["metric"] == metric][-1]
