"""The trainings of the Long Range Arena: every mechanism on every task, at the learning rate that suits it best.

Each mechanism is trained at every learning rate with the first seed. The rate that is best on the development split is then
used with the other seeds. So every mechanism has the same model, the same number of steps and the same search.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from subquad.attention import MECHANISMS
from subquad.compare.cells import Setting
from subquad.compare.plan import Plan
from subquad.errors import SubquadError
from subquad.experiments.base import Scale, Timing, Training, Trial
from subquad.experiments.rates import best_rate
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.tasks import Image, ListOps, Pathfinder, Retrieval, Text
from subquad.tasks.lra import ArenaOptions
from subquad.tasks.lra.base import mechanism_sizes
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = "attentions in linear time do what softmax does on long sequences, and none is best at everything (Tay et al. 2020)"
BASELINE = "softmax"
FOLDERS = {
    "lra-listops": "listops",
    "lra-text": "text",
    "lra-retrieval": "retrieval",
    "lra-image": "image",
    "lra-pathfinder": "pathfinder",
}
"""Folders of data for each task, below the folder that the user gives."""
QUICK_SEEDS = (3, 4, 5)
"""Seeds of the quick scale. Its steps, sizes and rates were chosen with seeds 0 to 2 and other held-out sequences."""
QUICK_DATA_SEED = 1
"""Seed of the data that the quick scale draws or divides. Those of seed 0 served to choose its settings."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """A task, its model and training, and how learning rates and seeds are tried."""

    task: ArenaOptions
    model: ModelOptions
    training: TrainOptions
    """Training. Its learning rate is replaced."""
    rates: tuple[float, ...]
    """Learning rates that every mechanism is tried at."""
    seeds: tuple[int, ...]

    def training_at(self, rate: float) -> TrainOptions:
        """The training at a learning rate."""
        return replace(self.training, learning_rate=rate)


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every mechanism on every task, and a comparison of time and memory."""

    plans: tuple[TaskPlan, ...]
    timing: Timing

    def trials(self) -> Iterator[Trial]:
        """Yields the search of the learning rate with the first seed, in an order in which every task gets results early."""
        self._require_data()
        for plan in self.plans:
            for rate in plan.rates:
                for name in MECHANISMS:
                    yield self.trial(plan, name, rate, plan.seeds[0])

    def _require_data(self) -> None:
        """Raises `SubquadError` for a folder of data without a folder for any of the tasks."""
        if self.data and not any((Path(self.data) / folder).is_dir() for folder in FOLDERS.values()):
            raise SubquadError(
                f"{self.data} holds nothing for the Long Range Arena: there should be some of the folders "
                f"{', '.join(FOLDERS.values())}"
            )

    def later_trials(self, folder: Path) -> Iterator[Trial]:
        """Yields the other seeds at the best learning rates."""
        for plan in self.plans:
            for seed in plan.seeds[1:]:
                for name in MECHANISMS:
                    if (rate := self.best_rate(folder, plan, name)) is not None:
                        yield self.trial(plan, name, rate, seed)

    def trial(self, plan: TaskPlan, name: str, rate: float, seed: int) -> Trial:
        """The training of a mechanism on a task."""
        task = with_data(plan.task, self.data)
        work = Training(task, sized(name, task.longest + 1), plan.model, plan.training_at(rate))
        return Trial(f"{task.kind}-{name}-{rate:g}-{seed}", name, 0, seed, work)

    def best_rate(self, folder: Path, plan: TaskPlan, name: str) -> float | None:
        """The learning rate with the highest accuracy on the development split; None until all were tried."""
        return best_rate({rate: folder / self.trial(plan, name, rate, plan.seeds[0]).name for rate in plan.rates})


def with_data(task: ArenaOptions, data: str) -> ArenaOptions:
    """The task with the user's data for it, if there is a folder for it in the folder `data`."""
    folder = Path(data) / FOLDERS[task.kind] if data else None
    return task if folder is None or not folder.is_dir() else replace(task, data=str(folder))


def sized(name: str, length: int) -> AttentionOptions:
    """A mechanism for sequences of this length."""
    return MECHANISMS[name](**mechanism_sizes(name, length))


def step_timing(lengths: tuple[int, ...], *, memory_bytes: int, budget_seconds: float) -> Timing:
    """The comparison of attention's forward and backward with 4 heads of 64, the width of the published text model."""
    plan = Plan(
        variants={name: sized(name, max(lengths)) for name in MECHANISMS},
        lengths=lengths,
        forms=("bidirectional",),
        whats=("training",),
        settings=(Setting(heads=4, head_dim=64, threads=torch.get_num_threads()),),
    )
    return Timing(plan, Limits(memory_bytes=memory_bytes), budget_seconds)


