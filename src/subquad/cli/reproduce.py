"""`subquad reproduce`."""

import dataclasses
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from subquad.checking import Checked, Count, FilePath, Words
from subquad.cli import INTERRUPTED
from subquad.cli.parsing import parse
from subquad.cli.show import Output, PlainColumn, show
from subquad.cli.values import choose
from subquad.errors import SubquadError
from subquad.experiments import (
    conversion_claims,
    conversion_study,
    copying,
    events,
    linformer_claims,
    linformer_study,
    memory,
    transactions,
)
from subquad.experiments.trials import Trial, Verdict, finished
from subquad.report.copying import write_replication_page
from subquad.report.events import write_events_page
from subquad.report.linformer import write_linformer_page
from subquad.report.memory import write_memory_page
from subquad.report.recipes import write_recipes_page
from subquad.report.tables import verdicts
from subquad.report.transactions import write_transactions_page
from subquad.results import Run


class Scale(Protocol):
    """What an experiment runs at one scale."""

    @property
    def minutes(self) -> str:
        """How long it takes, in words."""
        ...

    def trials(self) -> Iterator[Trial]:
        """The trainings."""
        ...


class Experiment(NamedTuple):
    """A published claim, and how it is looked into."""

    claim: str
    scales: Mapping[str, Scale]
    measure: Callable[[Path, str], None]  # what is measured beside the trainings
    judge: Callable[[Path, str], list[Verdict]]
    write_page: Callable[[Path, str, Path], None]


def _time_copying(folder: Path, scale: str) -> None:
    """One training step by length: how it grows, and from where on each attention is faster."""
    _time(folder / "timing", copying.SCALES[scale].timing, copying.SCALES[scale].timing_budget)


def _measure_linformer(folder: Path, scale: str) -> None:
    """The singular values of softmax's attention, seed by seed, and Linformer's speed-ups."""
    grid = linformer_study.SCALES[scale]
    for seed in grid.seeds:
        _look(folder / linformer_study.Variant(grid.looked_at).name(seed), folder / f"spectrum-{seed}")
    _time(folder / "timing", grid.timing, grid.timing_budget)


def _measure_nothing(folder: Path, scale: str) -> None:
    """Conversions have measured all there is."""


def _time(own: Path, arguments: Sequence[str], budget: int) -> None:
    from subquad.cli import compare

    if (own / "run.json").exists():
        Run.open(own, "compare")
        code = compare.main(["--resume", str(own), "--budget", str(budget)])
    else:
        code = compare.main([*arguments, "--budget", str(budget), "--out", str(own)])
    if code == INTERRUPTED:
        raise KeyboardInterrupt


def _look(trained: Path, own: Path) -> None:
    """What `subquad spectrum` does, without its page."""
    from subquad.cli import spectrum

    there = (own / "run.json").exists()
    if there and Run.open(own, "spectrum").rows():
        return
    given, console = spectrum.Spectrum(model=str(trained), sequences=SEQUENCES), Output()
    looked = spectrum.look(given, console)
    rows = spectrum.measured(looked, console, random=True)
    command = ["subquad", "spectrum", str(trained), "--sequences", str(SEQUENCES)]
    about = spectrum.describe_run(given, looked, command)
    (Run.open(own) if there else Run.create(own, "spectrum", about)).append(rows)


SEQUENCES = 4
"""Whose attention matrices are looked at."""


EXPERIMENTS: dict[str, Experiment] = {
    "copy": Experiment(copying.CLAIM, copying.SCALES, _time_copying, copying.judge, write_replication_page),
    "infinity": Experiment(memory.CLAIM, memory.SCALES, memory.measure, memory.judge, write_memory_page),
    "transactions": Experiment(
        transactions.CLAIM, transactions.SCALES, transactions.measure, transactions.judge, write_transactions_page
    ),
    "events": Experiment(events.CLAIM, events.SCALES, events.measure, events.judge, write_events_page),
    "linformer": Experiment(
        linformer_study.CLAIM, linformer_study.SCALES, _measure_linformer, linformer_claims.judge, write_linformer_page
    ),
    "conversion": Experiment(
        conversion_study.CLAIM, conversion_study.SCALES, _measure_nothing, conversion_claims.judge, write_recipes_page
    ),
}


CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Reproduce(Checked):
    """Runs a published experiment again, and gives a verdict on each of its claims."""

    experiment: Annotated[Words, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")]
    scale: Words = "quick"
    """quick: small models, in minutes; paper: the settings of the papers. `subquad reproduce` lists them."""
    jobs: Count = CORES
    """Trainings at the same time, each on one thread."""
    out: FilePath | None = None
    """The folder: runs/reproduce-EXPERIMENT-SCALE unless told. One that is there already is gone on with."""
    data: FilePath | None = None
    """Real data, for an experiment that takes them: transactions (Sberbank's or Berka's folder, or a table), events (a
    folder of EasyTPP's files or of times and types, or of several such folders), linformer (texts; labels, where they have
    some, are what its classifiers learn), conversion (texts)."""
    original: FilePath | None = None
    """For conversion: a run of `subquad train mlm`, or the folder of a masked language model of Hugging Face, that is
    converted in the place of one that is trained here."""


def main(arguments: Sequence[str]) -> int:
    """Trains what is missing, measures the rest, then judges."""
    console = Output()
    if not arguments:
        _list(console)
        return 0
    given = parse(Reproduce, arguments, prog="subquad reproduce")
    experiment = EXPERIMENTS[choose("experiment", given.experiment, EXPERIMENTS)]
    scale = choose("scale", given.scale, experiment.scales)
    folder = given.out or Path("runs") / f"reproduce-{given.experiment}-{scale}"
    grid = _with_original(_with_data(experiment.scales[scale], given.experiment, given.data), given)
    try:
        _train_all(list(grid.trials()), folder, given.jobs, console)
        experiment.measure(folder, scale)
    except KeyboardInterrupt:
        paths = {"--data": given.data, "--original": given.original}
        more = "".join(f" {name} {shlex.quote(str(path))}" for name, path in paths.items() if path)
        again = f"subquad reproduce {given.experiment} --scale {scale} --out {shlex.quote(str(folder))}{more}"
        print(f"subquad: interrupted; go on with: {again}", file=sys.stderr)
        return INTERRUPTED
    page = folder / "report.html"
    experiment.write_page(folder, scale, page)
    show(verdicts(experiment.judge(folder, scale)), console)
    console.print(f"The page: {page}", soft_wrap=True)
    return 0


def _with_data(grid: Any, name: str, data: Path | None) -> Scale:
    """The same on real data."""
    if data is None:
        return grid
    if not hasattr(grid, "data"):
        raise SubquadError(f"the experiment {name} makes its own data: leave out --data")
    if not data.exists():
        raise SubquadError(f"there is nothing at {data}: --data takes a folder or a table")
    return dataclasses.replace(grid, data=str(data))


def _with_original(grid: Any, given: Reproduce) -> Scale:
    """The same with a model that is there already."""
    path = given.original
    if path is None:
        return grid
    if not hasattr(grid, "original"):
        raise SubquadError(f"the experiment {given.experiment} trains all its models itself: leave out --original")
    is_run = (path / "run.json").exists()
    if not is_run and not (path / "config.json").exists():
        raise SubquadError(
            f"there is no model at {path}: --original takes a run of subquad train mlm, or a folder of Hugging Face"
        )
    if is_run and given.data is not None:
        raise SubquadError("a run is converted on its own text: leave out --data, or --original")
    return dataclasses.replace(grid, original=str(path))


def _list(console: Console) -> None:
    for name, experiment in EXPERIMENTS.items():
        console.print(f"{name}: {experiment.claim}", style="bold")
        for scale, grid in experiment.scales.items():
            count = len(list(grid.trials()))
            console.print(f"  --scale {scale}: {count} trainings and what is timed; {grid.minutes}")


def _train_all(trials: Sequence[Trial], folder: Path, jobs: int, console: Console) -> None:
    """Every trial that is not finished, some at a time, each in a process on one thread."""
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
                while len(running) < jobs and (trial := _ready(waiting, running, folder)):
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


def _ready(waiting: Sequence[Trial], running: Collection[str], folder: Path) -> Trial | None:
    """The first that has what it starts from."""

    def has_start(trial: Trial) -> bool:
        return not trial.start or (trial.start not in running and finished(folder / trial.start))

    return next(filter(has_start, waiting), None)


def _start(trial: Trial, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "subquad", trial.command, *_arguments(trial, folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _arguments(trial: Trial, folder: Path) -> list[str]:
    """What a trial's command is given, or how it goes on with what is there."""
    own = folder / trial.name
    if (own / "run.json").exists():
        return ["--resume", str(own)]
    if trial.command == "convert":
        model = (str(folder / trial.start),) if trial.start else ()
        return [*model, *trial.arguments, "--no-page", "--out", str(own)]
    start = ("--start", str(folder / trial.start)) if trial.start else ()
    return [*trial.arguments, *start, "--no-page", "--out", str(own)]
