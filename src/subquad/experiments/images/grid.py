"""The trainings on images, and the models whose speed of writing images is measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from subquad.attention import Linear, Lsh, Softmax
from subquad.experiments.base import Scale, Training, Trial
from subquad.models import ModelOptions
from subquad.tasks import Images
from subquad.tasks.images.model import Shape
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = (
    "linear attention writes images 317 (MNIST) and 4462 (CIFAR-10) times as fast as softmax that is recomputed for each "
    "pixel, nearly as well (Katharopoulos et al. 2020)"
)
BASELINE = "softmax"


@dataclass(frozen=True)
class Written:
    """A model whose images a second are measured, with random weights, and what the paper measured on a GPU."""

    shape: Shape
    model: ModelOptions
    published: Mapping[str, float]
    """Times as many images a second as softmax recomputed, by method."""

    @property
    def values(self) -> int:
        """Number of values of an image."""
        return self.shape.values


PAPER_MODEL = ModelOptions(layers=8, heads=8, head_dim=32)
WRITTEN = (
    Written(Shape(28, 28, 1), PAPER_MODEL, {"linear": 317.0, "cached": 16.8}),
    Written(Shape(32, 32, 3), replace(PAPER_MODEL, layers=16), {"linear": 4462.0, "cached": 80.0}),
)
"""The paper's models of MNIST and of CIFAR-10."""


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every attention with every seed, and models whose speed is measured."""

    seeds: tuple[int, ...]
    attentions: Mapping[str, AttentionOptions]
    model: ModelOptions
    training: TrainOptions
    task: Images = field(default_factory=Images)
    """The task. Its data are replaced."""
    written: tuple[Written, ...] = WRITTEN

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every attention gets its first results early."""
        task = replace(self.task, data=self.data)
        for seed, (name, attention) in product(self.seeds, self.attentions.items()):
            yield Trial(f"images-{name}-{seed}", name, 0, seed, Training(task, attention, self.model, self.training))


SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2),
        attentions={"softmax": Softmax(), "linear": Linear(), "lsh": Lsh(rounds=4)},
        task=Images(side=14, tested=500),
        model=ModelOptions(layers=2, heads=4, head_dim=32),
        training=TrainOptions(
            batch=16,
            steps=400,
            learning_rate=2e-3,
            warm_up=50,
            schedule="cosine",
            evaluate_every=100,
            checkpoint_every=100,
        ),
        minutes="under 30 minutes on two cores; images of 14 x 14, with --data for MNIST's or others",
    ),
    "paper": Grid(
        seeds=(0,),
        attentions={"softmax": Softmax(), "linear": Linear(), "lsh": Lsh(rounds=4)},
        task=Images(head="logistics", tested=10_000),
        model=PAPER_MODEL,
        training=TrainOptions(batch=10, steps=1_500_000, learning_rate=1e-4, evaluate_every=6000, checkpoint_every=6000),
        minutes="months on two cores; with --data for MNIST",
    ),
}
