"""`subquad reproduce`."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from subquad.cli import INTERRUPTED
from subquad.cli.show import show
from subquad.cli.values import choose
from subquad.errors import SubquadError
from subquad.experiments import copying
from subquad.report.copying import verdict_table, write_replication_page
from subquad.results import Run

EXPERIMENTS = {"copy": copying}


@dataclass(frozen=True)
class Reproduce:
    """Runs a published experiment again, and gives a verdict on each of its claims."""

    experiment: Annotated[str, tyro.conf.Positional]
    scale: copying.Scale = "quick"
    """quick: small models, in minutes; long: the same at twice the length or more; paper: the settings of the papers."""
    jobs: int = max(1, os.cpu_count() or 1)
    """Trainings at the same time, each on one thread."""
    out: Path | None = None
    """The folder: runs/reproduce-EXPERIMENT-SCALE unless told. One that is there already is gone on with."""


def main(arguments: Sequence[str]) -> int:
    """Trains what is missing, then judges."""
    console = Console()
    if not arguments:
        for name, experiment in EXPERIMENTS.items():
            console.print(f"[bold]{name}[/bold]: {experiment.CLAIM}", highlight=False)
            for scale, grid in experiment.SCALES.items():
                count = len(list(grid.trials()))
                console.print(f"  --scale {scale}: {count} trainings and the timing; {grid.minutes}", highlight=False)
        return 0
    given = tyro.cli(Reproduce, args=list(arguments), prog="subquad reproduce")
    experiment = EXPERIMENTS[choose("experiment", given.experiment, EXPERIMENTS)]
    if given.jobs < 1:
        raise SubquadError(f"--jobs must be positive, but is {given.jobs}")
    folder = given.out or Path("runs") / f"reproduce-{given.experiment}-{given.scale}"
    grid = experiment.SCALES[given.scale]
    trials = list(grid.trials())
    try:
        _train_all(trials, folder, given.jobs, console)
        _time(grid, folder)
    except KeyboardInterrupt:
        again = f"subquad reproduce {given.experiment} --scale {given.scale} --out {folder}"
        print(f"subquad: interrupted; go on with: {again}", file=sys.stderr)
        return INTERRUPTED
    page = folder / "report.html"
    write_replication_page(folder, given.scale, page)
    show(verdict_table(folder, given.scale), console)
    console.print(f"The page: {page}", highlight=False, soft_wrap=True)
    return 0


def _train_all(trials: Sequence[copying.Trial], folder: Path, jobs: int, console: Console) -> None:
    """Every trial that is not finished, some at a time, each in a process on one thread."""
    waiting = [trial for trial in trials if not copying.finished(folder / trial.name)]
    running: dict[str, subprocess.Popen[str]] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        task = bar.add_task("trainings", total=len(trials), completed=len(trials) - len(waiting))
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    trial = waiting.pop(0)
                    running[trial.name] = _start(trial, folder)
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


def _start(trial: copying.Trial, folder: Path) -> subprocess.Popen[str]:
    own = folder / trial.name
    resumed = (own / "run.json").exists()
    arguments = ["--resume", str(own)] if resumed else [*trial.arguments, "--out", str(own)]
    return subprocess.Popen(
        [sys.executable, "-m", "subquad", "train", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _time(grid: copying.Grid, folder: Path) -> None:
    """One training step by length: how it grows, and from where on each attention is faster."""
    from subquad.cli import compare

    own = folder / "timing"
    if (own / "run.json").exists():
        Run.open(own, "compare")
        code = compare.main(["--resume", str(own), "--budget", str(grid.timing_budget)])
    else:
        code = compare.main([*grid.timing, "--budget", str(grid.timing_budget), "--out", str(own)])
    if code == INTERRUPTED:
        raise KeyboardInterrupt
