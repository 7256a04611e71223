"""The command `subquad train`."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from subquad.attention.outside.trust import trusting
from subquad.cli import INTERRUPTED
from subquad.cli.launching import is_launched, launch
from subquad.cli.options import Resume, is_resumed
from subquad.cli.outside import naming_outside, trust_prefix
from subquad.cli.parsing import parse
from subquad.cli.show import CountColumn, Output, PlainColumn
from subquad.cli.streams import say
from subquad.cli.training_options import CommandLine
from subquad.errors import SubquadError
from subquad.parallel import check_cut, points_for
from subquad.report.client_baselines import baseline_sentences, trivial_sentence
from subquad.report.event_baselines import standing_sentence
from subquad.results import FORMAT, Row, Run, describe_run, folder_name, new_folder
from subquad.runs import Built, RunOptions, build_model, check_options, fitted, load, read_options, rebuild, try_training
from subquad.tasks import TASKS
from subquad.training import sharding
from subquad.training.loop import Progress, import_accelerate, parameters, train

BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
"""What sends messages between processes, by the type of their device; gloo for all others."""
BAR_WIDTH = 10
"""Number of characters of the bar, so that step, loss and metrics fit beside it into 80 columns."""
JUDGING = "trained; final measurements follow"
"""Progress while a trained model is measured on the test data, beside baselines."""
LINE_SECONDS = 30.0
"""Longest time between two lines of progress where the output is no terminal."""


class Plan(NamedTuple):
    """A new run that is not written yet: its folder, run.json, options, task and model."""

    folder: Path
    about: dict[str, Any]
    options: RunOptions
    built: Built


def main(arguments: Sequence[str]) -> int:
    """Trains a model on a task, writes rows and checkpoints, and at the end a page."""
    words = list(arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if is_resumed(words):
        resume = parse(Resume, words, prog="subquad train")
        run = Run.open(resume.resume, "train")
        processes = read_options(run.about["options"]).training.sequence_parallel
        if processes > 1 and not is_launched():
            return launch(words, processes, run.folder)
        with _writing(run):
            with naming_outside(read_options(run.about["options"]).attention):
                options, built = rebuild(run.about)
            return _train(run, options, built, lambda: _begin(options, built), restart=resume.restart)
    with trusting(CommandLine(words).imported):
        plan = plan_run(words)
        processes = plan.options.training.sequence_parallel
        if processes > 1 and not is_launched():
            return launch([*words, "--out", str(plan.folder)], processes, plan.folder)
        run = _create(plan.folder, plan.about, plan.built)
        with _writing(run):
            return _train(run, plan.options, plan.built)


def _is_main() -> bool:
    """Whether this is the process, among those that `accelerate launch` started, that writes to the run."""
    return int(os.environ.get("RANK", 0)) == 0


def _writing(run: Run) -> AbstractContextManager[None]:
    return run.writing() if _is_main() else nullcontext()


def _usage() -> str:
    longest_name = max(map(len, TASKS))
    tasks = "\n".join(f"  {name:<{longest_name}} {options.__doc__}" for name, options in TASKS.items())
    return (
        "usage: subquad train TASK [--attention NAME] [options]\n       subquad train --resume RUN [--restart]\n\n"
        f"Trains a model on a task.\n\n{tasks}\n\n`subquad train TASK --help` lists the options."
    )


def plan_run(words: Sequence[str]) -> Plan:
    """Returns the run that a command line asks for. Invalid options and data are refused before a folder is created."""
    command_line = CommandLine(words)
    command = command_line.parse()
    command.options.training.check_device("cpu" if torch.accelerator.current_accelerator() is None else "gpu")
    import_accelerate()  # a missing package is reported before a run is created
    check_options(command.options)
    task = command.options.task.prepare()
    if (size := task.data_size) is not None:
        command = command_line.parse_again(command, size)
        check_options(command.options)
    shared = command.shared
    options = command.options._replace(attention=fitted(command.options.attention, task))
    with naming_outside(options.attention):
        if options.attention.traits.foreign:
            try_training(options, task, seed=shared.seed)
        built = build_model(options, task, seed=shared.seed)
    _check_processes(options, built, shared.out)
    if options.training.patience and (task.chosen_by is None or not options.training.keep_best):
        why = "the task has none, or too little data for it" if task.chosen_by is None else "--no-keep-best was given, too"
        raise SubquadError(f"--patience goes by the metric that chooses the best weights, but {why}: leave it out")
    _begin(options, built)
    about = describe_run(options.as_json(), ["train", *words], seed=shared.seed, page=shared.page)
    if (learned := task.learned) is not None:
        about["learned"] = learned
    return Plan(shared.out or new_folder(options.task.kind, folder_name(options.attention.name)), about, options, built)


def _check_processes(options: RunOptions, built: Built, out: Path | None) -> None:
    """Raises `SubquadError` if the batch, its sequences or the weights cannot be divided among the processes."""
    parts, task = options.training.sequence_parallel, built.task
    if sharding.is_wanted():
        sharding.check_sharding(task, built.model)
        if out is None:
            raise SubquadError("processes with --use_fsdp write checkpoints together: name the folder of the run with --out")
    processes = int(os.environ.get("WORLD_SIZE", parts))
    options.training.check_processes(processes)
    if task.needs_whole_batch and options.training.accumulate * processes > 1:
        raise SubquadError(
            "--objective contrastive compares the clients of a batch, which cannot be divided: leave out --accumulate and "
            "torchrun"
        )
    if parts == 1:
        return
    _require_backend()
    if not task.can_be_cut:
        raise SubquadError(
            f"the sequences of {task.kind} cannot be cut over processes: leave --sequence-parallel out, or train lm, mlm, "
            "tokens, recall, induction or copy with a decoder"
        )
    check_cut(options.attention.parts, causal=task.is_causal)
    length = task.model_length(task.batch(1, torch.Generator().manual_seed(0)))
    points_for(options.attention.parts, length, parts)


def _require_backend() -> None:
    """Raises `SubquadError` if processes cannot send messages to each other with this build of PyTorch."""
    device = torch.accelerator.current_accelerator()
    needed = BACKENDS.get(device.type if device is not None else "cpu", "gloo")
    if not torch.distributed.is_available() or not torch.distributed.is_backend_available(needed):
        raise SubquadError(
            f"--sequence-parallel needs {needed} of torch.distributed, which this build of PyTorch lacks: install another"
        )


def _create(folder: Path, about: Mapping[str, Any], built: Built) -> Run:
    for complaint in built.task.complaints:
        say(complaint)
    for line in built.task.description if _is_main() else ():
        print(line)
    if not _is_main():
        return Run(folder, {"format": FORMAT, "kind": "train", **about})
    return Run.create(folder, "train", about)


def _begin(options: RunOptions, built: Built) -> None:
    """Loads the weights of the run named by --start into the model, if there is one."""
    if options.task.start:
        built.task.begin(built.model, load(options.task.start, say=say).model)


def _train(
    run: Run, options: RunOptions, built: Built, begin: Callable[[], None] = lambda: None, *, restart: bool = False
) -> int:
    console = Output(quiet=not _is_main())
    console.print(f"{parameters(built.model) / 1e6:.2f} M parameters; the run: {run.folder}", soft_wrap=True)
    columns = (TextColumn("step"), CountColumn(), BarColumn(BAR_WIDTH), PlainColumn(), TimeRemainingColumn())
    lines = Lines(console, options.training.steps)
    try:
        with (
            naming_outside(options.attention),
            Bar(*columns, console=console, refresh_per_second=4, disable=not console.is_terminal) as bar,
        ):
            steps_bar = bar.add_task("", total=options.training.steps)

            def watch(done: Progress) -> None:
                bar.update(steps_bar, completed=done.step, description=JUDGING if done.is_judging else _progress(done))
                lines.watch(done)

            train(
                built.task,
                built.model,
                options.training,
                run,
                seed=run.about["seed"],
                watch=watch,
                say=say,
                begin=begin,
                restart=restart,
            )
    except KeyboardInterrupt:
        again = f"{trust_prefix([options.attention])}subquad train --resume {shlex.quote(str(run.folder))}"
        print(f"subquad: interrupted; go on with: {again}", file=sys.stderr)
        return INTERRUPTED
    if _is_main():
        _show_results(run, console)
        _write_page(run, console)
    return 0


class Lines:
    """Progress on an output that is no terminal, such as a file: a line at every evaluation, or every few seconds."""

    def __init__(self, console: Console, steps: int) -> None:
        self.console, self.steps = console, steps
        self.metrics: Mapping[str, float] = {}
        self.last = time.monotonic()
        self.step = -1

    def watch(self, done: Progress) -> None:
        """Prints a line if there are new metrics, or if the last line is long ago, and one when final measurements begin."""
        is_due = done.metrics != self.metrics or time.monotonic() - self.last > LINE_SECONDS
        if is_due and done.step != self.step and not self.console.is_terminal:
            self.metrics, self.last, self.step = dict(done.metrics), time.monotonic(), done.step
            self.console.print(f"step {done.step} of {self.steps}: {_progress(done)}", soft_wrap=True)
        if done.is_judging and not self.console.is_terminal:
            self.console.print(JUDGING)
        self.console.file.flush()


def _progress(done: Progress) -> str:
    metrics = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in done.metrics.items())
    return ", ".join(filter(None, (f"loss {done.loss:.4g}", metrics, f"{done.tokens_per_second:.0f} tokens/s")))


def _show_results(run: Run, console: Console) -> None:
    rows = run.rows()
    last = max((row["step"] for row in rows), default=0)
    for row in rows:
        if row["step"] == last and row.get("split") in ("train", "held out", "test") and row["value"] is not None:
            where = "test " if row["split"] == "test" else ""
            spread = f" ({row['low']:.6g} to {row['high']:.6g})" if "low" in row else ""
            console.print(f"{where}{row['metric'].replace('_', ' ')}: {row['value']:.6g}{spread}")
    sentences = (_early_end(run, rows, last), standing_sentence(rows), *baseline_sentences(rows), trivial_sentence(rows))
    for sentence in sentences:
        if sentence:
            console.print(sentence, soft_wrap=True)


def _early_end(run: Run, rows: Sequence[Row], last: int) -> str:
    """Says that training stopped before its last step, as evaluations no longer got better; empty if it did not."""
    options = read_options(run.about["options"]).training
    best = next((row["value"] for row in rows if row["metric"] == "best_step"), None)
    if last >= options.steps or best is None:
        return ""
    evaluations = f"the last {options.patience} evaluations were" if options.patience > 1 else "the last evaluation was"
    return f"stopped at step {last} of {options.steps}: {evaluations} no better than that of step {best}"


def _write_page(run: Run, console: Console) -> None:
    if run.about.get("page", True):
        from subquad.report.training import write_training_page

        page = run.folder / "report.html"
        write_training_page([run], page)
        console.print(f"The page: {page}", soft_wrap=True)
