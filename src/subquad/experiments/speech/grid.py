"""The trainings on speech: attentions and PyTorch's bidirectional LSTM, in the same way."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from subquad.attention import Linear, Lsh, Softmax
from subquad.experiments.base import Scale, Training, Trial
from subquad.models import ModelOptions
from subquad.tasks import Speech
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = (
    "on speech, linear attention has fewer errors than LSH and a bidirectional LSTM, more than softmax, and is faster than "
    "all (Katharopoulos et al. 2020)"
)
BASELINE, LSTM = "softmax", "lstm"
PUBLISHED = {"softmax": 5.12, "linear": 8.08, "lsh": 9.33}
"""Phone error rates of the paper's attentions on WSJ, in percent."""


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every encoder with every seed, and sounds of several lengths whose costs are measured."""

    seeds: tuple[int, ...]
    attentions: Mapping[str, AttentionOptions]
    model: ModelOptions
    lstm: ModelOptions
    """Size of the LSTM."""
    training: TrainOptions
    task: Speech = field(default_factory=Speech)
    """The task. Its data and its encoder are replaced."""
    seconds: tuple[int, ...] = (4, 16, 64)
    """Lengths of the sounds whose time and memory are measured."""

    def works(self) -> dict[str, Training]:
        """The training of each encoder, by name."""
        task = replace(self.task, data=self.data)
        works = {name: Training(task, attention, self.model, self.training) for name, attention in self.attentions.items()}
        return works | {LSTM: Training(replace(task, encoder="lstm"), Softmax(), self.lstm, self.training)}

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every encoder gets its first results early."""
        for seed, (name, work) in product(self.seeds, self.works().items()):
            yield Trial(f"speech-{name}-{seed}", name, 0, seed, work)


ATTENTIONS: dict[str, AttentionOptions] = {"softmax": Softmax(), "linear": Linear(), "lsh": Lsh(rounds=4)}
SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0,),
        attentions=ATTENTIONS,
        model=ModelOptions(layers=4, heads=4, head_dim=32, positions="rotary", dropout=0.1),
        lstm=ModelOptions(layers=2, heads=4, head_dim=32, dropout=0.1),
        training=TrainOptions(
            batch=16,
            steps=1500,
            optimizer="adamw",
            learning_rate=2e-3,
            weight_decay=0.01,
            warm_up=150,
            schedule="cosine",
            evaluate_every=300,
            checkpoint_every=100,
        ),
        minutes="under 30 minutes on two cores with AN4 (--data), a few minutes with tones",
    ),
    "paper": Grid(
        seeds=(0, 1, 2),
        attentions=ATTENTIONS,
        task=Speech(units="phones", convolutions=0),
        model=ModelOptions(layers=9, heads=6, head_dim=32, positions="sinusoidal", dropout=0.1),
        lstm=ModelOptions(layers=3, heads=10, head_dim=64, dropout=0.1),
        training=TrainOptions(batch=16, steps=100_000, learning_rate=1e-4, evaluate_every=1000, checkpoint_every=1000),
        minutes="weeks on two cores; with --data that have a dictionary of phones",
    ),
}
