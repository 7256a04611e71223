"""From the words after `subquad train` to options: what is given, what the task declares, and what its data ask for.

An option that is not given has the default that its task declares. Some defaults depend on other options, or on the size of
the data: the words are then parsed again with the defaults that are known by then, so that what is given always counts.
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
    """Options that every task takes."""

    attention: Annotated[Words, tyro.conf.arg(help=f"{', '.join(MECHANISMS)}: its own options are listed below.")] = "linear"
    seed: Seed = 0
    out: FilePath | None = None
    """The folder of the run: runs/TASK-ATTENTION-DATE-TIME unless told."""
    page: bool = True
    """Whether report.html is left at the end; `subquad report RUN` writes it at any time."""


class Given(NamedTuple):
    """A command line of `subquad train`, read."""

    shared: Shared
    options: RunOptions


class CommandLine:
    """The words after `subquad train`: the name of a task, and options."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words[1:])
        self.task = choose("task", words[0], TASKS)
        self.named_attention = attention_in(self.words)
        self.attention = choose("attention", self.named_attention or Shared.attention, MECHANISMS)

    def parse(self) -> Given:
        """The options before the data are read. Prints the help and exits where it is asked for."""
        task_options = self._task_options()
        if not task_options.start:
            return self._parse(self._defaults(task_options))
        started = read_options(Run.open(Path(task_options.start), "train").about["options"])
        self.attention, named = started.attention.kind, self.attention
        given = self._parse(started._replace(task=TASKS[self.task](), training=self._defaults(task_options).training))
        is_other = self.named_attention is not None and named != self.attention
        if is_other or (given.options.attention, given.options.model) != (started.attention, started.model):
            raise SubquadError(
                f"--start takes the attention and the shape of the model in {task_options.start}: leave out --attention, "
                "--layers and such"
            )
        return given

    def parse_again(self, given: Given, size: DataSize) -> Given:
        """The options with the defaults for data of a size. Those of a model that is started from stay."""
        defaults = self._defaults(given.options.task, size)
        if given.options.task.start:
            defaults = defaults._replace(attention=given.options.attention, model=given.options.model)
        return self._parse(defaults)

    def _task_options(self) -> TaskOptions:
        """The task's own options, which its defaults for the others may depend on."""
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

    def _parse(self, defaults: RunOptions, words: Sequence[str] | None = None, *, checked: bool = True) -> Given:
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
        return Given(parsed.shared, RunOptions(parsed.task, attention, parsed.model, parsed.training))


def _parts(defaults: RunOptions) -> dict[str, Any]:
    """The parts of the command, each with the defaults of its options."""
    return {"shared": Shared(), **defaults._asdict()}
