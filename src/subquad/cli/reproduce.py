"""`subquad reproduce`."""

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import tyro
from rich.console import Console

from subquad.checking import Checked, Count, FilePath, Words, read
from subquad.cli import INTERRUPTED
from subquad.cli.parsing import parse
from subquad.cli.reproductions import Kept, open_reproduction
from subquad.cli.show import Output, show
from subquad.cli.streams import say
from subquad.cli.trainings import train_all
from subquad.cli.values import choose
from subquad.errors import SubquadError
from subquad.experiments.base import Trial
from subquad.experiments.conversion import grid as conversion_study
from subquad.experiments.conversion import verdicts as conversion_claims
from subquad.experiments.conversion.page import write_recipes_page
from subquad.experiments.copy import grid as copying
from subquad.experiments.copy.page import write_replication_page
from subquad.experiments.events import grid as events
from subquad.experiments.events.page import write_events_page
from subquad.experiments.infinity import grid as memory
from subquad.experiments.infinity.page import write_memory_page
from subquad.experiments.linformer import grid as linformer_study
from subquad.experiments.linformer import verdicts as linformer_claims
from subquad.experiments.linformer.page import write_linformer_page
from subquad.experiments.transactions import grid as transactions
from subquad.experiments.transactions.page import write_transactions_page
from subquad.report.tables import verdicts
from subquad.results import Row, Run
from subquad.statistics import Verdict


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

    run = Run.open(own, "spectrum") if (own / "run.json").exists() else None
    if run is not None and _is_whole(run.rows()):
        return
    given, console = spectrum.Spectrum(model=str(trained), sequences=SEQUENCES), Output()
    looked = spectrum.look(given, console)
    rows = spectrum.measured(looked, console, random=True)
    command = ["subquad", "spectrum", str(trained), "--sequences", str(SEQUENCES)]
    if run is None:
        Run.create(own, "spectrum", spectrum.describe_run(given, looked, command), rows)
    else:  # left by an older version, which was killed while it wrote
        run.keep_first_rows(0)
        run.append(rows)


def _is_whole(rows: Sequence[Row]) -> bool:
    """Whether the model with fresh weights, the second of the two, has as many rows as the trained one."""
    models = [row["model"] for row in rows]
    return models.count("random") == models.count("trained") > 0


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
    trials = list(_with_original(_with_data(experiment.scales[scale], given.experiment, given.data), given).trials())
    options = Kept(given.experiment, scale, *(None if path is None else str(path) for path in (given.data, given.original)))
    run = open_reproduction(folder, options, trials)
    with run.writing():
        return _reproduce(run, options, trials, given.jobs, console)


def _reproduce(run: Run, options: Kept, trials: Sequence[Trial], jobs: int, console: Console) -> int:
    experiment, scale = EXPERIMENTS[options.experiment], options.scale
    try:
        train_all(trials, run.folder, jobs, console)
        experiment.measure(run.folder, scale)
    except KeyboardInterrupt:
        say(f"interrupted; go on with: subquad reproduce {options.words} --out {shlex.quote(str(run.folder))}")
        return INTERRUPTED
    judged = experiment.judge(run.folder, scale)
    run.keep_first_rows(0)
    run.append(map(_row, judged))
    page = run.folder / "report.html"
    report(run, page)
    show(verdicts(judged), console)
    console.print(f"The page: {page}", soft_wrap=True)
    return 0


def _row(verdict: Verdict) -> Row:
    held = None if verdict.held is None else int(verdict.held)
    return {"metric": "held", "value": held, "unit": "truth", "claim": verdict.claim, "figures": verdict.figures}


def report(run: Run, page: Path) -> None:
    """Writes the page of an experiment that was run to its end."""
    options = read(Kept, run.about["options"], f"{run.folder / 'run.json'}: options")
    experiment = EXPERIMENTS[choose("experiment", options.experiment, EXPERIMENTS)]
    experiment.write_page(run.folder, choose("scale", options.scale, experiment.scales), page)


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
