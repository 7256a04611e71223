"""Which attentions enter a race: those that are named or sensible for the task, as far as the task takes them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from subquad.attention import MECHANISMS, joined
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.runs import RunOptions, check_options
from subquad.tasks.base import Task, TaskOptions
from subquad.training import TrainOptions
from subquad.types import AttentionOptions
from subquad.words import run_lengths

USUAL = ("softmax", "linear", "favor", "hybrid", "window", "linformer")
"""Attentions that are raced if none are named, as far as they have the form that the task needs."""


class Entries(NamedTuple):
    """Attentions by name, and for each that is left out a sentence that says why."""

    attentions: Mapping[str, AttentionOptions]
    left_out: Mapping[str, str]


def enter(
    names: Sequence[Sequence[str]],
    task: Task[Any],
    options: TaskOptions,
    model: ModelOptions,
    training: TrainOptions,
    longest: int,
) -> Entries:
    """Returns the attentions of a race, with the options that the task prefers.

    Args:
        names: for each attention the names of the mechanisms of its layers, one for all layers; none for the usual ones.
        task: the task with its data.
        options: the options of the task.
        model: the size of the models.
        training: how the models are trained.
        longest: the length of the longest sequence.
    """
    wanted = names or [[name] for name in USUAL if MECHANISMS[name]().traits.causal or not task.is_causal]
    attentions: dict[str, AttentionOptions] = {}
    left_out: dict[str, str] = {}
    for layers in wanted:
        name = run_lengths(layers)
        try:
            attention = joined([_preferred(each, task, options, longest) for each in layers])
            check_options(RunOptions(options, attention, model, training))
            task.build(attention, model, torch.Generator().manual_seed(0))
        except SubquadError as error:
            left_out[name] = str(error)
            continue
        attentions[name] = attention
    if not attentions:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise SubquadError(f"the task takes none of the attentions ({why}): name others by --mechanisms")
    return Entries(attentions, left_out)


def _preferred(name: str, task: Task[Any], options: TaskOptions, longest: int) -> AttentionOptions:
    plain: Any = MECHANISMS[name]()
    preferred: AttentionOptions = dataclasses.replace(plain, **options.defaults(name, task.data_size).attention)
    limit = preferred.traits.max_length
    return preferred.for_length(longest + 1) if limit is not None and limit <= longest else preferred
