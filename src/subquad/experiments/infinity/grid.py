"""The trainings for the infinity-former: the sorting task with and without the memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from subquad.attention import Infinity
from subquad.experiments.base import Scale, Training, Trial
from subquad.models import ModelOptions
from subquad.tasks import Sorting
from subquad.training import TrainOptions

CLAIM = "a continuous memory of fixed size helps to sort long sequences, at a cost that does not grow (Martins et al. 2022)"
EVEN, STICKY, WINDOW = "even memory", "sticky memory", "window only"


@dataclass(frozen=True)
class Size:
    """Options that depend on the length of the sequences."""

    segment: int
    batch: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Three kinds of memory at every length with every seed."""

    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    attention: Infinity
    model: ModelOptions
    training: TrainOptions
    sizes: Mapping[int, Size] = field(default_factory=dict)
    """Segment, batch and steps by length, which replace those of `attention` and `training`."""

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every variant gets its first results early."""
        for length, seed, variant in product(self.lengths, self.seeds, (EVEN, STICKY, WINDOW)):
            attention, training = self.attention, self.training
            if size := self.sizes.get(length):
                attention = replace(attention, segment=size.segment)
                training = replace(training, batch=size.batch, steps=size.steps)
            if variant == WINDOW:
                attention = replace(attention, basis=0)
            attention = replace(attention, sticky=variant == STICKY)
            name = f"sorting-{variant.replace(' ', '-')}-{length}-{seed}"
            work = Training(Sorting(length=length), attention, self.model, training)
            yield Trial(name, variant, length, seed, work)


SCALES: dict[str, Grid] = {
    "quick": Grid(
        lengths=(4096, 1024, 8192),
        seeds=(0, 1, 2),
        attention=Infinity(basis=64, points=64, widths=(0.05,)),
        model=ModelOptions(layers=1, heads=2, head_dim=32, positions="rotary", tied=False),
        training=TrainOptions(learning_rate=2e-2, schedule="cosine", evaluate_every=50, checkpoint_every=100),
        sizes={
            1024: Size(segment=128, batch=8, steps=200),
            4096: Size(segment=256, batch=8, steps=300),
            8192: Size(segment=512, batch=4, steps=150),
        },
        minutes="under 20 minutes on two cores",
    ),
    "paper": Grid(
        lengths=(4096, 8192, 16384),
        seeds=(0, 1, 2),
        attention=Infinity(segment=1024, basis=512, points=512, widths=(0.01, 0.05), divergence=1e-6),
        model=ModelOptions(layers=3, heads=6, head_dim=50, positions="rotary"),
        training=TrainOptions(optimizer="adamw", learning_rate=2e-4, batch=8, steps=20_000),
        minutes="weeks on two cores, a GPU's work",
    ),
}
