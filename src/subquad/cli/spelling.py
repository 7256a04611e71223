"""Writes options as the words of a command line of `subquad train`."""

from collections.abc import Iterator
from typing import Any

from subquad.cli.options import clashing
from subquad.cli.outside import FLAGS, calling_of, imported_parts
from subquad.cli.training_options import Shared
from subquad.cli.trainings import option_words
from subquad.runs import RunOptions


def training_words(options: RunOptions, seed: int) -> list[str]:
    """The words after `subquad` that train with these options and a seed, with one mechanism or several by layer."""
    return ["train", options.task.kind, "--attention", options.attention.name, *_words(options), "--seed", str(seed)]


def _words(options: RunOptions) -> Iterator[str]:
    """Yields all options except for the task's defaults, since defaults of the others depend on the task."""
    parts = options.attention.parts
    own = [part for part in parts if not part.traits.foreign]
    attention: dict[str, Any] = {part.kind if len(parts) > 1 else "attention": part for part in own}
    groups = {"task": options.task, **attention, "model": options.model, "training": options.training}
    flags = clashing({"shared": Shared(), **groups})
    for name, part in groups.items():
        yield from option_words(part, flags, skip_defaults=name == "task")
    if imported := imported_parts(options.attention):
        yield from option_words(calling_of(imported), FLAGS, skip_defaults=True)
