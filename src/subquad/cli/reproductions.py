"""Opens the folder of `subquad reproduce`, and checks its options and data before anything runs."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.attention import options_from
from subquad.checking import Checked, read
from subquad.cli import convert, train
from subquad.cli.trainings import new_command
from subquad.conversion import ConversionOptions
from subquad.errors import SubquadError
from subquad.experiments.base import Conversion, Training, Trial, is_finished
from subquad.machine import circumstances
from subquad.results import Run
from subquad.runs import read_options
from subquad.tasks.base import DATA_FIELDS


@dataclass(frozen=True)
class Kept(Checked):
    """Options of a reproduction as stored in run.json."""

    experiment: str
    scale: str
    data: str | None
    original: str | None

    @property
    def words(self) -> str:
        """The options as words of a command line."""
        paths = {"--data": self.data, "--original": self.original}
        more = "".join(f" {name} {shlex.quote(path)}" for name, path in paths.items() if path is not None)
        return f"{self.experiment} --scale {self.scale}{more}"


def open_reproduction(folder: Path, options: Kept, trials: Sequence[Trial]) -> Run:
    """Opens the run in a folder or creates it. Raises `SubquadError` for other options or unreadable data."""
    if (folder / "run.json").exists():
        run = Run.open(folder, "reproduce")
        before = read(Kept, run.about["options"], f"{folder / 'run.json'}: options")
        if before != options:
            raise SubquadError(f"{folder} holds `subquad reproduce {before.words}`: give the same, or choose another --out")
        _check_data(folder, trials)
        return run
    _refuse_other_trainings(folder, options, trials)
    _check_data(folder, trials)
    about = {"options": dataclasses.asdict(options), **circumstances(f"subquad reproduce {options.words}")}
    return Run.create(folder, "reproduce", about)


def _refuse_other_trainings(folder: Path, options: Kept, trials: Sequence[Trial]) -> None:
    """Raises `SubquadError` for a folder with other trainings than these; earlier versions wrote no run.json for it."""
    trial_by_name = {trial.name: trial for trial in trials}
    for path in sorted(folder.glob("*/run.json")):
        about, trial = Run.open(path.parent).about, trial_by_name.get(path.parent.name)
        if about.get("kind") in ("train", "convert") and (trial is None or not _is_of(about, trial, folder)):
            raise SubquadError(f"{path.parent} is not of `subquad reproduce {options.words}`: choose another --out")


def _is_of(about: Mapping[str, Any], trial: Trial, folder: Path) -> bool:
    """Whether a run was made with the options of a trial."""
    options, work = about["options"], trial.work
    if about["seed"] != trial.seed or (about["kind"] == "train") != isinstance(work, Training):
        return False
    if isinstance(work, Training):
        task: Any = work.task
        if trial.start:
            task = dataclasses.replace(task, start=str(folder / trial.start))
        return tuple(read_options(options)) == (task, work.attention, work.model, work.options)
    conversion = read(ConversionOptions, options["conversion"], "options: conversion")
    attention = options_from(options["mechanism"])
    return conversion == work.options and _without_length(attention) == _without_length(work.attention)


def _without_length(attention: Any) -> dict[str, Any]:
    """Returns the options of an attention without max_length, which a conversion sets to that of the model."""
    return {name: value for name, value in dataclasses.asdict(attention).items() if name != "max_length"}


DESCRIBERS: dict[type[Any], Callable[[Sequence[str]], object]] = {
    Training: train.plan_run,
    Conversion: convert.plan_run,
}
"""Functions that read the data of a command line and raise `SubquadError` if it cannot be run."""


def _check_data(folder: Path, trials: Sequence[Trial]) -> None:
    """Reads the data of all unfinished trials, once for each source, so that nothing runs if some cannot be read."""
    checked_sources: set[tuple[str, ...]] = set()
    for trial in trials:
        source = _source(trial)
        if source and not trial.start and source not in checked_sources and not is_finished(folder / trial.name):
            checked_sources.add(source)
            DESCRIBERS[type(trial.work)](new_command(trial, folder)[1:])


def _source(trial: Trial) -> tuple[str, ...]:
    """Returns the source of a trial: task and data, or original model and text; an empty tuple for simulated data."""
    if isinstance(trial.work, Conversion):
        return "convert", trial.work.model, trial.work.text
    values = [str(value) for name in DATA_FIELDS if (value := getattr(trial.work.task, name, ""))]
    return (trial.work.task.kind, *values) if values else ()
