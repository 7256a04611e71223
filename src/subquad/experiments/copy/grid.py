"""The trainings and measurements for the replication of *Transformers are RNNs* on the copy task."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch

from subquad.attention import Favor, Linear, Softmax
from subquad.compare.cells import Setting
from subquad.compare.plan import Plan
from subquad.experiments.base import Scale, Timing, Training, Trial
from subquad.experiments.copy.recipes import FEATURES, FOUND, SMALL, SOFTMAX, THEIRS, TINY, changed, changes, put_back
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.tasks import Copy
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = "linear attention converges like softmax on the copy task, in linear time, and faster (Katharopoulos et al. 2020)"
FIVE_SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True, kw_only=True)
class CopyScale(Scale):
    """Trainings at every length with every seed, and a comparison of the time of a training step."""

    lengths: tuple[int, ...]
    """Numbers of symbols to copy."""
    seeds: tuple[int, ...] = FIVE_SEEDS
    timing: Timing | None
    """Comparison that times one training step of the replication's encoder-decoder by length; None for no comparison."""

    @abstractmethod
    def recipes(self) -> Mapping[str, Training]:
        """Trainings by the name of what distinguishes them. The task's length is replaced by each of `lengths`."""

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every recipe gets its first results early.

        Names of trials contain the number of positions, as in earlier versions, so that their folders are found again.
        """
        for length, seed, (name, recipe) in product(self.lengths, self.seeds, self.recipes().items()):
            training = changed(recipe, {"length": length})
            task: Any = training.task
            yield Trial(f"copy-{folder_word(name)}-{task.positions}-{seed}", name, length, seed, training)


@dataclass(frozen=True, kw_only=True)
class Grid(CopyScale):
    """Several attentions, trained in the same way."""

    attentions: Mapping[str, AttentionOptions]
    model: ModelOptions
    training: TrainOptions
    task: Copy = field(default_factory=Copy)

    def recipes(self) -> Mapping[str, Training]:
        return {name: Training(self.task, choice, self.model, self.training) for name, choice in self.attentions.items()}


@dataclass(frozen=True, kw_only=True)
class Recipes(CopyScale):
    """Trainings that differ in any options, by name."""

    trainings: Mapping[str, Training]

    def recipes(self) -> Mapping[str, Training]:
        return self.trainings


def folder_word(name: str) -> str:
    """Returns the name of a recipe with everything but letters, digits and dots replaced by hyphens."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")


def step_timing(longest: int, *, batch: int, budget_seconds: float) -> Timing:
    """The comparison of a training step of 4 + 4 layers with 8 heads of 64, at lengths that double from 8."""
    plan = Plan(
        variants={"softmax": Softmax(), "linear": Linear(), "favor": Favor()},
        lengths=tuple(2**power for power in range(3, longest.bit_length())),
        whats=("update",),
        settings=(Setting(batch=batch, threads=torch.get_num_threads()),),
    )
    return Timing(plan, Limits(memory_bytes=6 * 2**30), budget_seconds)


def attentions(features: int) -> dict[str, AttentionOptions]:
    """The attentions that are compared, by name."""
    return {"softmax": Softmax(), "linear": Linear(), "favor": Favor(features=features)}


LINEAR_FOUND = "linear, recipe found here"
"""Name of linear attention with the recipe that was found here."""


def beside_theirs(theirs: Training) -> dict[str, Training]:
    """Softmax and linear attention with the replication's recipe, then linear attention with the one found here."""
    return {
        "softmax": changed(theirs, SOFTMAX),
        "linear": theirs,
        LINEAR_FOUND: changed(theirs, FOUND),
    }


def why(theirs: Training) -> dict[str, Training]:
    """The replication's recipe and the one found here, single changes to the first, and single steps back from the second.

    Feature maps are changed in both. Warm-up takes a tenth of the steps.
    """
    steps = theirs.options.steps
    found = changed(theirs, {**FOUND, "warm_up": steps // 10})
    return {
        "linear": theirs,
        LINEAR_FOUND: found,
        **{name: changed(theirs, change) for name, change in (changes(steps) | FEATURES).items()},
        **{f"{FOUND_BUT}{name}": changed(found, change) for name, change in (FEATURES | put_back()).items()},
    }


FOUND_BUT = "found, but "
"""Beginning of the names of recipes that take back or change one part of the recipe found here."""
WHY_SMALL = (
    "linear",
    LINEAR_FOUND,
    "softmax",
    "batch 32, equal steps",
    "batch 32, equal samples",
    "batch 128, equal samples",
    "queries and keys x 5",
    "warm-up",
    "RAdam",
    "pre-norm",
    "learning rate 2e-3",
    "no dropout",
    "ReLU features",
    "learned features",
    "FAVOR+",
    f"{FOUND_BUT}post-norm",
    f"{FOUND_BUT}queries and keys x 1",
    f"{FOUND_BUT}Adam",
    f"{FOUND_BUT}learning rate 1e-3",
    f"{FOUND_BUT}no warm-up",
    "batch 128, equal steps",  # takes the longest
    "Taylor features",
)
"""Recipes of the scale `why` that its small form tries, those that decide most first."""


def why_small(theirs: Training) -> dict[str, Training]:
    """Returns the recipes of `WHY_SMALL`, in this order."""
    recipes = why(theirs)
    return {name: recipes[name] for name in WHY_SMALL}


QUICK = Grid(
    attentions=attentions(features=64),
    lengths=(15,),
    model=ModelOptions(layers=2, heads=4, head_dim=32),
    training=TrainOptions(steps=1800, batch=32, evaluate_every=200, checkpoint_every=600),
    timing=step_timing(2048, batch=1, budget_seconds=180),
    minutes="under 20 minutes on two cores",
)
SCALES: dict[str, CopyScale] = {
    "quick": QUICK,
    "long": replace(
        QUICK,
        attentions=attentions(features=128),
        lengths=(31,),
        training=TrainOptions(steps=2700, batch=32, evaluate_every=300, checkpoint_every=900),
        timing=step_timing(4096, batch=1, budget_seconds=600),
        minutes="about an hour on two cores",
    ),
    "paper": Grid(
        attentions=attentions(features=256),
        lengths=(8, 16, 32, 64),
        task=Copy(form="encoder-decoder"),
        model=ModelOptions(layers=4, heads=8, head_dim=64),
        training=TrainOptions(steps=10_000, batch=64, schedule="drop", drop_at=3000),
        timing=step_timing(4096, batch=8, budget_seconds=3600),
        minutes="days on two cores",
    ),
    "replication": Recipes(
        trainings=beside_theirs(THEIRS),
        lengths=(8, 16, 32, 64),
        timing=step_timing(4096, batch=8, budget_seconds=3600),
        minutes="about 20 hours on two cores, and 42 GB of checkpoints",
    ),
    "replication-quick": Recipes(
        trainings=beside_theirs(changed(THEIRS, SMALL)),
        lengths=(32,),
        timing=None,
        minutes="about 20 minutes on two cores",
    ),
    "why-small": Recipes(
        trainings=why_small(changed(THEIRS, TINY)),
        lengths=(16,),
        timing=None,
        minutes="about an hour on two cores",
    ),
    "why": Recipes(
        trainings=why(changed(THEIRS, SMALL)),
        lengths=(32,),
        timing=None,
        minutes="about 9 hours on two cores",
    ),
}
