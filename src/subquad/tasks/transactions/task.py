"""The task transactions: predict the class or another target of a client from the history of transactions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subquad.models import ModelOptions, Size, with_stack
from subquad.tasks.transactions.features import Features
from subquad.tasks.transactions.labelled import TransactionsTask, heads_of
from subquad.tasks.transactions.model import classifier_numbers
from subquad.tasks.transactions.options import ClientOptions
from subquad.tasks.transactions.unlabelled import PretrainingTask
from subquad.types import AttentionOptions

CLIENT_BYTES, EVENT_BYTES = 64, 60
"""Lower bounds on the bytes of a simulated client's name, and of an event with its features."""


@dataclass(frozen=True)
class Transactions(ClientOptions):
    """Predict the class or another target of a client from its transactions: on your own clients, or on simulated ones."""

    kind: str = field(default="transactions", init=False)

    def size(self, attention: AttentionOptions, model: ModelOptions, features: Features | None = None) -> Size:
        """Lower bound on the size of the model, a training step and simulated clients. The data determine the features."""
        shortest = 0 if self.data else self.shortest_history
        if features is None:
            numbers = classifier_numbers(0, model.model_dim, self.pooling)
        else:
            layout = features.layout
            numbers = classifier_numbers(sum(layout.sizes), model.model_dim, self.pooling, layout, heads_of(features))
        size = with_stack(numbers, attention, model)
        simulated = 0 if self.data else self.clients * (CLIENT_BYTES + shortest * EVENT_BYTES)
        return size._replace(positions=min(shortest, self.latest), data_bytes=simulated)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "TransactionsTask":
        """Returns the task. If `learned` is given, the data are read only on first use."""
        features = None if learned is None else Features.from_json(learned)
        return (TransactionsTask if self.objective == "label" else PretrainingTask)(self, features)
