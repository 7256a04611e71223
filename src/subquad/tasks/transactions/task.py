"""The task transactions: predict which of two classes a client belongs to from the history of card transactions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy import ndarray
from torch import nn

from subquad.checking import AtLeastTwo, BelowOne, Count, FileName, Seed, Whole, Words, check
from subquad.data.buckets import Buckets, bounded
from subquad.data.splits import SplitName
from subquad.errors import OptionError, SubquadError
from subquad.models import ModelOptions, Size, with_stack
from subquad.results import Row
from subquad.tasks.base import Counted, DataSize, Defaults, Predictions, Task, TaskOptions
from subquad.tasks.transactions.batches import EventBatch, pad
from subquad.tasks.transactions.features import Amounts, Features, learn
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.loading import Columns, load_histories
from subquad.tasks.transactions.metrics import accuracy, accuracy_interval, auroc, auroc_interval
from subquad.tasks.transactions.model import Classifier, Pooling, classifier_numbers
from subquad.tasks.transactions.simulator import Simulator
from subquad.tasks.transactions.splits import Splits, split
from subquad.types import AttentionOptions

ATTENTION_DEFAULTS: dict[str, dict[str, Any]] = {
    "favor": {"features": 64},
    "infinity": {"segment": 128, "basis": 64},
    "linformer": {"k": 64},
}
BATCH = 32
"""Default number of clients in a training step."""
CLIENT_BYTES, EVENT_BYTES = 64, 60
"""Lower bounds on the bytes of a simulated client's name, and of an event with its features."""


