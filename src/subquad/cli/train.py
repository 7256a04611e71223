"""`subquad train`."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import nn

from subquad.attention import MECHANISMS
from subquad.capacity import require_memory
from subquad.checking import Checked, FilePath, Seed, Words, read
from subquad.cli import INTERRUPTED
from subquad.cli.options import Resume, attention_in, is_resumed, joined, registry
from subquad.cli.parsing import parse
from subquad.cli.show import Output, PlainColumn
from subquad.cli.streams import say
from subquad.cli.values import choose
from subquad.errors import SubquadError
from subquad.measure.machine import describe, versions
from subquad.models import ModelOptions
from subquad.results import FORMAT, Run, place_of
from subquad.tasks import TASKS, Task, TaskOptions
from subquad.tasks.kept import read_kept
from subquad.training import TrainOptions
from subquad.training.loop import Progress, generator, parameters, train
from subquad.types import AttentionOptions

INITIAL = 100
"""The stream of random numbers that weights are drawn from."""


@dataclass(frozen=True)
class Shared(Checked):
    """What every task takes."""

    attention: Words = "linear"
    """softmax, linear, favor, linformer, infinity, hybrid: its own options are listed below."""
    seed: Seed = 0
    out: FilePath | None = None
    """The folder of the run: runs/TASK-ATTENTION-DATE-TIME unless told."""
    page: bool = True
    """Whether report.html is left at the end; `subquad report RUN` writes it at any time."""


class Built(NamedTuple):
    """What is trained on, what is trained, and how."""

    task: Task[Any]
    model: nn.Module
    options: TrainOptions


def main(arguments: Sequence[str]) -> int:
    """Trains a model on a task, keeps rows and checkpoints, and leaves a page."""
    given = list(arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if is_resumed(given):
        resume = parse(Resume, given, prog="subquad train")
        run = Run.open(resume.resume, "train")
        with _writing(run):
            built = build(run.about)
            return _train(run, built, lambda: _begin(run.about, built), restart=resume.restart)
    folder, about, built = describe_run(given)
    run = _create(folder, about, built)
    with _writing(run):
        return _train(run, built)


def _is_main() -> bool:
    """Whether this process is the one, of those that `accelerate launch` started, that writes to the run."""
    return int(os.environ.get("RANK", 0)) == 0


def _writing(run: Run) -> AbstractContextManager[None]:
    return run.writing() if _is_main() else nullcontext()


def _usage() -> str:
    wide = max(map(len, TASKS))
    tasks = "\n".join(f"  {name:<{wide}} {options.__doc__}" for name, options in TASKS.items())
    return (
        "usage: subquad train TASK [--attention NAME] [options]\n       subquad train --resume RUN [--restart]\n\n"
        f"Trains a model on a task.\n\n{tasks}\n\n`subquad train TASK --help` lists the options."
    )


def describe_run(given: Sequence[str]) -> tuple[Path, dict[str, Any], Built]:
    """The folder, the run.json and the model of a command line. What cannot be built, or read, is refused."""
    name = choose("task", given[0], TASKS)
    attention = choose("attention", attention_in(given, Shared.attention), MECHANISMS)
    parsed: Any = parse(
        _options(name, attention),
        given[1:],
        prog=f"subquad train {name}",
        description=TASKS[name].__doc__,
        registry=registry([TASKS[name], MECHANISMS[attention], ModelOptions, TrainOptions]),
    )
    options = {part: dataclasses.asdict(getattr(parsed, part)) for part in ("task", "mechanism", "model", "training")}
    if start := options["task"].get("start"):
        options |= _shape(start, options, is_named="--attention" in " ".join(given))
    about: dict[str, Any] = {
        "options": options,
        "seed": parsed.shared.seed,
        "page": parsed.shared.page,
        "versions": versions(),
        "machine": describe(),
        "command": shlex.join(["subquad", "train", *given]),
        "started": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
    }
    built = build(about)
    built.options.check_processes(int(os.environ.get("WORLD_SIZE", 1)))
    _begin(about, built)
    if (learned := built.task.learned) is not None:
        about["learned"] = learned
    kind = options["mechanism"]["kind"]
    return parsed.shared.out or Path("runs") / f"{name}-{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}", about, built


def _create(folder: Path, about: Mapping[str, Any], built: Built) -> Run:
    for complaint in built.task.complaints:
        say(complaint)
    if not _is_main():
        return Run(folder, {"format": FORMAT, "kind": "train", **about})
    return Run.create(folder, "train", about)


def _shape(start: str, options: Mapping[str, Any], *, is_named: bool) -> dict[str, Any]:
    """The attention and the shape of the model that is started from, which are the new one's too."""
    kept = Run.open(Path(start), "train").about["options"]
    usual = dataclasses.asdict(ModelOptions())
    if (is_named and options["mechanism"] != kept["mechanism"]) or options["model"] not in (usual, kept["model"]):
        raise SubquadError(
            f"--start takes the attention and the shape of the model in {start}: leave out --attention, --layers and such"
        )
    return {part: kept[part] for part in ("mechanism", "model")}


