"""Runs the trainings and conversions of an experiment as processes of `subquad train` and `subquad convert`."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from subquad.cli.options import Flags, clashing
from subquad.cli.show import CountColumn, PlainColumn
from subquad.cli.training_options import Shared
from subquad.errors import SubquadError
from subquad.experiments.base import Conversion, Training, Trial, is_finished
from subquad.measure.workers import ERROR
from subquad.places.base import Ended, Job, Workplace
from subquad.results import Row, holds_run

POLL_SECONDS = 0.2
"""Pause in seconds between two checks of running processes."""


@dataclass(frozen=True)
class TrialWork:
    """A training or conversion as a job of a workplace."""

    trial: Trial
    threads: int = 1

    def __call__(self, held: object, folder: Path) -> list[Row]:
        """Runs the command to its end, in a process of its own. Its rows are in the files that it writes."""
        if problem := problem_of(start_process(self.trial, folder.parent, self.threads)):
            raise SubquadError(problem)
        return []


class Processes:
    """A workplace of processes of this machine, each on one thread, which end with this one."""

    def __init__(self, jobs: int) -> None:
        """`jobs` is the number of processes side by side."""
        self.jobs = jobs
        self.running: dict[str, tuple[Job, subprocess.Popen[str]]] = {}

    def has_room(self) -> bool:
        """Whether another process can be started."""
        return len(self.running) < self.jobs

    def begin(self, job: Job) -> None:
        """Starts or resumes a trial."""
        assert isinstance(job.work, TrialWork)
        self.running[job.name] = job, start_process(job.work.trial, job.folder.parent)

    def ended(self, seconds: float) -> list[Ended]:
        """Waits for so many seconds, and returns the trials that ended."""
        time.sleep(seconds)
        over = [(job, process) for job, process in self.running.values() if process.poll() is not None]
        for job, _ in over:
            del self.running[job.name]
        return [Ended(job, [], ERROR if (problem := problem_of(process)) else "", problem) for job, process in over]

    def close(self) -> None:
        """Ends all processes."""
        for _, process in self.running.values():
            process.kill()
            process.communicate()
        self.running = {}


def train_all(trials: Sequence[Trial], folder: Path, workplace: Workplace, console: Console, *, threads: int = 1) -> None:
    """Runs all unfinished trials, as many at a time as the workplace has room for."""
    waiting = [trial for trial in trials if not is_finished(folder / trial.name)]
    running: dict[str, None] = {}
    columns = (PlainColumn(), BarColumn(), CountColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=2, disable=not console.is_terminal) as bar:
        task = bar.add_task("trainings", total=len(trials), completed=len(trials) - len(waiting))
        while waiting or running:
            while workplace.has_room() and (trial := next_ready(waiting, running, folder)):
                waiting.remove(trial)
                running[trial.name] = None
                workplace.begin(_job(trial, folder, threads))
            waits = f"{waiting[0].name} waits for {waiting[0].start}, which is not among the trainings" if waiting else ""
            assert running or not workplace.has_room(), waits
            bar.update(task, description=", ".join(running))
            for ended in workplace.ended(POLL_SECONDS):
                if ended.failure:
                    raise SubquadError(f"the training {ended.job.folder} stopped: {ended.message}")
                del running[ended.job.name]
                bar.advance(task)
                if not console.is_terminal:  # a bar is drawn on a terminal only
                    done = len(trials) - len(waiting) - len(running)
                    console.print(f"trained {ended.job.name}: {done} of {len(trials)}")
                    console.file.flush()


def _job(trial: Trial, folder: Path, threads: int) -> Job:
    needed = [folder / name for name in (trial.start, trial.name) if name and holds_run(folder / name)]
    return Job(trial.name, TrialWork(trial, threads), folder / trial.name, needs=tuple(needed))


def next_ready(waiting: Sequence[Trial], running: Collection[str], folder: Path) -> Trial | None:
    """Returns the first waiting trial whose starting model is finished, or None."""

    def has_start(trial: Trial) -> bool:
        return not trial.start or (trial.start not in running and is_finished(folder / trial.start))

    return next(filter(has_start, waiting), None)


def start_process(trial: Trial, folder: Path, threads: int = 1) -> subprocess.Popen[str]:
    """Starts or resumes a trial in a process that ends with this one."""
    return start_command(command_words(trial, folder), threads)


def start_command(words: Sequence[str], threads: int) -> subprocess.Popen[str]:
    """Starts a command of subquad in a process that ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-m", "subquad.cli.child", str(os.getpid()), *words],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def problem_of(process: subprocess.Popen[str]) -> str:
    """Waits for the end of a process, and returns the last line that it said if it failed; else nothing."""
    errors = process.communicate()[1].strip().splitlines()
    if not process.returncode:
        return ""
    return errors[-1] if errors else "without a word"


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
        yield from option_words(options, flags, usual=type(options)() if name == "task" else None)
    if start:
        yield from ("--start", start)


def _conversion_words(work: Conversion, start: str) -> Iterator[str]:
    yield from (work.model or start, "--attention", work.attention.kind)
    if work.text:
        yield from ("--text", work.text)
    for changed in (work.attention, work.options):
        yield from option_words(changed, {}, usual=type(changed)())


def option_words(options: Any, flags: Flags, *, usual: Any = None) -> Iterator[str]:
    """Yields the options of a frozen dataclass as words of a command line. A feature map is named by its kind.

    `flags` maps options to their names on the command line where these differ from the names of the fields. Values that are
    those of `usual`, which is of the same class, are left out.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if not field.init or value is None or (usual is not None and value == getattr(usual, field.name)):
            continue
        name = flags.get((type(options), field.name), field.name.replace("_", "-"))
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif isinstance(value, tuple):
            yield from (f"--{name}", *map(str, value))
        else:
            yield from (f"--{name}", str(getattr(value, "kind", value)))
