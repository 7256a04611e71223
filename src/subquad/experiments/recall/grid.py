"""The trainings for recall: every mechanism with a causal form, with states of several sizes, on two tasks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from subquad.attention import MECHANISMS
from subquad.experiments.base import Scale, Training, Trial
from subquad.models import ModelOptions
from subquad.tasks import Induction, Recall
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = "softmax recalls what it has seen, and a state of constant size only as much as it has room for (Arora et al. 2023)"
RECALL, INDUCTION = "recall", "induction"
CAUSAL = tuple(name for name, options in MECHANISMS.items() if options().traits.causal)
"""Names of the mechanisms with a causal form."""


class StateSize(NamedTuple):
    """Sizes that set how large a model's state is."""

    head_dim: int
    """Dimension of one head, of every mechanism."""
    near: int
    """Number of positions that a mechanism weighs exactly, if it has such a number."""


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every causal mechanism on recall with states of every size, and on induction with the largest, with every seed."""

    seeds: tuple[int, ...]
    sizes: tuple[StateSize, ...]
    """Sizes of the states, in ascending order."""
    model: ModelOptions
    """Model of all trainings. Its head_dim is replaced."""
    recall: Recall
    induction: Induction
    training: TrainOptions
    """Training on both tasks."""

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every mechanism gets its first results early."""
        for seed in self.seeds:
            for size in reversed(self.sizes):
                for name in CAUSAL:
                    yield self._trial(name, size, seed, self.recall)
            for name in CAUSAL:
                yield self._trial(name, self.sizes[-1], seed, self.induction)

    def _trial(self, name: str, size: StateSize, seed: int, task: Recall | Induction) -> Trial:
        model = replace(self.model, head_dim=size.head_dim)
        work = Training(task, sized(name, size, task.length), model, self.training)
        return Trial(f"{task.kind}-{name}-{size.head_dim}-{seed}", name, size.head_dim, seed, work)


def sized(name: str, size: StateSize, length: int) -> AttentionOptions:
    """The options of a mechanism with a state of this size."""
    options: dict[str, dict[str, Any]] = {
        "favor": {"features": 2 * size.head_dim},
        "hybrid": {"block": max(1, size.near // 2)},  # it keeps two blocks
        "window": {"reach": size.near},
        "sparse": {"block": max(1, size.near // 2), "random_blocks": 1, "global_blocks": 1},
        "lsh": {"buckets": 8, "chunk": size.near},
        "infinity": {"segment": size.near, "basis": size.near, "points": size.near},
        "cosformer": {"max_length": 2 * length},
    }
    return MECHANISMS[name](**options.get(name, {}))


SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2),
        sizes=(StateSize(8, 2), StateSize(16, 4), StateSize(32, 8)),
        model=ModelOptions(layers=2, heads=2, positions="rotary", tied=False),
        recall=Recall(length=12, pairs=4, keys=8, values=8, held_out=128, tested=512),
        induction=Induction(length=16, symbols=8, held_out=128, tested=512),
        training=TrainOptions(
            optimizer="adamw",
            learning_rate=5e-3,
            schedule="cosine",
            warm_up=50,
            batch=64,
            steps=450,
            evaluate_every=90,
            checkpoint_every=450,
        ),
        minutes="about 11 minutes on two cores, by extrapolation",
    ),
    "paper": Grid(
        seeds=(0, 1, 2),
        sizes=(StateSize(64, 16), StateSize(128, 32), StateSize(256, 64), StateSize(512, 128)),
        model=ModelOptions(layers=2, heads=1, positions="rotary", tied=False),
        recall=Recall(length=256, pairs=16, keys=4096, values=4096, near=0.01, tested=3000),
        induction=Induction(length=256, symbols=16, tested=3000),
        training=TrainOptions(
            optimizer="adamw",
            learning_rate=1e-3,
            schedule="cosine",
            warm_up=1000,
            batch=256,
            steps=25_000,
            evaluate_every=500,
            checkpoint_every=500,
        ),
        minutes="weeks on two cores, a GPU's work",
    ),
}
