"""The trainings on card transactions: every attention on every fold of the clients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from subquad.attention import Favor, Infinity, Linear, Linformer, Softmax
from subquad.experiments.base import Scale, Training, Trial
from subquad.models import ModelOptions
from subquad.tasks import Transactions
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = "efficient attentions tell clients apart by their transactions as well as softmax, for less (after Baikalov et al.)"
BASELINE, BOOSTING, COUNTS = "softmax", "boosting", "counts"
SCORE, BEST_POSSIBLE = "score", "best_possible_auroc"
LONG = 8192
"""Number of events of the client in the measurement of long histories."""


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every attention on every fold, for every label in the data."""

    folds: int
    attentions: Mapping[str, AttentionOptions]
    model: ModelOptions
    training: TrainOptions
    task: Transactions = field(default_factory=lambda: Transactions(wide="off", baselines=False, importance=False))
    """The task, with the attention alone. Its data, label and fold are replaced; baselines are measured once for a fold."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels: two for Berka's data, and for other data an empty name for the default label."""
        return ("age", "gender") if self.data and (Path(self.data) / "trans.asc").exists() else ("",)

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every attention gets its first results early."""
        for label, fold, (attention, options) in product(self.labels, range(self.folds), self.attentions.items()):
            task = replace(self.task, data=self.data, label=label, fold=fold, folds=self.folds)
            name = "-".join(filter(None, ("transactions", label, attention, str(fold))))
            yield Trial(name, attention, 0, fold, Training(task, options, self.model, self.training))


SCALES: dict[str, Grid] = {
    "quick": Grid(
        folds=5,
        attentions={
            "softmax": Softmax(),
            "linear": Linear(),
            "favor": Favor(features=64),
            "infinity": Infinity(segment=128, basis=64),
            "linformer": Linformer(k=64),
        },
        model=ModelOptions(layers=1, heads=4, head_dim=16),
        training=TrainOptions(
            batch=32,
            steps=300,
            learning_rate=1e-2,
            schedule="cosine",
            warm_up=20,
            evaluate_every=300,
            checkpoint_every=300,
        ),
        minutes="under 10 minutes on two cores with simulated clients",
    ),
    "paper": Grid(
        folds=5,
        attentions={
            "softmax": Softmax(),
            "linear": Linear(),
            "favor": Favor(features=128),
            "infinity": Infinity(),
            "linformer": Linformer(),
        },
        model=ModelOptions(layers=4, heads=8, head_dim=16, dropout=0.1),
        training=TrainOptions(batch=64, steps=5000),
        minutes="hours on two cores; with --data for Sberbank's clients",
    ),
}
