"""Parses the words after `subquad train` into options.

An option that is not given has the default that its task declares. Some defaults depend on other options or on the size of
the data. The words are then parsed again with the defaults that are known by then, so options that are given always win.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from subquad.attention import MECHANISMS
from subquad.checking import Checked, FilePath, Seed, Words
from subquad.cli.options import attention_in, clashing, joined, registry
from subquad.cli.parsing import check_parts, parse
from subquad.cli.values import choose
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Run
from subquad.runs import RunOptions, read_options
from subquad.tasks import TASKS, TaskOptions
from subquad.tasks.base import DataSize
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

HELP = ("-h", "--help")


@dataclass(frozen=True)
class Shared(Checked):
    """Options of all tasks."""

    attention: Annotated[
        Words, tyro.conf.arg(help=f"Attention mechanism: {', '.join(MECHANISMS)}. Its options are listed below.")
    ] = "linear"
    seed: Seed = 0
    """Seed of the initial weights, the batches and dropout."""
    out: FilePath | None = None
    """Folder of the run; default: runs/TASK-ATTENTION-DATE-TIME."""
    page: bool = True
    """Write report.html at the end; `subquad report RUN` writes it at any time."""


class ParsedCommand(NamedTuple):
    """The options in a command line of `subquad train`."""

    shared: Shared
    options: RunOptions


class CommandLine:
    """The words after `subquad train`: the name of a task, and options."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words[1:])
        self.task = choose("task", words[0], TASKS)
        self.named_attention = attention_in(self.words)
        self.attention = choose("attention", self.named_attention or Shared.attention, MECHANISMS)

    def parse(self) -> ParsedCommand:
        """Returns the options before the data are read. Prints the help and exits if --help is among the words."""
        task_options = self._task_options()
        if not task_options.start:
            return self._parse(self._defaults(task_options))
        started = read_options(Run.open(Path(task_options.start), "train").about["options"])
        self.attention, named = started.attention.kind, self.attention
        command = self._parse(started._replace(task=TASKS[self.task](), training=self._defaults(task_options).training))
        names_another = self.named_attention is not None and named != self.attention
        if names_another or (command.options.attention, command.options.model) != (started.attention, started.model):
            raise SubquadError(
                f"--start takes the attention and the shape of the model in {task_options.start}: leave out --attention, "
                "--layers and such"
            )
        return command

    def parse_again(self, command: ParsedCommand, size: DataSize) -> ParsedCommand:
        """Returns the options with the defaults for data of this size. With --start, attention and model stay the same."""
        defaults = self._defaults(command.options.task, size)
        if command.options.task.start:
            defaults = defaults._replace(attention=command.options.attention, model=command.options.model)
        return self._parse(defaults)

    def _task_options(self) -> TaskOptions:
        """The options of the task, on which the other defaults may depend."""
        plain = RunOptions(TASKS[self.task](), MECHANISMS[self.attention](), ModelOptions(), TrainOptions())
        words = [word for word in self.words if word not in HELP]
        try:
            task = self._parse(plain, words, checked=False).options.task
            check_parts(task, clashing(_parts(plain)))
        except SubquadError:
            if words != self.words:
                return plain.task
            raise
        return task

    def _defaults(self, task: TaskOptions, size: DataSize | None = None) -> RunOptions:
        declared = task.defaults(self.attention, size)
        attention: Any = MECHANISMS[self.attention]()
        return RunOptions(
            TASKS[self.task](),
            replace(attention, **declared.attention),
            ModelOptions(**declared.model),
            TrainOptions(**declared.training),
        )

    def _parse(self, defaults: RunOptions, words: Sequence[str] | None = None, *, checked: bool = True) -> ParsedCommand:
        parts = _parts(defaults)
        flags = clashing(parts)
        parsed: Any = parse(
            joined("Train", parts),
            self.words if words is None else words,
            prog=f"subquad train {self.task}",
            description=" ".join(filter(None, (TASKS[self.task].__doc__, TASKS[self.task].default_notes))),
            registry=registry(map(type, defaults), flags),
            flags=flags,
            checked=checked,
        )
        attention: AttentionOptions = parsed.attention
        return ParsedCommand(parsed.shared, RunOptions(parsed.task, attention, parsed.model, parsed.training))


def _parts(defaults: RunOptions) -> dict[str, Any]:
    """The groups of options of the command, each with its defaults."""
    return {"shared": Shared(), **defaults._asdict()}
