"""Which attentions enter a race: those that are named or sensible for the task, as far as the task takes them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from subquad.attention import MECHANISMS, joined
from subquad.choose.workers import Job, Workers
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.runs import RunOptions, check_options, fitted, try_training
from subquad.tasks.base import Task, TaskOptions
from subquad.training import TrainOptions
from subquad.types import AttentionOptions
from subquad.words import run_lengths

USUAL = ("softmax", "linear", "favor", "hybrid", "window", "linformer")
"""Attentions that are raced if none are named, as far as they have the form that the task needs."""

TRYING_SECONDS, TRYING_SHARE = 30.0, 0.1
"""Time limit for reading the data in another process and training an attention of others on two batches: so many seconds, or
this share of the time for the race if that is longer."""
Trying = Callable[[RunOptions], str]
"""Trains an attention of others for a moment, where it does no harm; returns why that fails, or an empty text."""


class Entries(NamedTuple):
    """Attentions by name, and for each that is left out a sentence that says why."""

    attentions: Mapping[str, AttentionOptions]
    left_out: Mapping[str, str]

    def rows(self) -> list[Row]:
        """Rows about what is left out."""
        return [
            {"metric": "left out", "value": None, "unit": "", "mechanism": name, "message": why}
            for name, why in self.left_out.items()
        ]


def enter(
    names: Sequence[Sequence[str]],
    task: Task[Any],
    options: TaskOptions,
    model: ModelOptions,
    training: TrainOptions,
    longest: int,
    outside: Entries | None = None,
    trying: Trying = lambda options: "",
) -> Entries:
    """Returns the attentions of a race, with the options that the task prefers.

    Args:
        names: for each attention the names of the mechanisms of its layers, one for all layers; none for the usual ones.
        task: the task with its data.
        options: the options of the task.
        model: the size of the models.
        training: how the models are trained.
        longest: the length of the longest sequence.
        outside: attentions of others among the names, and those of them that cannot be called.
        trying: trains an attention of others for a moment. Their code does not run here.
    """
    wanted = names or [[name] for name in USUAL if MECHANISMS[name]().traits.causal or not task.is_causal]
    attentions: dict[str, AttentionOptions] = {}
    left_out: dict[str, str] = {}
    for layers in wanted:
        name = run_lengths(layers)
        try:
            attention = joined([_known(each, outside) or _preferred(each, task, options, longest) for each in layers])
            attention = fitted(attention, task)
            entrant = RunOptions(options, attention, model, training)
            check_options(entrant)
            if not attention.traits.foreign:
                task.build(attention, model, torch.Generator().manual_seed(0))
            elif problem := _causal_problem(attention, task) or trying(entrant):
                raise SubquadError(problem)
        except SubquadError as error:
            left_out[name] = str(error)
            continue
        attentions[name] = attention
    if not attentions:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise SubquadError(f"the task takes none of the attentions ({why}): name others as mechanisms")
    return Entries(attentions, left_out)


def _known(name: str, outside: Entries | None) -> AttentionOptions | None:
    """An attention of others by its name; None for a mechanism. Raises `SubquadError` if it cannot be called."""
    if outside is not None and name in outside.left_out:
        raise SubquadError(outside.left_out[name])
    return None if outside is None else outside.attentions.get(name)


def _causal_problem(attention: AttentionOptions, task: Task[Any]) -> str:
    """Says that a task needs a causal form which an attention of others has not; empty if it fits."""
    without = [part.name for part in attention.parts if not part.traits.causal]
    return f"the task is causal, but {without[0]} has no causal form" if task.is_causal and without else ""


def trying_by(workers: Workers, seconds: float, seed: int) -> Trying:
    """Training for a moment in a process of these workers.

    Args:
        workers: what does the work.
        seconds: the time for the race.
        seed: seed of initial weights and batches.
    """
    limit = max(TRYING_SECONDS, TRYING_SHARE * seconds)

    def trying(entrant: RunOptions) -> str:
        job = Job("trying", partial(train_briefly, options=entrant, seed=seed), Path(), limit)
        ended = next(iter(workers.run([job], lambda job: True)))
        return f"a training step fails: {ended.message}" if ended.failure else ""

    return trying


def train_briefly(task: Task[Any], folder: Path, *, options: RunOptions, seed: int) -> list[Row]:
    """Trains an attention of others for a moment, in a process of its own. There are no rows."""
    try_training(options, task, seed=seed)
    return []


def _preferred(name: str, task: Task[Any], options: TaskOptions, longest: int) -> AttentionOptions:
    plain: Any = MECHANISMS[name]()
    preferred: AttentionOptions = dataclasses.replace(plain, **options.defaults(name, task.data_size).attention)
    limit = preferred.traits.max_length
    return preferred.for_length(longest + 1) if limit is not None and limit <= longest else preferred
