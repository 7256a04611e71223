"""Softmax attention on a part of each sequence: what a person does who cannot afford the whole sequence."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from subquad.choose.standings import SOFTMAX
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.runs import RunOptions, check_options
from subquad.tasks.base import Task, TaskOptions
from subquad.training import TrainOptions
from subquad.types import AttentionOptions, Traits

ROUNDED_TO = 8
"""Lengths of cuts are multiples of this number."""
MOST_KEPT = 0.5
"""Largest share of the 90% length that a cut may keep: one that keeps more saves little."""


@dataclass(frozen=True)
class Cutting:
    """A contestant whose models read a part of each sequence."""

    length: int
    """Number of positions that are read."""
    task: TaskOptions
    """Options of the task with sequences of at most this length."""


class CutEntry(NamedTuple):
    """The contestant that reads a part of each sequence: its name, and what it does without."""

    name: str
    cutting: Cutting
    traits: Traits


def cut_length(positions: float, head_dim: int) -> int:
    """The length at which softmax attention takes as many multiplications as linear attention at `positions`.

    Softmax takes 2 L^2 d of them, and linear attention with as many features as a head has dimensions 2 n d^2. Both are the
    same at L = sqrt(n d), which is rounded to a multiple of `ROUNDED_TO`.
    """
    return max(1, round(math.sqrt(positions * head_dim) / ROUNDED_TO)) * ROUNDED_TO


def enter_cut(
    task: Task[Any],
    softmax: AttentionOptions,
    model: ModelOptions,
    training: TrainOptions,
    positions: float,
    length: int | None,
) -> CutEntry | None:
    """Returns softmax attention on a part of each sequence as a contestant, or None if a cut saves little.

    Args:
        task: the task with its data.
        softmax: the options of softmax attention.
        model: the size of the models.
        training: how the models are trained.
        positions: the 90% length of the data.
        length: number of positions that the user asks for; None for the one that costs as much as linear attention.
    """
    wanted = cut_length(positions, model.head_dim) if length is None else length
    cut = task.cut(wanted)
    if cut is None and length is not None:
        raise SubquadError(f"sequences of the task {task.kind} cannot be cut, as all are asked for: leave --cut out")
    if cut is None or (length is None and wanted > MOST_KEPT * positions):
        return None
    check_options(RunOptions(cut.options, softmax, model, training))
    lost = "before the last" if cut.end == "last" else "after the first"
    traits = dataclasses.replace(softmax.traits, gives_up=f"what is {lost} {wanted:,} positions is never read")
    return CutEntry(f"{SOFTMAX} {cut.end} {wanted}", Cutting(wanted, cut.options), traits)
