"""The trainings and measurements for the replication of *Transformers are RNNs* on the copy task."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import torch

from subquad.attention import Favor, Linear, Softmax
from subquad.compare.cells import Setting
from subquad.compare.plan import Plan
from subquad.experiments.base import Scale, Timing, Training, Trial
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.tasks import Copy
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = "linear attention converges like softmax on the copy task, in linear time, and faster (Katharopoulos et al. 2020)"


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every attention at every length with every seed."""

    attentions: Mapping[str, AttentionOptions]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    model: ModelOptions
    training: TrainOptions
    timing: Timing
    """Comparison that times one training step of the replication's encoder-decoder by length."""
    task: Copy = field(default_factory=Copy)
    """The task. Its length is replaced by each of `lengths`."""

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every attention gets its first results early."""
        for length, seed, (name, attention) in product(self.lengths, self.seeds, self.attentions.items()):
            work = Training(replace(self.task, length=length), attention, self.model, self.training)
            yield Trial(f"copy-{name}-{length}-{seed}", name, length, seed, work)


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


QUICK = Grid(
    attentions=attentions(features=64),
    lengths=(32,),
    seeds=(0, 1, 2, 3, 4),
    model=ModelOptions(layers=2, heads=4, head_dim=32),
    training=TrainOptions(steps=1800, batch=32, evaluate_every=200, checkpoint_every=600),
    timing=step_timing(2048, batch=1, budget_seconds=180),
    minutes="under 20 minutes on two cores",
)
SCALES: dict[str, Grid] = {
    "quick": QUICK,
    "long": replace(
        QUICK,
        attentions=attentions(features=128),
        lengths=(64,),
        training=TrainOptions(steps=2700, batch=32, evaluate_every=300, checkpoint_every=900),
        timing=step_timing(4096, batch=1, budget_seconds=600),
        minutes="about an hour on two cores",
    ),
    "paper": Grid(
        attentions=attentions(features=256),
        lengths=(8, 16, 32, 64),
        seeds=(0, 1, 2, 3, 4),
        task=Copy(form="encoder-decoder"),
        model=ModelOptions(layers=4, heads=8, head_dim=64),
        training=TrainOptions(steps=10_000, batch=64, schedule="drop", drop_at=3000),
        timing=step_timing(4096, batch=8, budget_seconds=3600),
        minutes="days on two cores; can be interrupted and resumed at any time",
    ),
}
