"""Runs the trainings and conversions of an experiment as processes of `subquad train` and `subquad convert`."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from subquad.cli.options import Flags, clashing
from subquad.cli.show import CountColumn, PlainColumn
from subquad.cli.training_options import Shared
from subquad.errors import SubquadError
from subquad.experiments.base import Conversion, Training, Trial, is_finished

POLL_SECONDS = 0.2
"""Pause in seconds between two checks of running processes."""


def train_all(trials: Sequence[Trial], folder: Path, jobs: int, console: Console) -> None:
    """Runs all unfinished trials, `jobs` at a time, each on one thread in a process that ends with this one."""
    waiting = [trial for trial in trials if not is_finished(folder / trial.name)]
    running: dict[str, subprocess.Popen[str]] = {}
    columns = (PlainColumn(), BarColumn(), CountColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=2, disable=not console.is_terminal) as bar:
        task = bar.add_task("trainings", total=len(trials), completed=len(trials) - len(waiting))
        try:
            while waiting or running:
                while len(running) < jobs and (trial := next_ready(waiting, running, folder)):
                    waiting.remove(trial)
                    running[trial.name] = start_process(trial, folder)
                assert running, f"{waiting[0].name} waits for {waiting[0].start}, which is not among the trainings"
                bar.update(task, description=", ".join(running))
                time.sleep(POLL_SECONDS)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    _check_end(running.pop(name), folder / name)
                    bar.advance(task)
                    if not console.is_terminal:  # a bar is drawn on a terminal only
                        console.print(f"trained {name}: {len(trials) - len(waiting) - len(running)} of {len(trials)}")
                        console.file.flush()
        finally:
            for process in running.values():
                process.kill()
                process.communicate()


def next_ready(waiting: Sequence[Trial], running: Collection[str], folder: Path) -> Trial | None:
    """Returns the first waiting trial whose starting model is finished, or None."""

    def has_start(trial: Trial) -> bool:
        return not trial.start or (trial.start not in running and is_finished(folder / trial.start))

    return next(filter(has_start, waiting), None)


def start_process(trial: Trial, folder: Path) -> subprocess.Popen[str]:
    """Starts or resumes a trial in a process that ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-m", "subquad.cli.child", str(os.getpid()), *command_words(trial, folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _check_end(process: subprocess.Popen[str], folder: Path) -> None:
    """Raises `SubquadError` if a process failed."""
    errors = process.communicate()[1].strip().splitlines()
    if process.returncode:
        raise SubquadError(f"the training {folder} stopped: {errors[-1] if errors else 'without a word'}")


def command_words(trial: Trial, folder: Path) -> list[str]:
    """Returns the words of the command that starts or resumes a trial."""
    out = folder / trial.name
    command = "train" if isinstance(trial.work, Training) else "convert"
    if (out / "run.json").exists():
        return [command, "--resume", str(out)]
    return [*new_command(trial, folder), "--no-page", "--out", str(out)]


def new_command(trial: Trial, folder: Path) -> list[str]:
    """Returns the words of a trial's command. This is the only place where options become words."""
    start = str(folder / trial.start) if trial.start else ""
    if isinstance(trial.work, Training):
        return ["train", *_training_words(trial.work, start), "--seed", str(trial.seed)]
    return ["convert", *_conversion_words(trial.work, start), "--seed", str(trial.seed)]


def _training_words(work: Training, start: str) -> Iterator[str]:
    """Yields the words of a training. Except for the task's, all options are written, as defaults depend on the task."""
    yield from (work.task.kind, "--attention", work.attention.kind)
    parts = {"task": work.task, "attention": work.attention, "model": work.model, "training": work.options}
    flags = clashing({"shared": Shared(), **parts})
    for name, options in parts.items():
        yield from option_words(options, flags, skip_defaults=name == "task")
    if start:
        yield from ("--start", start)


def _conversion_words(work: Conversion, start: str) -> Iterator[str]:
    yield from (work.model or start, "--attention", work.attention.kind)
    if work.text:
        yield from ("--text", work.text)
    for changed in (work.attention, work.options):
        yield from option_words(changed, {}, skip_defaults=True)


def option_words(options: Any, flags: Flags, *, skip_defaults: bool = False) -> Iterator[str]:
    """Yields the options of a frozen dataclass as words of a command line. A feature map is named by its kind.

    `flags` maps options to their names on the command line where these differ from the names of the fields.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if not field.init or value is None or (skip_defaults and value == _default(field)):
            continue
        name = flags.get((type(options), field.name), field.name.replace("_", "-"))
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif isinstance(value, tuple):
            yield from (f"--{name}", *map(str, value))
        else:
            yield from (f"--{name}", str(getattr(value, "kind", value)))


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
