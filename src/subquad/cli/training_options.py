"""Parses the words after `subquad train` into options.

An option that is not given has the default that its task declares. Some defaults depend on other options or on the size of
the data. The words are then parsed again with the defaults that are known by then, so options that are given always win.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from subquad.attention import MECHANISMS, Layers, Outside, joined
from subquad.attention.outside.mechanism import imported_parts
from subquad.checking import Checked, FilePath, Seed, Words
from subquad.cli.options import attention_in, clashing, registry
from subquad.cli.options import joined as joined_parts
from subquad.cli.outside import FLAGS, OUTSIDE, Calling, require_outside
from subquad.cli.parsing import check_parts, parse
from subquad.cli.values import choose, parse_attention
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Run
from subquad.runs import RunOptions, read_options
from subquad.tasks import TASKS, TaskOptions
from subquad.tasks.base import DataSize
from subquad.training import TrainOptions
from subquad.types import AttentionOptions
from subquad.words import is_import_name

HELP = ("-h", "--help")


@dataclass(frozen=True)
class Shared(Checked):
    """Options of all tasks."""

    attention: Annotated[
        Words,
        tyro.conf.arg(
            help=f"Attention mechanism: {', '.join(MECHANISMS)}; or several by layer, repeated where there are more layers, "
            "such as linear*3,softmax; or one of yours on q, k and v, as MODULE:NAME. Their options are listed below."
        ),
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
    calling: Calling = Calling()
    """How attentions that are named as MODULE:NAME are called."""


class CommandLine:
    """The words after `subquad train`: the name of a task, and options."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words[1:])
        self.task = choose("task", words[0], TASKS)
        self.named_attention = attention_in(self.words)
        self.attentions = parse_attention(self.named_attention or Shared.attention, MECHANISMS, takes_imported=True)
        """Name of the mechanism of each layer; one for all if there is one."""
        self.opened: dict[tuple[str, int, int], Outside] = {}
        """Attentions that are imported by name, by name, heads and dimension of a head."""

    @property
    def imported(self) -> list[str]:
        """The attentions that the command line names as MODULE:NAME."""
        return [name for name in dict.fromkeys(self.attentions) if is_import_name(name)]

    def parse(self) -> ParsedCommand:
        """Returns the options before the data are read. Prints the help and exits if --help is among the words."""
        task_options = self._task_options()
        if not task_options.start:
            return self._open(self._parse(self._defaults(task_options)))
        started = read_options(Run.open(Path(task_options.start), "train").about["options"])
        named, self.attentions = self.attentions, layer_names(started.attention)
        command = self._parse(started._replace(task=TASKS[self.task](), training=self._defaults(task_options).training))
        names_another = self.named_attention is not None and named != self.attentions
        same = (command.options.attention, command.options.model, command.calling)
        if names_another or same != (started.attention, started.model, Calling()):
            raise SubquadError(
                f"--start takes the attention and the shape of the model in {task_options.start}: leave out --attention, "
                "--layers and such"
            )
        return command

    def _open(self, command: ParsedCommand) -> ParsedCommand:
        """Finds out how attentions that are named as MODULE:NAME are called. Raises `SubquadError` if one cannot be."""
        attention, model = command.options.attention, command.options.model
        if not self.imported:
            return command
        for name in self.imported:
            key = (name, model.attention_heads, model.head_dim)
            if key not in self.opened:
                self.opened[key] = require_outside(
                    name, command.calling, heads=model.attention_heads, head_dim=model.head_dim
                )
        layers = attention.mechanisms if isinstance(attention, Layers) else (attention,)
        found = [self.opened.get((part.name, model.attention_heads, model.head_dim), part) for part in layers]
        return command._replace(options=command.options._replace(attention=joined(found)))

    def parse_again(self, command: ParsedCommand, size: DataSize) -> ParsedCommand:
        """Returns the options with the defaults for data of this size. With --start, attention and model stay the same."""
        defaults = self._defaults(command.options.task, size)
        if command.options.task.start:
            defaults = defaults._replace(attention=command.options.attention, model=command.options.model)
            return self._parse(defaults)
        return self._open(self._parse(defaults))

    def _task_options(self) -> TaskOptions:
        """The options of the task, on which the other defaults may depend."""
        attention = joined([_plain(name) for name in self.attentions])
        plain = RunOptions(TASKS[self.task](), attention, ModelOptions(), TrainOptions())
        words = [word for word in self.words if word not in HELP]
        try:
            task = self._parse(plain, words, checked=False).options.task
            check_parts(task, clashing(command_parts(plain)))
        except SubquadError:
            if words != self.words:
                return plain.task
            raise
        return task

    def _defaults(self, task: TaskOptions, size: DataSize | None = None) -> RunOptions:
        return default_options(task, self.attentions, size)

    def _parse(self, defaults: RunOptions, words: Sequence[str] | None = None, *, checked: bool = True) -> ParsedCommand:
        parts = command_parts(defaults)
        flags = clashing(parts)
        outside = {OUTSIDE: Calling()} if imported_parts(defaults.attention) else {}
        parsed: Any = parse(
            joined_parts("Train", parts, outside),
            self.words if words is None else words,
            prog=f"subquad train {self.task}",
            description=" ".join(filter(None, (TASKS[self.task].__doc__, TASKS[self.task].default_notes))),
            registry=registry([*map(type, defaults), *map(type, defaults.attention.parts)], flags),
            flags=flags | FLAGS,
            checked=checked,
        )
        by_name = {part.name: part for part in defaults.attention.parts}
        by_name |= {name: getattr(parsed, group) for name, group in _groups(defaults.attention).items()}
        attention = joined([by_name[name] for name in self.attentions])
        options = RunOptions(parsed.task, attention, parsed.model, parsed.training)
        return ParsedCommand(parsed.shared, options, parsed.outside if outside else Calling())