def small_plan(
    task: ArenaOptions,
    *,
    batch: int,
    steps: int,
    rates: tuple[float, ...],
    seeds: tuple[int, ...] = QUICK_SEEDS,
    layers: int = 2,
    tested: int = 600,
) -> TaskPlan:
    """A task of the quick scale: four heads of 16 in each layer, and an evaluation at the end."""
    training = TrainOptions(
        optimizer="adamw",
        weight_decay=0.01,
        schedule="cosine",
        warm_up=steps // 10,
        batch=batch,
        steps=steps,
        evaluate_every=steps,
        checkpoint_every=steps,
    )
    model = ModelOptions(layers=layers, heads=4, head_dim=16)
    brief = replace(task, held_out=300, tested=tested)
    return TaskPlan(task=brief, model=model, training=training, rates=rates, seeds=seeds)


def published_plan(
    task: ArenaOptions, model: ModelOptions, *, batch: int, steps: int, warm_up: int, rates: tuple[float, ...], decay: float
) -> TaskPlan:
    """A task with the published model, batch and steps, and a cosine in place of the published schedules."""
    training = TrainOptions(
        optimizer="adamw",
        weight_decay=decay,
        schedule="cosine",
        warm_up=warm_up,
        batch=batch,
        steps=steps,
        evaluate_every=max(100, steps // 50),
        checkpoint_every=max(100, steps // 50),
    )
    return TaskPlan(task=task, model=model, training=training, rates=rates, seeds=(0, 1, 2))


SCALES: dict[str, Grid] = {
    "quick": Grid(
        plans=(
            small_plan(
                ListOps(shortest=40, largest=100, data_seed=QUICK_DATA_SEED), batch=32, steps=100, rates=(2e-3, 6e-3)
            ),
            small_plan(
                Text(length=256, split_seed=QUICK_DATA_SEED), batch=32, steps=300, rates=(2e-3, 6e-3), layers=1, tested=2000
            ),
            small_plan(Image(side=16), batch=8, steps=240, rates=(2e-3, 5e-3), layers=1, tested=1000),
            small_plan(Retrieval(length=128), batch=16, steps=40, rates=(4e-3,), seeds=QUICK_SEEDS[:1]),
            small_plan(Pathfinder(difficulty="easy"), batch=8, steps=20, rates=(4e-3,), seeds=QUICK_SEEDS[:1], tested=200),
        ),
        timing=step_timing((1024, 2048, 4096), memory_bytes=4 * 2**30, budget_seconds=100),
        minutes="about 29 minutes of two cores; further seeds follow at the best rates",
    ),
    "paper": Grid(
        plans=(
            published_plan(
                ListOps(shortest=500, largest=2000, pooling="first", held_out=2000),
                ModelOptions(layers=6, heads=8, head_dim=64, dropout=0.1),
                batch=32,
                steps=5000,
                warm_up=1000,
                decay=0.1,
                rates=(3e-4, 1e-3, 3e-3),
            ),
            published_plan(
                Text(length=4000, pooling="first", held_out=2500, tested=0),
                ModelOptions(layers=4, heads=4, head_dim=64, dropout=0.1),
                batch=32,
                steps=20_000,
                warm_up=8000,
                decay=0.1,
                rates=(1e-4, 3e-4, 1e-3),
            ),
            published_plan(
                Retrieval(length=4000, pooling="first", held_out=2500, tested=0),
                ModelOptions(layers=4, heads=4, head_dim=32, dropout=0.1),
                batch=32,
                steps=5000,
                warm_up=1000,
                decay=0.1,
                rates=(1e-4, 3e-4, 1e-3),
            ),
            published_plan(
                Image(pooling="first", held_out=5000, tested=0),
                ModelOptions(layers=1, heads=1, head_dim=32, feed_dim=64, positions="learned", dropout=0.3),
                batch=256,
                steps=35_000,
                warm_up=175,
                decay=0.0,
                rates=(2e-4, 5e-4, 2e-3),
            ),
            published_plan(
                Pathfinder(held_out=20_000, tested=20_000),
                ModelOptions(layers=1, heads=4, fewer_heads=2, head_dim=32, feed_dim=128, dropout=0.2),
                batch=512,
                steps=62_500,
                warm_up=312,
                decay=0.0,
                rates=(3e-4, 1e-3, 3e-3),
            ),
        ),
        timing=step_timing((1024, 2048, 3072, 4096), memory_bytes=16 * 2**30, budget_seconds=1800),
        minutes="months on two cores, a GPU's work",
    ),
}
