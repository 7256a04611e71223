"""Learning from histories without labels as a task."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.tasks.base import Best, Counted, Predictions
from subquad.tasks.comparing import Judged, Rival, judged_means
from subquad.tasks.transactions.labelled import TransactionsTask
from subquad.tasks.transactions.pretraining import (
    PartsBatch,
    Pretrainer,
    contrastive_losses,
    draw_samples,
    draw_slices,
    next_losses,
    predicted_fields,
)
from subquad.types import AttentionOptions

MOST_CLIENTS, BATCH = 512, 64
"""Largest number of clients that a model is evaluated on, and how many of them at once."""


class PretrainingTask(TransactionsTask):
    """Learns vectors of clients from histories without labels, with which a model of labels can start."""

    units: ClassVar[Mapping[str, str]] = {"held_out_loss": "nats"}

    @property
    def chosen_by(self) -> Best | None:
        """The loss on the development clients."""
        return Best("held_out_loss", "low")

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> nn.Module:
        symbols = sum(size for _, _, size in predicted_fields(self.features))
        return Pretrainer(self._classifier(attention, model, generator), symbols, generator)

    def cut(self, length: int) -> None:
        """None: what is learned are parts of histories, which differ if histories are cut."""
        return None

    def batch(self, size: int, generator: torch.Generator) -> PartsBatch:
        """Two parts of the histories of training clients of similar length."""
        chosen = self.buckets.draw(size, generator)
        seed = int(torch.randint(2**31, (1,), generator=generator))
        return self._draw(chosen, seed)

    def _draw(self, clients: ndarray, seed: int) -> PartsBatch:
        draw = draw_samples if self.options.parts == "samples" else draw_slices
        return draw(self.data.histories, self.features, clients, seed)

    def count(self, batch: PartsBatch) -> int:
        return len(batch.events)

    def loss(self, model: nn.Module, batch: PartsBatch) -> Counted:
        """Losses of the objective: of telling parts of clients apart, of predicting what follows, or of both."""
        return Counted(self._losses(model, batch).sum(), self.count(batch))

    def _losses(self, model: nn.Module, batch: PartsBatch) -> Float[Tensor, "b"]:
        objective = self.options.objective
        assert isinstance(model, Pretrainer) or hasattr(model, "module")
        first = model(batch.events, keep=batch.keep).float()
        losses = torch.zeros(len(first), device=first.device)
        if objective in ("contrastive", "both"):
            losses = losses + contrastive_losses(first, model(batch.other, keep=batch.other_keep).float())
        if objective in ("next", "both"):
            plain: Any = getattr(model, "module", model)
            sizes = [size for _, _, size in predicted_fields(self.features)]
            losses = losses + next_losses(plain.next(first), batch.following, sizes)
        return losses

    @torch.no_grad()
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """The loss on the development clients, and how often the other part of a client is the nearest of a batch."""
        losses, nearest = [], []
        for batch in self._batches(model, self.data.splits.development[:MOST_CLIENTS]):
            losses.append(self._losses(model, batch).cpu())
            first, second = (
                nn.functional.normalize(model(events, keep=keep).float(), dim=1)
                for events, keep in ((batch.events, batch.keep), (batch.other, batch.other_keep))
            )
            nearest.append(((first @ second.T).argmax(1).cpu() == torch.arange(len(first))).float())
        return {"held_out_loss": float(torch.cat(losses).mean()), "nearest_is_same_client": float(torch.cat(nearest).mean())}

    def _batches(self, model: nn.Module, clients: ndarray) -> Iterator[PartsBatch]:
        """Parts of the histories of clients, the same at every call, where the model is."""
        device = next(model.parameters()).device
        for some in np.array_split(clients, max(1, len(clients) // BATCH)):
            yield PartsBatch(*(tensor.to(device) for tensor in self._draw(some, 0)))

    @property
    def needs_whole_batch(self) -> bool:
        """Whether clients of a batch are told apart from each other."""
        return self.options.objective in ("contrastive", "both")

    @property
    def ranked_by(self) -> Best:
        """The loss on the development clients."""
        return Best("held_out_loss", "low")

    @torch.no_grad()
    def judge(self, model: nn.Module) -> Judged:
        """The loss of each test client."""
        model.eval()
        test = self.data.splits.test[:MOST_CLIENTS]
        losses = torch.cat([self._losses(model, batch).cpu() for batch in self._batches(model, test)])
        return judged_means("held_out_loss", "low", self.units["held_out_loss"], losses.numpy(), np.ones(len(losses)))

    def rivals(self) -> dict[str, Rival]:
        return {}

    def final(self, model: nn.Module) -> list[Row]:
        """No rows: without labels nothing is tested."""
        return []

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        return []

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        raise SubquadError(
            "this run learned from histories without labels and predicts none: give its vectors by subquad embed, or train "
            "with --start"
        )