def _begin(about: Mapping[str, Any], built: Built) -> None:
    """Puts in the weights of the run that is started from, where one is."""
    if start := about["options"]["task"].get("start"):
        built.task.begin(built.model, load(Path(start))[1])


def _options(task: str, attention: str) -> Any:
    """Everything that can be given for a task with an attention, as one dataclass."""
    parts: dict[str, Any] = {
        "shared": Shared,
        "task": TASKS[task],
        "mechanism": MECHANISMS[attention],
        "model": ModelOptions,
        "training": TrainOptions,
    }
    return joined("Train", parts)


def build(about: Mapping[str, Any]) -> Built:
    """The task, a fresh model and the training's options that a run.json names."""
    options = about["options"]
    task_options, attention, size = read_kept(options)
    training = read(TrainOptions, options["training"], f"{place_of(options)}: options: training")
    _require_memory(task_options, attention, size, training)
    task = task_options.prepare(about.get("learned"))
    return Built(task, task.build(attention, size, generator(about["seed"], INITIAL)), training)


def _require_memory(task: TaskOptions, attention: AttentionOptions, size: ModelOptions, training: TrainOptions) -> None:
    """Refuses what is too large for this machine, before anything is read or built."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    needed = training.memory_bytes(task.size(attention, size), attention, size, processes)
    require_memory("this training", needed, "make the model, the batch, the sequences or the data smaller")


def _train(run: Run, built: Built, begin: Callable[[], None] = lambda: None, *, restart: bool = False) -> int:
    task, model, options = built
    console = Output(quiet=not _is_main())
    console.print(f"{parameters(model) / 1e6:.2f} M parameters; the run: {run.folder}", soft_wrap=True)
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        PlainColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Bar(*columns, console=console, refresh_per_second=4, disable=not _is_main()) as bar:
            task_bar = bar.add_task("", total=options.steps)

            def watch(done: Progress) -> None:
                metrics = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in done.metrics.items())
                words = ", ".join(filter(None, (f"loss {done.loss:.4g}", metrics, f"{done.tokens_per_second:.0f} tokens/s")))
                bar.update(task_bar, completed=done.step, description=words)

            seed = run.about["seed"]
            train(task, model, options, run, seed=seed, watch=watch, say=say, begin=begin, restart=restart)
    except KeyboardInterrupt:
        print(f"subquad: interrupted; go on with: subquad train --resume {shlex.quote(str(run.folder))}", file=sys.stderr)
        return INTERRUPTED
    if _is_main():
        _results(run, console)
        if run.about.get("page", True):
            from subquad.report.training import write_training_page

            page = run.folder / "report.html"
            write_training_page([run], page)
            console.print(f"The page: {page}", soft_wrap=True)
    return 0


def _results(run: Run, console: Console) -> None:
    rows = run.rows()
    last = max((row["step"] for row in rows), default=0)
    for row in rows:
        if row["step"] == last and row.get("split") and row["value"] is not None:
            where = "test " if row["split"] == "test" else ""
            spread = f" ({row['low']:.6g} to {row['high']:.6g})" if "low" in row else ""
            console.print(f"{where}{row['metric'].replace('_', ' ')}: {row['value']:.6g}{spread}")


def load(folder: Path) -> tuple[Task[Any], nn.Module, Run]:
    """A trained run: its task and its model with the best weights, or the newest where no best ones were kept."""
    from subquad.training.loop import load_model

    run = Run.open(folder, "train")
    task, model, _ = build(run.about)
    load_model(folder, model, say)
    model.eval()
    return task, model, run
