"""The command `subquad choose`."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import tyro
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn

from subquad.attention import MECHANISMS
from subquad.checking import Checked, Count, FilePath, NonNegative, Positive, Seed, Words
from subquad.choose.decision import Decision, Wishes, decide
from subquad.choose.entries import USUAL, enter
from subquad.choose.race import Field, Race, Terms, Watch, memory_share
from subquad.choose.records import Kept, describe, read_kept
from subquad.choose.space import import_optuna
from subquad.choose.standings import read_standings
from subquad.choose.workers import Pool
from subquad.cli import INTERRUPTED
from subquad.cli.options import clashing, is_resumed, registry
from subquad.cli.options import joined as joined_parts
from subquad.cli.parsing import check_parts, parse
from subquad.cli.show import Output, PlainColumn, show
from subquad.cli.spelling import training_words
from subquad.cli.streams import say
from subquad.cli.values import choose, parse_attention, parse_bytes, parse_seconds
from subquad.errors import SubquadError
from subquad.machine import cores
from subquad.models import ModelOptions
from subquad.report.choose import brief_table, write_choice_page
from subquad.results import Run, describe_run, new_folder
from subquad.tasks import TASKS, Task, TaskOptions
from subquad.tasks.base import DataSize
from subquad.training import TrainOptions
from subquad.training.loop import import_accelerate

PROG = "subquad choose"
MOST_JOBS = 1024
"""Largest number of runs side by side."""


@dataclass(frozen=True)
class Choose(Checked):
    """Options of the race."""

    mechanisms: Annotated[
        tuple[Words, ...],
        tyro.conf.arg(
            help=f"Attentions to race: {', '.join(MECHANISMS)}; or several by layer, such as linear*3,softmax. Default: "
            f"{', '.join(USUAL)}, as far as the task takes them."
        ),
    ] = ()
    budget: Words = "10m"
    """Time for everything, such as 90s, 10m or 2h."""
    jobs: Count | None = None
    """Number of runs side by side, each on one thread; default: the number of cores."""
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


@dataclass(frozen=True)
class ResumeChoose(Checked):
    """Continues a race where it stopped, with the options that it was started with."""

    resume: FilePath
    """Folder of the race to continue."""
    budget: Words = ""
    """Time for everything, including what was used before; default: that of the race."""


def main(arguments: Sequence[str]) -> int:
    """Races attentions on a task, prints the recommendation, and writes a page and the best model."""
    started = time.monotonic()
    words = list(arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    import_optuna()
    import_accelerate()
    if is_resumed(words):
        resume = parse(ResumeChoose, words, prog=PROG)
        run = Run.open(resume.resume, "choose")
        kept = read_kept(run.about)
        budget = parse_seconds("--budget", resume.budget) if resume.budget else kept.terms.budget
        kept = kept._replace(terms=dataclasses.replace(kept.terms, budget=budget))
        return _race(run, kept, kept.field.task.prepare(run.about.get("learned")), started)
    return _new_race(words, started)


def _usage() -> str:
    longest_name = max(map(len, TASKS))
    tasks = "\n".join(f"  {name:<{longest_name}} {options.__doc__}" for name, options in TASKS.items())
    return (
        "usage: subquad choose TASK [--budget 10m] [options]\n       subquad choose --resume RACE [--budget 20m]\n\n"
        "Races attentions on your sequences and recommends one.\n\n"
        f"{tasks}\n\n`subquad choose TASK --help` lists the options."
    )


def _new_race(words: Sequence[str], started: float) -> int:
    name = choose("task", words[0], TASKS)
    command, task_options, task = _parse(name, list(words[1:]))
    parts = [parse_attention(text, MECHANISMS) for text in dict.fromkeys(command.choose.mechanisms)]
    longest = max(int(some.max()) for some in task.lengths().values())
    entries = enter(parts, task, task_options, command.model, command.training, longest)
    field = Field(task_options, command.model, command.training, entries.attentions)
    kept = Kept(field, _terms(command.choose), _wishes(command.choose))
    about = describe_run(describe(kept), ["choose", *words], seed=command.choose.seed)
    about["mechanisms"] = {each: dataclasses.asdict(options.traits) for each, options in entries.attentions.items()}
    if (learned := task.learned) is not None:
        about["learned"] = learned
    rows = [
        {"metric": "left out", "value": None, "unit": "", "mechanism": each, "message": why}
        for each, why in entries.left_out.items()
    ]
    for each, why in entries.left_out.items():
        say(f"{each} is left out: {why}")
    run = Run.create(command.choose.out or new_folder("choose", name), "choose", about, rows)
    return _race(run, kept, task, started)


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
        joined_parts("Choice", groups),
        words,
        prog=f"{PROG} {name}",
        description=f"Races attentions on your sequences and recommends one. The task: {TASKS[name].__doc__}",
        registry=registry([type(groups[part]) for part in ("task", "model", "training")], flags),
        flags=flags,
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


def _terms(options: Choose) -> Terms:
    jobs = options.jobs or cores()
    if jobs > MOST_JOBS:
        raise SubquadError(f"--jobs must be at most {MOST_JOBS}, but is {jobs}")
    budget = parse_seconds("--budget", options.budget)
    return Terms(budget, jobs, options.seed, memory_share(jobs))


def _wishes(options: Choose) -> Wishes:
    memory = parse_bytes("--max-memory", options.max_memory) if options.max_memory else None
    return Wishes(options.quality_loss, options.max_seconds, memory)


def _race(run: Run, kept: Kept, task: Task[Any], started: float) -> int:
    """Runs a race to its end or to an interrupt, and prints what follows from it."""
    console = Output()
    console.print(f"{', '.join(kept.field.attentions)}; the race: {run.folder}", soft_wrap=True)
    source = partial(prepare_again, kept.field.task, task.learned)
    workers = Pool(source, kept.terms.jobs, kept.terms.memory_bytes)
    interrupt = False
    with (
        run.writing(),
        Bar(SpinnerColumn(), PlainColumn(), console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        line = bar.add_task("starting", total=None)

        def tell(sentence: str) -> None:
            console.print(sentence, soft_wrap=True)
            console.file.flush()

        def show_state(state: str) -> None:
            bar.update(line, description=state)
            if not console.is_terminal:
                tell(state)

        watch = Watch(tell, show_state)
        race = Race(run, kept.field, kept.terms, task, workers, training_words, watch, started=started)
        try:
            race.go()
        except KeyboardInterrupt:
            interrupt = True
    conclude(race, kept.wishes, console)
    if interrupt:
        again = f"subquad choose --resume {shlex.quote(str(run.folder))}"
        print(f"subquad: interrupted; the answer above is from what was done; go on with: {again}", file=sys.stderr)
        return INTERRUPTED
    return 0


def conclude(race: Race, wishes: Wishes, console: Output) -> Decision:
    """Prints the recommendation, keeps the best model, and writes the page."""
    run = race.run
    standings = read_standings(race.ledger.rows)
    gives_up = {name: str(traits.get("gives_up", "")) for name, traits in run.about.get("mechanisms", {}).items()}
    decision = decide(standings, wishes, gives_up, race.field.training.steps)
    if standings.contestants:
        show(brief_table(standings, decision), console)
    for sentence in decision.sentences:
        console.print(sentence, soft_wrap=True)
    chosen = race.chosen(decision.chosen)
    if chosen and (folder := race.keep_best(chosen)) is not None:
        best = Run.open(folder, "train")
        console.print(f"The model of {chosen}: {best.folder}; trained alone by:\n{best.about['command']}", soft_wrap=True)
    page = run.folder / "report.html"
    write_choice_page([run], page)
    console.print(f"The page: {page}", soft_wrap=True)
    return decision


def prepare_again(options: TaskOptions, learned: Any) -> Task[Any]:
    """Returns the task in a process of its own, with what was learned from the data."""
    return options.prepare(learned)
