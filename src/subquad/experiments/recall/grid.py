"""The trainings for recall: every mechanism with a causal form, with states of several sizes, on two tasks.

Each is trained at every learning rate with the first seed. The rate that is best on the development split is then used with
the other seeds, because the rates at which softmax and linear attention learn to recall differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from subquad.attention import MECHANISMS
from subquad.experiments.base import Scale, Training, Trial
from subquad.experiments.rates import best_rate
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


class Cell(NamedTuple):
    """A mechanism with a state of one size, on one of the tasks."""

    task: Recall | Induction
    mechanism: str
    size: StateSize


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every causal mechanism on recall with states of every size, and on induction with the largest, with every seed."""

    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    """Learning rates that every mechanism is tried at, with states of every size."""
    sizes: tuple[StateSize, ...]
    """Sizes of the states, in ascending order."""
    model: ModelOptions
    """Model of all trainings. Its head_dim is replaced."""
    recall: Recall
    induction: Induction
    training: TrainOptions
    """Training on both tasks. Its learning rate is replaced."""

    def cells(self) -> Iterator[Cell]:
        """Yields what is compared, in an order in which every mechanism gets its first results early."""
        for size in reversed(self.sizes):
            yield from (Cell(self.recall, name, size) for name in CAUSAL)
        yield from (Cell(self.induction, name, self.sizes[-1]) for name in CAUSAL)

    def trials(self) -> Iterator[Trial]:
        """Yields the search of the learning rate with the first seed."""
        for cell in self.cells():
            for rate in self.rates:
                yield self.trial(cell, rate, self.seeds[0])

    def later_trials(self, folder: Path) -> Iterator[Trial]:
        """Yields the other seeds at the best learning rates."""
        for seed in self.seeds[1:]:
            for cell in self.cells():
                if (rate := self.best_rate(folder, cell)) is not None:
                    yield self.trial(cell, rate, seed)

    def best_rate(self, folder: Path, cell: Cell) -> float | None:
        """The learning rate with the highest accuracy on the development split; None until all were tried."""
        return best_rate({rate: folder / self.trial(cell, rate, self.seeds[0]).name for rate in self.rates})

    def trial(self, cell: Cell, rate: float, seed: int) -> Trial:
        """The training of a mechanism on a task."""
        task, name, size = cell
        model, options = replace(self.model, head_dim=size.head_dim), replace(self.training, learning_rate=rate)
        work = Training(task, sized(name, size, task.length), model, options)
        return Trial(f"{task.kind}-{name}-{size.head_dim}-{rate:g}-{seed}", name, size.head_dim, seed, work)


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
        seeds=(3, 4, 5),  # its steps and rates were chosen with other seeds
        rates=(4e-3, 1e-3),
        sizes=(StateSize(8, 2), StateSize(16, 4), StateSize(32, 8)),
        model=ModelOptions(layers=2, heads=2, positions="rotary", tied=False),
        recall=Recall(length=12, pairs=4, keys=8, values=8, held_out=128, tested=512),
        induction=Induction(length=16, symbols=8, held_out=128, tested=512),
        training=TrainOptions(
            optimizer="adamw",
            schedule="cosine",
            warm_up=100,
            batch=64,
            steps=1200,
            evaluate_every=240,
            checkpoint_every=1200,
        ),
        minutes="about 35 minutes on two cores; further seeds follow at the best rates",
    ),
    "paper": Grid(
        seeds=(0, 1, 2),
        rates=(1e-4, 4.6e-4, 2.2e-3, 1e-2),
        sizes=(StateSize(64, 16), StateSize(128, 32), StateSize(256, 64), StateSize(512, 128)),
        model=ModelOptions(layers=2, heads=1, positions="rotary", tied=False),
        recall=Recall(length=256, pairs=16, keys=4096, values=4096, near=0.01, tested=3000),
        induction=Induction(length=256, symbols=16, tested=3000),
        training=TrainOptions(
            optimizer="adamw",
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