def default_options(task: TaskOptions, attentions: Sequence[str], size: DataSize | None) -> RunOptions:
    """Returns the defaults of all options, which may depend on those of the task, the attention and the size of the data.

    Args:
        task: the options of the task. Those that are returned are its defaults.
        attentions: the name of the mechanism of each layer, or one for all.
        size: the size of the data; None before they are read.
    """
    declared = {name: task.defaults(name, size) for name in attentions}
    by_name = {name: _replaced(_plain(name), of_task.attention) for name, of_task in declared.items()}
    # of several mechanisms, the first that is not softmax decides on the defaults of the model and of the training
    deciding = next((name for name in declared if name != "softmax"), attentions[0])
    return RunOptions(
        type(task)(),
        joined([by_name[name] for name in attentions]),
        ModelOptions(**declared[deciding].model),
        TrainOptions(**declared[deciding].training),
    )


def command_parts(defaults: RunOptions) -> dict[str, Any]:
    """The groups of options of the command, each with its defaults. Each of several mechanisms is a group of its own."""
    groups = _groups(defaults.attention)
    attention = {groups[part.name]: part for part in defaults.attention.parts if part.name in groups}
    rest = {"model": defaults.model, "training": defaults.training}
    return {"shared": Shared(), "task": defaults.task, **attention, **rest}


def _groups(attention: AttentionOptions) -> dict[str, str]:
    """Name of the group of options of each mechanism. Attentions that are imported by name have no options of their own."""
    several = len(attention.parts) > 1
    return {part.name: part.kind if several else "attention" for part in attention.parts if not part.traits.foreign}


def _plain(name: str) -> AttentionOptions:
    """The options of a mechanism by its name, or an attention to import whose calls are not known yet."""
    return Outside(name) if is_import_name(name) else MECHANISMS[name]()


def layer_names(attention: AttentionOptions) -> list[str]:
    """The name of the mechanism of each layer; one for all if there is one."""
    return [part.name for part in (attention.mechanisms if isinstance(attention, Layers) else (attention,))]


def _replaced(options: Any, values: Mapping[str, Any]) -> AttentionOptions:
    replaced: AttentionOptions = replace(options, **values)
    return replaced
