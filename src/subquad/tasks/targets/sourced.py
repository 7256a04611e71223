"""Tasks on data of a user that may have labels: what a run stores of them, how they are divided, and what is said."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.data.splits import SplitName, divide
from subquad.errors import SubquadError
from subquad.tasks.base import Batch, DataSize, Task
from subquad.tasks.targets.labels import UNLABELLED, Labelled
from subquad.tasks.targets.target import Target

FEW = 10
"""Smallest number of labelled sequences that are divided."""
SPLITS: tuple[SplitName, ...] = ("train", "development", "test")
USES: Mapping[SplitName, str] = {"train": "to learn from", "development": "for development", "test": "for the test"}
"""What the sequences of each split are for, in sentences."""

Unlabelled = TypeVar("Unlabelled", bound=str)


class DataSource(Protocol):
    """The data of a task, read on first use."""

    @property
    def learned(self) -> dict[str, Any]:
        """The fields that a run stores."""
        ...

    @property
    def data_size(self) -> DataSize:
        """Size of the training data."""
        ...

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        ...

    @property
    def description(self) -> list[str]:
        """Lines that say what the data hold and what was recognised."""
        ...


class SourcedTask(Task[Batch]):
    """A task whose data, and all that is said and stored of them, come from a source."""

    source: DataSource

    @property
    def learned(self) -> dict[str, Any]:
        return self.source.learned

    @property
    def data_size(self) -> DataSize:
        return self.source.data_size

    @property
    def complaints(self) -> tuple[str, ...]:
        return self.source.complaints

    @property
    def description(self) -> list[str]:
        return self.source.description


def check_same(source: str, units: tuple[str, str], had: tuple[int, int], has: tuple[int, int]) -> None:
    """Raises `SubquadError` if data differ in number or size from those that a run was made with."""
    if had != has:
        raise SubquadError(
            f"the {units[0]} in {source} are not those that the run was made with: it had {had[0]:,} with {had[1]:,} "
            f"{units[1]}, they are {has[0]:,} with {has[1]:,}; start a new run"
        )


def resolve_goal(
    goal: Literal["auto", "label"] | Unlabelled, unlabelled: Unlabelled, source: str, *, has_labels: bool
) -> Literal["label"] | Unlabelled:
    """What is predicted: what an option names or, with auto, labels if there are some."""
    if goal == "label" and not has_labels:
        raise SubquadError(f"{source} has no labels: name their column by --label-column, or give --goal {unlabelled}")
    return "label" if goal == "label" or (goal == "auto" and has_labels) else unlabelled


def divide_told(
    names: Sequence[str],
    groups: Int[ndarray, "sequences"],
    told: Mapping[SplitName, Sequence[int]],
    *,
    seed: int,
    source: str,
    advice: str = "",
) -> dict[SplitName, list[int]]:
    """Indices of the sequences of each split: as names of files tell, or else with the same shares of each group.

    Sequences of the group -1 are left out.
    """
    usable = {split: [at for at in places if groups[at] != UNLABELLED] for split, places in told.items()}
    rest = np.array(usable.get("train", np.flatnonzero(groups != UNLABELLED).tolist()), np.int64)
    if len(rest) < FEW:
        raise SubquadError(f"{source} has {len(rest)} sequences to learn from: give at least {FEW}{advice}")
    parts = divide([names[at] for at in rest], groups[rest], seed)
    chosen = {split: rest[part].tolist() for split, part in zip(SPLITS, parts, strict=True)}
    for split in ("development", "test"):
        if usable.get(split):  # what was taken out of the training sequences for this split goes back
            chosen["train"] += chosen[split]
            chosen[split] = usable[split]
    if any(not chosen[split] for split in SPLITS):
        raise SubquadError(f"{source} has too few sequences of each class to be divided: give more")
    return chosen


def label_groups(labelled: Labelled) -> Int[ndarray, "sequences"]:
    """The class of each sequence, 0 for targets that are no classes, and -1 for sequences without a label."""
    return labelled.numbers if labelled.kind == "classes" else np.where(labelled.numbers == UNLABELLED, UNLABELLED, 0)


def target_json(target: Target) -> dict[str, Any]:
    """A target as JSON types, as `target_from` reads it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(target).items()}


def goal_line(labelled: Labelled, target: Target) -> str:
    """The line of a description that says which labels are predicted."""
    classes = ", ".join(getattr(target, "names", ())[:8])
    return f"  goal: the label, {labelled.kind}{f' {classes}' if classes else ''} (--goal label --target {labelled.kind})"
