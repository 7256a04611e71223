"""Batches, model, loss and metrics for histories whose clients have a target."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.data.buckets import Buckets, bounded
from subquad.data.splits import SplitName
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.tasks.base import Best, Counted, Cut, DataSize, Predictions, Task, Vectors
from subquad.tasks.columns.summary import lines
from subquad.tasks.comparing import Judged, Rival
from subquad.tasks.targets.boosting import boosted
from subquad.tasks.targets.judging import compared_rows, curve_rows, trivial_rows
from subquad.tasks.targets.kinds import Classes
from subquad.tasks.targets.linear import fit_linear
from subquad.tasks.targets.target import Target
from subquad.tasks.transactions.aggregates import Aggregates, static_width
from subquad.tasks.transactions.batches import EventBatch
from subquad.tasks.transactions.clients import Clients, Data
from subquad.tasks.transactions.features import Features
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.importance import importance_rows
from subquad.tasks.transactions.loading import load_histories
from subquad.tasks.transactions.model import Classifier, Heads
from subquad.tasks.transactions.options import ClientOptions
from subquad.tasks.transactions.pretraining import (
    Pretrainer,
)
from subquad.types import AttentionOptions

COUNTS, BOOSTING = "linear model of counts", "boosting on aggregates"
"""Names of the baselines."""
ENOUGH_TO_CHOOSE = 50
"""Smallest number of development clients by which the best weights are chosen."""


def heads_of(features: Features) -> Heads:
    """What surrounds the encoder of a model with these features."""
    return Heads(features.predicted.outputs, static_width(features), bool(features.wide))


class TransactionsTask(Task[Any]):
    """Batches, model, loss and metrics for histories."""

    kind = "transactions"
    takes: ClassVar[str] = "scores clients: give their transactions by --data"
    units: ClassVar[Mapping[str, str]] = {"log_loss": "nats"}

    def __init__(self, options: ClientOptions, features: Features | None = None) -> None:
        self.options, self.kept = options, features
        self.clients = Clients(options, features)

    @property
    def features(self) -> Features:
        """Vocabularies, scales, the target and the linear model, learned from the training clients or stored by a run."""
        return self.clients.features

    @property
    def data(self) -> Data:
        """All histories and splits."""
        return self.clients.data

    @property
    def target(self) -> Target:
        """What is predicted of a client."""
        return self.features.predicted

    @property
    def chosen_by(self) -> Best | None:
        """The metric that decides a run's best weights; None for so few development clients that it would be chance."""
        return self.target.best if len(self.data.splits.development) >= ENOUGH_TO_CHOOSE else None

    @cached_property
    def buckets(self) -> Buckets:
        """Training clients, grouped by length."""
        histories, splits = self.data
        return Buckets(splits.train, histories.lengths[splits.train])

    @cached_property
    def weights(self) -> Float[Tensor, "classes"] | None:
        """The weight of each class in the loss; None if all weigh the same."""
        if self.options.class_weights == "none":
            return None
        histories, splits = self.data
        weights = self.target.weights(histories.targets[splits.train])
        if weights is None:
            raise SubquadError("--class-weights is for classes, but the target has none: leave it out")
        return torch.from_numpy(weights).float()

    @property
    def learned(self) -> dict[str, Any]:
        """The vocabularies and scales, which a run stores."""
        return self.features.as_json()

    @property
    def data_size(self) -> DataSize:
        """Numbers of training clients and of their events."""
        histories, splits = self.data
        return DataSize(len(splits.train), int(histories.lengths[splits.train].sum()))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        return self.data.histories.complaints

    @property
    def description(self) -> list[str]:
        """What the data hold, as lines."""
        wide = "beside a linear model of counts" if self.features.wide else "without a linear model of counts"
        return [*lines(self.features.summary), f"The attention works {wide}."] if self.options.data else []

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> nn.Module:
        return self._classifier(attention, model, generator)

    def _classifier(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> Classifier:
        features = self.features
        typical = features.events / features.clients
        return Classifier(
            features.layout,
            attention,
            model,
            pooling=self.options.pooling,
            typical=typical,
            heads=heads_of(features),
            generator=generator,
        )

    def begin(self, model: nn.Module, trained: nn.Module) -> None:
        """Copies the encoder and the pooling that were learned from histories without labels."""
        assert isinstance(model, Classifier)
        assert isinstance(trained, Pretrainer)
        model.encoder.load_state_dict(trained.model.encoder.state_dict())
        for name in ("growth", "weigh"):
            ours, theirs = getattr(model, name), getattr(trained.model, name)
            if isinstance(ours, nn.Module):
                ours.load_state_dict(theirs.state_dict())
            elif ours is not None:
                ours.data.copy_(theirs.data)

    def cut(self, length: int) -> Cut | None:
        """The same task with the last positions of each history only."""
        return Cut(replace(self.options, latest=min(length, self.options.latest)), "last")

    def batch(self, size: int, generator: torch.Generator) -> Any:
        """Training clients of similar length."""
        return self.clients.training_batch(self.buckets.draw(size, generator))

    def loss(self, model: nn.Module, batch: Any) -> Counted:
        """The loss of the target of each client, weighted by class if that is asked for."""
        outputs = model(batch.events, keep=batch.keep, static=batch.static, offset=batch.offset).float()
        losses = self.target.loss(outputs, batch.target)
        if self.weights is not None:
            losses = losses * self.target.weigh(batch.target, self.weights.to(losses.device))
        return Counted(losses.sum(), self.count(batch))

    def count(self, batch: Any) -> int:
        return len(batch.target)

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Metrics on the development split."""
        measured = self.target.metrics(self.truth("development"), self.scores(model, "development"), 0)
        return {name: float(values[0]) for name, values in measured.items() if name != "average_precision"}

    def final(self, model: nn.Module) -> list[Row]:
        """Metrics on the test split with intervals, beside baselines and the trivial answer; curves; columns that matter."""
        histories, splits = self.data
        target, truth, predicted = self.target, self.truth("test"), self.scores(model, "test")
        rows = [*compared_rows(target, truth, predicted, self.baselines())]
        rows += trivial_rows(target, truth, target.trivial(histories.targets[splits.train]))
        if not self.options.data:
            best = self.options.simulator.best_auroc(self._simulated_test())
            rows.append({"metric": "best_possible_auroc", "split": "test", "value": best})
        rows += curve_rows(target, truth, predicted)
        if self.options.importance:
            test = histories.select(splits.test)
            columns = (*self.features.further_columns, *self.features.static_columns)
            used = (*self.features.fields, *(column.name for column in columns))
            rows += importance_rows(target, test, lambda some: self.predicted(model, some), used)
        return [row for row in rows if math.isfinite(row["value"])]  # some metrics need several values in the test

    def baselines(self) -> dict[str, Float[ndarray, "test p"]]:
        """Predictions for the test clients by models that do not see sequences, on the same clients and columns."""
        if not self.options.baselines:
            return {}
        histories, splits = self.data
        training, test, target = histories.select(splits.train), histories.select(splits.test), self.target
        aggregates = self.clients.aggregates or Aggregates.learn(self.features, training, len(histories.clients))
        tables = [aggregates.table(some) for some in (training, test)]
        linear = self.clients.linear or fit_linear(tables[0], training.targets, target)[0]
        predicted = {COUNTS: target.predict(linear.logits(tables[1]))}
        with suppress(SubquadError):  # scikit-learn, which is an extra, may not be installed
            predicted[BOOSTING] = boosted(target, tables[0], training.targets, tables[1])
        return predicted

    @property
    def ranked_by(self) -> Best:
        """The metric on the development clients by which the target's models are chosen, however few clients there are."""
        return self.target.best

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        histories, splits = self.data
        latest = np.minimum(histories.lengths, self.options.latest)
        return {part: latest[clients] for part, clients in splits._asdict().items()}

    def judge(self, model: nn.Module) -> Judged:
        """What the target's deciding metric is made of, for each test client."""
        return self.target.judged(self.truth("test"), self.scores(model, "test"))

    def rivals(self) -> dict[str, Rival]:
        """The same answer for all clients, a linear model of counts, and gradient boosting on aggregates."""
        histories, splits = self.data
        truth = self.truth("test")
        same = np.repeat(self.target.trivial(histories.targets[splits.train]), len(truth), axis=0)
        rivals = {"the same for all": Rival(self.target.judged(truth, same), is_trivial=True)}
        return rivals | {name: Rival(self.target.judged(truth, known)) for name, known in self.baselines().items()}

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Clients of the development split with their scores, predicted and true targets."""
        histories, splits = self.data
        rows = torch.randperm(len(splits.development), generator=generator)[:count].numpy()
        clients, predicted = splits.development[rows], self.scores(model, "development")[rows]
        is_scored = isinstance(self.target, Classes) and self.target.is_binary
        return [
            {
                "given": f"{histories.clients[client]}, {histories.lengths[client]} events"
                + (f", score {values[0]:.3f}" if is_scored else ""),
                "answered": self.target.answer(values),
                "right": self.target.said(histories.targets[client]),
            }
            for client, values in zip(clients, predicted, strict=True)
        ]

    def truth(self, split_name: SplitName) -> Float[ndarray, "clients k"]:
        """The targets of the clients in a split."""
        histories, splits = self.data
        return histories.targets[getattr(splits, split_name)]

    def scores(self, model: nn.Module, clients: SplitName | Histories) -> Float[ndarray, "clients p"]:
        """What a model predicts for each client, of a split or of new histories, such as probabilities of classes."""
        if isinstance(clients, Histories):
            self.features.require_fields(clients)
            return self.predicted(model, clients.latest(self.options.latest))
        some, offsets = self._split(clients)
        return self.target.predict(self._outputs(model, some, offsets))

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """What is predicted for each client of a file or folder, labelled or not, with the names of classes."""
        histories = self._load(path)
        scored = zip(histories.clients, self.scores(model, histories), strict=True)
        answers = [[client, *self.target.line(values)] for client, values in scored]
        said = histories.complaints
        if isinstance(self.target, Classes) and self.target.is_binary:
            said = (*said, f"the score is the probability of the class {self.target.names[1]!r:.80}")
        return Predictions(["client", *self.target.columns()], answers, said)

    def embed(self, model: nn.Module, path: Path) -> Vectors:
        """The vector of each client of a file or folder, labelled or not."""
        histories = self._load(path)
        self.features.require_fields(histories)
        classifier = model.model if isinstance(model, Pretrainer) else model
        assert isinstance(classifier, Classifier)
        recent = histories.latest(self.options.latest)

        def vector(batch: EventBatch) -> Tensor:
            return classifier.vector(batch.events, keep=batch.keep, static=batch.static)

        vectors = self._over(model, recent, np.zeros((len(recent.clients), self.target.outputs)), vector)
        return Vectors("client", histories.clients, vectors.astype(np.float32), histories.complaints)

    def _load(self, path: Path) -> Histories:
        how = replace(self.clients.reading(), clients=None)
        return load_histories(path, self.options.columns, labelled=False, how=how)

    def _split(self, name: SplitName) -> tuple[Histories, Float[ndarray, "clients o"]]:
        """The histories of a split and the outputs of the linear model for them; those of development clients are kept."""
        if name == "development":
            return self._development_split
        histories, splits = self.data
        some = histories.select(getattr(splits, name))
        return some, self.clients.offsets(some)

    @cached_property
    def _development_split(self) -> tuple[Histories, Float[ndarray, "clients o"]]:
        histories, splits = self.data
        some = histories.select(splits.development)
        return some, self.clients.offsets(some)

    def predicted(self, model: nn.Module, histories: Histories) -> Float[ndarray, "clients p"]:
        """What a model predicts for each client of some histories."""
        return self.target.predict(self._outputs(model, histories, self.clients.offsets(histories)))

    def _outputs(
        self, model: nn.Module, histories: Histories, offsets: Float[ndarray, "clients o"]
    ) -> Float[ndarray, "clients o"]:
        def outputs(batch: EventBatch) -> Tensor:
            return model(batch.events, keep=batch.keep, static=batch.static, offset=batch.offset)

        return self._over(model, histories, offsets, outputs)

    @torch.no_grad()
    def _over(
        self, model: nn.Module, histories: Histories, offsets: Float[ndarray, "clients o"], compute: Any
    ) -> Float[ndarray, "clients w"]:
        """Computes something for batches of clients of similar length, and returns it in the order of the clients."""
        model.eval()
        device = next(model.parameters()).device
        parts: dict[int, ndarray] = {}
        for rows in bounded(histories.lengths, self.options.evaluation_tokens):
            batch = self.clients.batch(histories.select(rows), offsets[rows])
            batch = EventBatch(*(tensor.to(device) for tensor in batch))
            parts |= zip(rows.tolist(), compute(batch).double().cpu().numpy(), strict=True)
        return np.stack([parts[at] for at in range(len(histories.clients))])

    def _simulated_test(self) -> Histories:
        """The test clients with their whole histories, regardless of the option `latest`."""
        return self.options.simulator.draw().select(self.data.splits.test)
