"""Writes options as the words of a command line of `subquad train`."""

from collections.abc import Iterator
from typing import Any

from subquad.attention.outside.mechanism import imported_parts
from subquad.cli.options import clashing
from subquad.cli.outside import FLAGS, Calling, calling_of
from subquad.cli.training_options import Shared, default_options, layer_names
from subquad.cli.trainings import option_words
from subquad.runs import RunOptions
from subquad.tasks.base import DataSize


def training_words(options: RunOptions, seed: int, size: DataSize | None) -> list[str]:
    """The words after `subquad` that train with these options and a seed, with one mechanism or several by layer.

    Options that have the default of the command for data of this size are left out.
    """
    return ["train", options.task.kind, "--attention", options.attention.name, *_words(options, size), "--seed", str(seed)]


def _words(options: RunOptions, size: DataSize | None) -> Iterator[str]:
    usual = default_options(options.task, layer_names(options.attention), size)
    groups, usual_groups = _groups(options), _groups(usual)
    flags = clashing({"shared": Shared(), **groups})
    for name, part in groups.items():
        yield from option_words(part, flags, usual=usual_groups[name])
    if imported := imported_parts(options.attention):
        yield from option_words(calling_of(imported), FLAGS, usual=Calling())


def _groups(options: RunOptions) -> dict[str, Any]:
    """The groups of options by name. Attentions that are imported by name have none of their own."""
    parts = options.attention.parts
    own = [part for part in parts if not part.traits.foreign]
    attention = {part.kind if len(parts) > 1 else "attention": part for part in own}
    return {"task": options.task, **attention, "model": options.model, "training": options.training}
