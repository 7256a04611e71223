"""The options of a training as run.json keeps them, read back and checked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from subquad.attention import options_from
from subquad.checking import read, read_as, read_kind
from subquad.models import ModelOptions
from subquad.results import place_of
from subquad.tasks import TASKS, TaskOptions
from subquad.types import AttentionOptions


class Kept(NamedTuple):
    """What a model was trained on, and what it is made of."""

    task: TaskOptions
    attention: AttentionOptions
    model: ModelOptions


def read_kept(options: Mapping[str, Any]) -> Kept:
    """The options in the field ``options`` of a run.json of `subquad train`."""
    place = f"{place_of(options)}: options"
    read_as(dict[str, Any], options, place)
    return Kept(
        read_kind(TASKS, options["task"], f"{place}: task"),
        options_from(options["mechanism"], f"{place}: mechanism"),
        read(ModelOptions, options["model"], f"{place}: model"),
    )