@dataclass(frozen=True)
class Transactions(TaskOptions):
    """Predict the class of a client from the history of card transactions: on your own clients, or on simulated ones."""

    data: FileName = ""  # folder of Sberbank's or Berka's data, or a table in CSV or Parquet; default: simulated clients
    label: Words = ""  # column with the label; for Berka's data, age (born before 1950) or gender
    client_column: Words = ""  # column with the name of the client; default: "client" or "customer_id"
    time_column: Words = ""  # column with the time, as seconds, ISO dates or "D HH:MM:SS"; default: "time" or "tr_datetime"
    code_column: Words = ""  # column with the code of what was bought; default: "code" or "mcc_code", if there is one
    type_column: Words = ""  # column with the type of payment; default: "type" or "tr_type", if there is one
    amount_column: Words = ""  # column with the amount; default: "amount", if there is one
    amounts: Amounts = "quantile"  # quantile: bins with equally many events; log: scaled logarithms
    pooling: Pooling = "mean"  # how the vectors of all events are combined into one
    latest: Count = 100_000  # largest number of events of a client; the last ones are kept
    folds: AtLeastTwo = 5  # number of folds that clients are divided into; one is the test split
    fold: Whole = 0  # number of the fold that is the test split, from 0
    split_seed: Seed = 0  # seed for dividing clients into folds
    clients: Count = 6000  # number of simulated clients
    shortest_history: Count = 60  # smallest number of events of a simulated client
    longest_history: Count = 400  # largest number of events of a simulated client
    codes: Count = 20  # number of different codes of simulated clients
    drift: BelowOne = 0.25  # strength of the habits of simulated clients, from 0 to below 1
    data_seed: Seed = 0  # seed of the simulated clients
    evaluation_tokens: Count = 32_768  # number of events per batch in evaluations, padding included
    kind: str = field(default="transactions", init=False)

    default_notes: ClassVar[str] = (
        "The default of --steps is for up to 4,800 training clients. With more, it is two rounds over them, at most 5000."
    )

    @property
    def columns(self) -> Columns:
        """Names of the columns of a table."""
        names = (self.client_column, self.time_column, self.code_column, self.type_column, self.amount_column)
        return Columns(*names, self.label)

    @property
    def simulator(self) -> Simulator:
        """The simulator that draws clients if no data are given."""
        return Simulator(self.clients, self.shortest_history, self.longest_history, self.codes, self.drift, self.data_seed)

    def check(self) -> None:
        if self.fold >= self.folds:
            raise OptionError("fold", f"must be below the number of folds, {self.folds}, but is {self.fold}")
        if not self.data:
            check(self.simulator)

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of `subquad reproduce transactions`, with more steps for more clients."""
        two_rounds = 0 if data is None else 2 * data.sequences // BATCH
        return Defaults(
            model={"layers": 1, "heads": 4, "head_dim": 16},
            training={
                "batch": BATCH,
                "steps": min(5000, max(300, two_rounds)),
                "learning_rate": 1e-2,
                "schedule": "cosine",
                "warm_up": 20,
                "evaluate_every": 100,
                "checkpoint_every": 100,
            },
            attention=ATTENTION_DEFAULTS.get(attention, {}),
        )

    def size(self, attention: AttentionOptions, model: ModelOptions, symbols: int = 0) -> Size:
        """Lower bound on the size of the model, a training step and simulated clients. The data determine the symbols."""
        shortest = 0 if self.data else self.shortest_history
        size = with_stack(classifier_numbers(symbols, model.model_dim, self.pooling), attention, model)
        simulated = 0 if self.data else self.clients * (CLIENT_BYTES + shortest * EVENT_BYTES)
        return size._replace(positions=min(shortest, self.latest), data_bytes=simulated)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "TransactionsTask":
        """Returns the task. If `learned` is given, the data are read only on first use."""
        return TransactionsTask(self, None if learned is None else Features.from_json(learned))


class _Data(NamedTuple):
    """All clients, and the indices of those in each split."""

    histories: Histories
    splits: Splits


class TransactionsTask(Task[EventBatch]):
    """Batches, model, loss and metrics for histories."""

    kind = "transactions"
    takes: ClassVar[str] = "scores clients: give their transactions by --data"

    def __init__(self, options: Transactions, features: Features | None = None) -> None:
        self.options, self.kept = options, features

    @cached_property
    def features(self) -> Features:
        """Vocabularies and scales of the training clients, or those that a run stored."""
        if self.kept is not None:
            return self.kept
        histories, splits = self.data
        return learn(histories.select(splits.train), self.options.amounts, histories)

    @cached_property
    def data(self) -> _Data:
        """All histories and splits. Raises `SubquadError` if the data differ from those that the run was made with."""
        options = self.options
        loaded = load_histories(Path(options.data), options.columns) if options.data else options.simulator.draw()
        histories = loaded.latest(options.latest)
        kept = self.kept
        if kept is not None and (kept.clients, kept.events) != (len(histories.clients), len(histories.times)):
            raise SubquadError(
                f"the data in {options.data} are not those that the run was made with: it had {kept.clients:,} clients and "
                f"{kept.events:,} events, they have {len(histories.clients):,} and {len(histories.times):,}; start a new run"
            )
        splits = split(histories.clients, histories.labels, folds=options.folds, fold=options.fold, seed=options.split_seed)
        return _Data(histories, splits)

    @cached_property
    def encoded(self) -> Float[ndarray, "events f"]:
        """Every event as numbers."""
        return self.features.encode(self.data.histories)

    @cached_property
    def buckets(self) -> Buckets:
        """Training clients, grouped by length."""
        histories, splits = self.data
        return Buckets(splits.train, histories.lengths[splits.train])

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

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> Classifier:
        features = self.features
        typical = features.events / features.clients
        pooling = self.options.pooling
        return Classifier(features.sizes, attention, model, pooling=pooling, typical=typical, generator=generator)

    def batch(self, size: int, generator: torch.Generator) -> EventBatch:
        """Training clients of similar length."""
        histories = self.data.histories
        return pad(self.encoded, histories.offsets, histories.labels, self.buckets.draw(size, generator))

    def loss(self, model: nn.Module, batch: EventBatch) -> Counted:
        """Binary cross-entropy of the class of each client."""
        logits = model(batch.events, keep=batch.keep).float()
        losses = F.binary_cross_entropy_with_logits(logits, batch.label, reduction="sum")
        return Counted(losses, self.count(batch))

    def count(self, batch: EventBatch) -> int:
        return len(batch.label)

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """AUROC and accuracy on the development split."""
        labels, scores = self.labels("development"), self.scores(model, "development")
        return {"auroc": auroc(labels, scores), "accuracy": accuracy(labels, scores)}

    def final(self, model: nn.Module) -> list[Row]:
        """AUROC and accuracy on the test split with intervals, and the AUROC of the optimal classifier if it is known."""
        labels, scores = self.labels("test"), self.scores(model, "test")
        intervals = {"auroc": auroc_interval(labels, scores), "accuracy": accuracy_interval(labels, scores)}
        rows: list[Row] = [{"metric": name, "split": "test", **interval._asdict()} for name, interval in intervals.items()]
        if not self.options.data:
            best = self.options.simulator.best_auroc(self._simulated_test())
            rows.append({"metric": "best_possible_auroc", "split": "test", "value": best})
        return rows

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Clients of the development split with their scores, predicted and true classes."""
        histories, splits = self.data
        rows = torch.randperm(len(splits.development), generator=generator)[:count].numpy()
        clients, scores = splits.development[rows], self.scores(model, "development")[rows]
        names = self.features.labels
        return [
            {
                "given": f"{histories.clients[client]}, {histories.lengths[client]} events, score {score:.3f}",
                "answered": names[int(score >= 0.5)],
                "right": names[histories.labels[client]],
            }
            for client, score in zip(clients, scores, strict=True)
        ]

    def labels(self, split_name: SplitName) -> Any:
        """The classes of the clients in a split."""
        histories, splits = self.data
        return histories.labels[getattr(splits, split_name)]

    def scores(self, model: nn.Module, clients: SplitName | Histories) -> Float[ndarray, "clients"]:
        """Probability of class 1 for each client, of a split or of new histories."""
        if isinstance(clients, Histories):
            self.features.require_fields(clients)
            histories = clients.latest(self.options.latest)
            return self._scores(model, histories, self.features.encode(histories), np.arange(len(histories.clients)))
        histories, splits = self.data
        return self._scores(model, histories, self.encoded, getattr(splits, clients))

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The probability of class 1 for each client of a file or folder, labelled or not."""
        histories = load_histories(path, self.options.columns, labelled=False)
        scored = zip(histories.clients, self.scores(model, histories), strict=True)
        lines = [[client, f"{score:.6g}"] for client, score in scored]
        return Predictions(["client", "score"], lines, histories.complaints)

    @torch.no_grad()
    def _scores(self, model: nn.Module, histories: Histories, encoded: ndarray, clients: ndarray) -> ndarray:
        model.eval()
        device = next(model.parameters()).device
        scores = np.zeros(len(clients))
        for rows in bounded(histories.lengths[clients], self.options.evaluation_tokens):
            batch = pad(encoded, histories.offsets, histories.labels, clients[rows])
            logits = model(batch.events.to(device), keep=batch.keep.to(device))
            scores[rows] = torch.sigmoid(logits.double()).cpu().numpy()
        return scores

    def _simulated_test(self) -> Histories:
        """The test clients with their whole histories, regardless of the option `latest`."""
        return self.options.simulator.draw().select(self.data.splits.test)
