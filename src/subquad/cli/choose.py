"""The command `subquad choose`."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn

from subquad.attention import MECHANISMS, Softmax
from subquad.attention.outside.mechanism import imported_parts
from subquad.attention.outside.trust import trusting
from subquad.checking import Checked, Count, FilePath, NonNegative, Positive, Seed, Whole, Words
from subquad.choose.converting import ModelRace
from subquad.choose.cutting import enter_cut
from subquad.choose.decision import Wishes
from subquad.choose.entries import USUAL
from subquad.choose.race import Field, Race, Terms, Watch, memory_share
from subquad.choose.records import Kept, describe, read_kept
from subquad.choose.remote import Remote, hold_tasks
from subquad.choose.space import import_optuna
from subquad.choose.standings import READ_AT, SOFTMAX
from subquad.choose.workers import Pool
from subquad.cli import INTERRUPTED
from subquad.cli.choose_model import Opened, is_model_race, new_model_race, open_model_race
from subquad.cli.concluding import conclude, conclude_model
from subquad.cli.entering import enter_race, prepare_again
from subquad.cli.options import clashing, is_resumed, registry
from subquad.cli.options import joined as joined_parts
from subquad.cli.outside import FLAGS, OUTSIDE, Calling, trust_prefix
from subquad.cli.parsing import check_parts, parse
from subquad.cli.show import Output, PlainColumn
from subquad.cli.spelling import training_words
from subquad.cli.streams import say
from subquad.cli.values import choose, parse_bytes, parse_seconds
from subquad.errors import SubquadError
from subquad.machine import cores
from subquad.models import ModelOptions
from subquad.places.cluster import Cluster, open_cluster
from subquad.places.options import Placing
from subquad.results import Run, describe_run, new_folder, refuse_taken
from subquad.runs import RunOptions
from subquad.tasks import TASKS, Task, TaskOptions
from subquad.tasks.base import DATA_FIELDS, DataSize
from subquad.training import TrainOptions
from subquad.training.loop import import_accelerate
from subquad.types import AttentionOptions, Traits

PROG = "subquad choose"
MOST_JOBS = 1024
"""Largest number of runs side by side."""


@dataclass(frozen=True)
class Choose(Checked):
    """Options of the race."""

    mechanisms: Annotated[
        tuple[Words, ...],
        tyro.conf.arg(
            help=f"Attentions to race: {', '.join(MECHANISMS)}; several by layer, such as linear*3,softmax; and yours on q, "
            f"k and v, as MODULE:NAME. Default: {', '.join(USUAL)}, as far as the task takes them."
        ),
    ] = ()
    cut: Whole | None = None
    """Number of positions to which sequences are cut for softmax in one of the contestants, 0 for none; default: as many
    as cost what linear attention does, if --mechanisms is not given and that is at most half of the 90 percent length."""
    budget: Words = "10m"
    """Time for everything, such as 90s, 10m or 2h."""
    jobs: Count | None = None
    """Number of runs side by side, each on one thread; default: the number of cores, or what a cluster has room for."""
    quality_loss: NonNegative | None = None
    """Largest loss of quality beside the best attention, in the unit of the metric, at which a faster one is recommended;
    default: a share of 3 percent of what the best model gains over the trivial answer."""
    max_seconds: Positive | None = None
    """Largest time in seconds of a forward pass through all layers, for a batch of sequences of the 90 percent length."""
    max_memory: Words = ""
    """Largest peak memory of one attention, forward and backward, for a batch of the longest sequences, such as 500MB."""
    seed: Seed = 0
    """Seed of initial weights, batches and suggested settings. Final runs have this seed and the ones after it."""
    out: FilePath | None = None
    """Folder of the race; default: runs/choose-TASK-DATE-TIME."""
    placing: Annotated[Placing, tyro.conf.OmitArgPrefixes] = dataclasses.field(default_factory=Placing)


@dataclass(frozen=True)
class ResumeChoose(Checked):
    """Continues a race where it stopped, with the options that it was started with."""

    resume: FilePath
    """Folder of the race to continue."""
    budget: Words = ""
    """Time for everything, including what was used before; default: that of the race."""
    placing: Annotated[Placing, tyro.conf.OmitArgPrefixes] = dataclasses.field(default_factory=Placing)


def main(arguments: Sequence[str]) -> int:
    """Races attentions on a task, prints the recommendation, and writes a page and the best model."""
    started = time.monotonic()
    words = list(arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if words[0].split("=")[0] == "--model":
        return _race_model(new_model_race(words), started)
    import_optuna()
    import_accelerate()
    if is_resumed(words):
        resume = parse(ResumeChoose, words, prog=PROG)
        run = Run.open(resume.resume, "choose")
        budget = parse_seconds("--budget", resume.budget) if resume.budget else None
        if is_model_race(run.about):
            return _race_model(open_model_race(run, budget), started)
        kept = read_kept(run.about)
        if budget is not None:
            kept = kept._replace(terms=dataclasses.replace(kept.terms, budget=budget))
        task = kept.field.task.prepare(run.about.get("learned"))
        return _race(run, kept, task, started, _cluster(resume.placing, task, kept.field.task, run.folder, kept.terms.jobs))
    return _new_race(words, started)


def _usage() -> str:
    longest_name = max(map(len, TASKS))
    tasks = "\n".join(f"  {name:<{longest_name}} {options.__doc__}" for name, options in TASKS.items())
    return (
        "usage: subquad choose TASK [--budget 10m] [options]\n"
        "       subquad choose --model MODEL [--text FOLDER] [--budget 10m] [options]\n"
        "       subquad choose --resume RACE [--budget 20m]\n\n"
        "Races attentions on your sequences, or conversions of a pretrained model, and recommends one.\n\n"
        f"{tasks}\n\n`subquad choose TASK --help` and `subquad choose --model MODEL --help` list the options."
    )


def _new_race(words: Sequence[str], started: float) -> int:
    name = choose("task", words[0], TASKS)
    command, task_options, task = _parse(name, list(words[1:]))
    entries = enter_race(
        command.choose.mechanisms,
        RunOptions(task_options, Softmax(), command.model, command.training),
        task,
        command.outside,
        seconds=parse_seconds("--budget", command.choose.budget),
        seed=command.choose.seed,
    )
    field, traits = with_cut(Field(task_options, command.model, command.training, entries.attentions), task, command.choose)
    folder = command.choose.out or new_folder("choose", name)
    refuse_taken(folder)
    cluster = _cluster(command.choose.placing, task, task_options, folder, command.choose.jobs)
    kept = Kept(field, _terms(command.choose, cluster), _wishes(command.choose))
    about = describe_run(describe(kept), ["choose", *words], seed=command.choose.seed)
    about["mechanisms"] = {each: dataclasses.asdict(known) for each, known in traits.items()}
    if (learned := task.learned) is not None:
        about["learned"] = learned
    for each, why in entries.left_out.items():
        say(f"{each} is left out: {why}")
    run = Run.create(folder, "choose", about, entries.rows())
    with trusting(part.target for each in entries.attentions.values() for part in imported_parts(each)):
        return _race(run, kept, task, started, cluster)


def _cluster(placing: Placing, task: Task[Any], options: TaskOptions, folder: Path, jobs: int | None) -> Cluster | None:
    """The cluster that the runs of a race are done on, whose processes hold the task; None for this machine."""
    placing.require_cluster()
    if not placing.on:
        return None
    hold = partial(hold_tasks, partial(prepare_again, options, task.learned), placing.cpus)
    return open_cluster(placing, folder, hold=hold, tell=say, jobs=jobs, paths=data_paths(options))


def data_paths(options: TaskOptions) -> list[Path]:
    """Files and folders that the options of a task name."""
    names = [value for name in DATA_FIELDS if isinstance(value := getattr(options, name, None), str | Path)]
    return [Path(name) for name in names if str(name) and Path(name).exists()]


def with_cut(field: Field, task: Task[Any], options: Choose) -> tuple[Field, dict[str, Traits]]:
    """Adds softmax on a part of each sequence to the race, where that makes sense; returns traits of all attentions too."""
    traits = {name: attention.traits for name, attention in field.attentions.items()}
    softmax = field.attentions.get(SOFTMAX, Softmax())
    if options.cut == 0 or (options.cut is None and options.mechanisms):
        return field, traits
    lengths = np.concatenate(list(task.lengths().values()))
    if options.cut is not None and options.cut >= lengths.max():
        raise SubquadError(
            f"--cut {options.cut} cuts nothing, as no sequence has more than {lengths.max()} positions: name less"
        )
    entry = enter_cut(task, softmax, field.model, field.training, float(np.quantile(lengths, READ_AT)), options.cut)
    if entry is None:
        return field, traits
    attentions = {**field.attentions, entry.name: softmax}
    joined = dataclasses.replace(field, attentions=attentions, cuts={entry.name: entry.cutting})
    return joined, traits | {entry.name: entry.traits}


def _parse(name: str, words: list[str]) -> tuple[Any, TaskOptions, Task[Any]]:
    """Parses the options, reads the data, and parses again with the defaults for data of their size."""
    plain = TASKS[name]()
    first = _parse_with(name, words, plain, None, checked=False)
    check_parts(first.task, clashing(_groups(first.task, None)))
    command = _parse_with(name, words, plain, None, defaults_of=first.task)
    if command.task.start:
        raise SubquadError("a race starts every model afresh, each with its own attention: leave --start out")
    task = command.task.prepare()
    if (size := task.data_size) is not None:
        command = _parse_with(name, words, plain, size, defaults_of=command.task)
    return command, command.task, task


def _parse_with(
    name: str,
    words: list[str],
    plain: TaskOptions,
    size: DataSize | None,
    *,
    defaults_of: TaskOptions | None = None,
    checked: bool = True,
) -> Any:
    groups = _groups(defaults_of or plain, size) | {"task": plain}
    flags = clashing(groups)
    return parse(
        joined_parts("Choice", groups, {OUTSIDE: Calling()}),
        words,
        prog=f"{PROG} {name}",
        description=f"Races attentions on your sequences and recommends one. The task: {TASKS[name].__doc__}",
        registry=registry([type(groups[part]) for part in ("task", "model", "training")], flags),
        flags=flags | FLAGS,
        checked=checked,
    )


def _groups(task: TaskOptions, size: DataSize | None) -> dict[str, Any]:
    """The groups of options of the command with their defaults. The number of steps follows from the budget."""
    defaults = task.defaults("softmax", size)
    return {
        "choose": Choose(),
        "task": task,
        "model": ModelOptions(**defaults.model),
        "training": TrainOptions(**defaults.training),
    }


def _terms(options: Choose, cluster: Cluster | None) -> Terms:
    jobs = options.jobs or (cores() if cluster is None else cluster.slots)
    if jobs > MOST_JOBS:
        raise SubquadError(f"--jobs must be at most {MOST_JOBS}, but is {jobs}")
    budget = parse_seconds("--budget", options.budget)
    return Terms(budget, jobs, options.seed, memory_share(jobs))


def _wishes(options: Choose) -> Wishes:
    memory = parse_bytes("--max-memory", options.max_memory) if options.max_memory else None
    return Wishes(options.quality_loss, options.max_seconds, memory)


def _race(run: Run, kept: Kept, task: Task[Any], started: float, cluster: Cluster | None) -> int:
    """Runs a race to its end or to an interrupt, and prints what follows from it."""
    console = Output()
    console.print(f"{', '.join(kept.field.attentions)}; the race: {run.folder}", soft_wrap=True)
    source = partial(prepare_again, kept.field.task, task.learned)
    workers = Pool(source, kept.terms.jobs, kept.terms.memory_bytes) if cluster is None else Remote(cluster)
    with watching(run, console) as watch:
        race = Race(run, kept.field, kept.terms, task, workers, training_words, watch, started=started)
        is_interrupted = _goes(race)
    conclude(race, kept.wishes, console)
    return _ended(run, kept.field.attentions.values(), is_interrupted=is_interrupted)


def _race_model(opened: Opened, started: float) -> int:
    """Runs a race of conversions to its end or to an interrupt, and prints what follows from it."""
    run, console = opened.run, Output()
    console.print(f"{opened.kept.model}: {', '.join(opened.kept.attentions)}; the race: {run.folder}", soft_wrap=True)
    with watching(run, console) as watch:
        race = opened.race(watch, started)
        is_interrupted = _goes(race)
    conclude_model(race, console)
    return _ended(run, (), is_interrupted=is_interrupted)


@contextmanager
def watching(run: Run, console: Output) -> Iterator[Watch]:
    """Shows the progress of a race on a line that is updated, or by lines if the output is no terminal."""
    with (
        run.writing(),
        Bar(SpinnerColumn(), PlainColumn(), console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        line = bar.add_task("starting", total=None)

        def tell(sentence: str) -> None:
            console.print(sentence, soft_wrap=True)
            console.file.flush()

        def follow(state: str) -> None:
            bar.update(line, description=state)

        def show_state(state: str) -> None:
            follow(state)
            if not console.is_terminal:
                tell(state)

        yield Watch(tell, show_state, follow)


def _goes(race: Race | ModelRace) -> bool:
    """Runs a race, and returns whether it was interrupted."""
    try:
        race.go()
    except KeyboardInterrupt:
        return True
    return False


def _ended(run: Run, attentions: Iterable[AttentionOptions], *, is_interrupted: bool) -> int:
    if not is_interrupted:
        return 0
    again = f"{trust_prefix(attentions)}subquad choose --resume {shlex.quote(str(run.folder))}"
    print(f"subquad: interrupted; the answer above is from what was done; go on with: {again}", file=sys.stderr)
    return INTERRUPTED
