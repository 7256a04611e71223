"""`subquad reproduce`."""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from subquad.checking import Checked, Count, FilePath, Words, read
from subquad.cli import INTERRUPTED, compare, spectrum
from subquad.cli.foreign import options_of_train
from subquad.cli.parsing import parse
from subquad.cli.reproductions import Kept, open_reproduction
from subquad.cli.show import Output, show
from subquad.cli.streams import say
from subquad.cli.trainings import Processes, train_all
from subquad.cli.values import choose
from subquad.compare.runs import describe_run, read_plan
from subquad.errors import SubquadError
from subquad.experiments.base import Experiment, Instruments, Scale, Timing, Trial
from subquad.experiments.registry import EXPERIMENTS
from subquad.places.base import Workplace
from subquad.places.cluster import open_cluster
from subquad.places.options import Placing
from subquad.report.page import Page, write_page
from subquad.report.runs import command_of
from subquad.report.verdicts import verdict_table
from subquad.results import Row, Run
from subquad.statistics import Verdict

CORES = os.cpu_count() or 1
SPECTRUM_SEQUENCES = 4
"""Number of sequences whose attention matrices are measured for each trained model."""


@dataclass(frozen=True)
class Reproduce(Checked):
    """Repeats a published experiment, and gives a verdict on each of its claims."""

    experiment: Annotated[Words, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")]
    scale: Words = "quick"
    """quick: small models, in minutes; paper: the settings of the paper. `subquad reproduce` lists all scales."""
    jobs: Count | None = None
    """Number of simultaneous trainings, each on one thread; default: the number of cores, or what a cluster has room for."""
    out: FilePath | None = None
    """Folder of the reproduction; runs/reproduce-EXPERIMENT-SCALE by default. An existing one is resumed."""
    data: FilePath | None = None
    """Real data, for experiments that take them: transactions (Sberbank's or Berka's folder, or a table), events (a
    folder of EasyTPP's files or of times and types, or a folder of such folders), linformer (texts, with labels for its
    classifiers if they have some), conversion (texts), lra (a folder with some of the folders listops, text, retrieval,
    image and pathfinder), images and speech (what `subquad train` takes for them)."""
    original: FilePath | None = None
    """For conversion: a run of `subquad train mlm`, or the folder of a Hugging Face masked language model, to be
    converted instead of a model that the experiment trains."""
    placing: Annotated[Placing, tyro.conf.OmitArgPrefixes] = field(default_factory=Placing)


def main(arguments: Sequence[str]) -> int:
    """Trains the models that are missing, measures, judges the claims and writes the page."""
    console = Output()
    if not arguments:
        _list(console)
        return 0
    options = parse(Reproduce, arguments, prog="subquad reproduce")
    options.placing.require_cluster()
    experiment = EXPERIMENTS[choose("experiment", options.experiment, EXPERIMENTS)]
    scale = choose("scale", options.scale, experiment.scales)
    folder = options.out or Path("runs") / f"reproduce-{options.experiment}-{scale}"
    grid = _scale_with_inputs(experiment, scale, options)
    trials = list(grid.trials())
    paths = (None if path is None else str(path) for path in (options.data, options.original))
    kept = Kept(options.experiment, scale, *paths)
    with options_of_train(Reproduce, "`subquad reproduce` takes data as they are, so change the files"):
        run = open_reproduction(folder, kept, trials)
    with run.writing():
        return _reproduce(run, kept, grid, trials, options, console)


def _reproduce(run: Run, kept: Kept, grid: Scale, trials: Sequence[Trial], options: Reproduce, console: Console) -> int:
    experiment, scale = EXPERIMENTS[kept.experiment], kept.scale
    command = f"subquad reproduce {kept.words}"
    instruments = Instruments(time=lambda folder, timing: measure_timing(folder, timing, command, console), look=look)
    try:
        _train(run, grid, trials, options, console)
        experiment.measure(run.folder, scale, instruments)
    except KeyboardInterrupt:
        say(f"interrupted; go on with: {command} --out {shlex.quote(str(run.folder))}")
        return INTERRUPTED
    judged = experiment.judge(run.folder, scale)
    run.keep_first_rows(0)
    run.append(map(_row, judged))
    page = run.folder / "report.html"
    write_page(page_of(run), page)
    show(verdict_table(judged), console)
    console.print(f"The page: {page}", soft_wrap=True)
    return 0


def _train(run: Run, grid: Scale, trials: Sequence[Trial], options: Reproduce, console: Console) -> None:
    """Runs the trainings that are missing, on this machine or on a cluster."""
    threads, workplace = options.placing.cpus, _workplace(run, options)
    try:
        train_all(trials, run.folder, workplace, console, threads=threads)
        train_all(list(grid.later_trials(run.folder)), run.folder, workplace, console, threads=threads)
    finally:
        workplace.close()


def _workplace(run: Run, options: Reproduce) -> Workplace:
    if not options.placing.on:
        return Processes(options.jobs or CORES)
    paths = [path for path in (options.data, options.original) if path is not None]
    return open_cluster(options.placing, run.folder, tell=say, jobs=options.jobs, paths=paths)


def _row(verdict: Verdict) -> Row:
    held = None if verdict.held is None else int(verdict.held)
    return {"metric": "held", "value": held, "unit": "truth", "claim": verdict.claim, "figures": verdict.figures}


def page_of(run: Run) -> Page:
    """Returns the page of a finished experiment, with the command that made it, which names the data."""
    options = read(Kept, run.about["options"], f"{run.folder / 'run.json'}: options")
    experiment = EXPERIMENTS[choose("experiment", options.experiment, EXPERIMENTS)]
    page = experiment.page(run.folder, choose("scale", options.scale, experiment.scales))
    return dataclasses.replace(page, commands=[command_of(run, f"subquad reproduce {options.words}")])


def measure_timing(folder: Path, timing: Timing, command: str, console: Console) -> None:
    """Runs or resumes a comparison in a folder, and writes its page."""
    if (folder / "run.json").exists():
        run = Run.open(folder, "compare")
    else:
        run = Run.create(folder, "compare", describe_run(timing.plan, timing.limits, command))
    plan, limits = read_plan(run.about["options"])
    with run.writing():
        compare.measure_run(run, plan, limits, timing.budget_seconds, console)


def look(trained: Path, folder: Path) -> None:
    """Measures the spectrum of a trained run into a folder, without a page, unless the folder has it already."""
    run = Run.open(folder, "spectrum") if (folder / "run.json").exists() else None
    if run is not None and _is_complete(run.rows()):
        return
    options, console = spectrum.Spectrum(model=str(trained), sequences=SPECTRUM_SEQUENCES), Output()
    looked = spectrum.look(options, console)
    rows = spectrum.measured(looked, console, random=True)
    command = ["spectrum", str(trained), "--sequences", str(SPECTRUM_SEQUENCES)]
    if run is None:
        Run.create(folder, "spectrum", spectrum.about_run(options, looked, command), rows)
    else:  # an incomplete folder of an earlier version that was killed
        run.keep_first_rows(0)
        run.append(rows)


def _is_complete(rows: Sequence[Row]) -> bool:
    """Whether the randomly initialized model, which is measured last, has as many rows as the trained one."""
    models = [row["model"] for row in rows]
    return models.count("random") == models.count("trained") > 0


def _scale_with_inputs(experiment: Experiment, scale: str, options: Reproduce) -> Scale:
    """Returns the scale of an experiment with the user's data and original model."""
    _check_inputs(experiment, options)
    paths = {"data": options.data, "original": options.original}
    return dataclasses.replace(
        experiment.scales[scale], **{name: str(path) for name, path in paths.items() if path is not None}
    )


def _check_inputs(experiment: Experiment, options: Reproduce) -> None:
    """Raises `SubquadError` for data and models that the experiment does not take or that do not exist."""
    data, original = options.data, options.original
    if data is not None and not experiment.takes_data:
        raise SubquadError(f"the experiment {options.experiment} makes its own data: leave out --data")
    if data is not None and not data.exists():
        raise SubquadError(f"there is nothing at {data}: --data takes a folder or a table")
    if original is None:
        return
    if not experiment.takes_original:
        raise SubquadError(f"the experiment {options.experiment} trains all its models itself: leave out --original")
    is_run = (original / "run.json").exists()
    if not is_run and not (original / "config.json").exists():
        raise SubquadError(
            f"there is no model at {original}: --original takes a run of subquad train mlm, or a folder of Hugging Face"
        )
    if is_run and data is not None:
        raise SubquadError("a run is converted on its own text: leave out --data, or --original")


def _list(console: Console) -> None:
    """Prints the claim of every experiment, and the number of trainings and the duration of each of its scales."""
    console.print("usage: subquad reproduce EXPERIMENT [--scale SCALE] [options]\n")
    for name, experiment in EXPERIMENTS.items():
        console.print(Text.assemble((name, "bold"), f": {experiment.claim}"))
        scales = RichTable.grid("", "", Column(justify="right", no_wrap=True), "", padding=(0, 2, 0, 0))
        for scale, grid in experiment.scales.items():
            scales.add_row("", f"--scale {scale}", f"{len(list(grid.trials()))} trainings", grid.minutes)
        console.print(scales)
        console.print()
    console.print("Some scales also measure times. The same command continues an experiment that was interrupted.")
