"""The trainings and conversions of an experiment, each in a process."""

import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from subquad.cli.show import PlainColumn
from subquad.errors import SubquadError
from subquad.experiments.base import Trial, finished


def train_all(trials: Sequence[Trial], folder: Path, jobs: int, console: Console) -> None:
    """Runs every trial that is not finished, some at a time, each in a process on one thread that ends with this one."""
    waiting = [trial for trial in trials if not finished(folder / trial.name)]
    running: dict[str, subprocess.Popen[str]] = {}
    columns = (
        PlainColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        task = bar.add_task("trainings", total=len(trials), completed=len(trials) - len(waiting))
        try:
            while waiting or running:
                while len(running) < jobs and (trial := ready(waiting, running, folder)):
                    waiting.remove(trial)
                    running[trial.name] = _start(trial, folder)
                assert running, f"{waiting[0].name} waits for {waiting[0].start}, which is not among the trainings"
                bar.update(task, description=", ".join(running))
                time.sleep(0.2)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    process = running.pop(name)
                    said = process.communicate()[1].strip().splitlines()
                    if process.returncode:
                        raise SubquadError(f"the training {folder / name} stopped: {said[-1] if said else 'without a word'}")
                    bar.advance(task)
        finally:
            for process in running.values():
                process.kill()
                process.communicate()


def ready(waiting: Sequence[Trial], running: Collection[str], folder: Path) -> Trial | None:
    """The first that has what it starts from."""

    def has_start(trial: Trial) -> bool:
        return not trial.start or (trial.start not in running and finished(folder / trial.start))

    return next(filter(has_start, waiting), None)


def _start(trial: Trial, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "subquad.cli.child", str(os.getpid()), trial.command, *arguments(trial, folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def arguments(trial: Trial, folder: Path) -> list[str]:
    """What a trial's command is given, or how it goes on with what is there."""
    own = folder / trial.name
    if (own / "run.json").exists():
        return ["--resume", str(own)]
    if trial.command == "convert":
        model = (str(folder / trial.start),) if trial.start else ()
        return [*model, *trial.arguments, "--no-page", "--out", str(own)]
    start = ("--start", str(folder / trial.start)) if trial.start else ()
    return [*trial.arguments, *start, "--no-page", "--out", str(own)]
