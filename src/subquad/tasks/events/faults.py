"""Known faults of the public code of Zuo et al. 2020, put back in on request to see what they do to its figures.

Nothing here runs unless `Events.faults` names a fault. A fault changes the loss, or which weights count as best, and adds
metrics named ``reported_*``: what the public code would print. All other metrics stay what they are.
"""

from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.models import DecoderState, ModelOptions
from subquad.ops.autocast import without_autocast
from subquad.results import Row
from subquad.tasks.events.batches import EventBatch, Piece, pieces
from subquad.tasks.events.heads import HawkesHead
from subquad.tasks.events.likelihood import Intensity, Rule, Terms, log_intensities, log_likelihood
from subquad.tasks.events.model import EventModel, HeadOptions, Outcome
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.scoring import encode
from subquad.tasks.events.sequences import EventSequences
from subquad.types import AttentionOptions

Fault = Literal["sees-itself", "observed-type", "padding-loss", "padding-rmse", "test-picks"]
FAULTS: dict[Fault, str] = {
    "sees-itself": "the intensity at an event is computed from a state that already saw the event",
    "observed-type": "the integral counts only the intensity of the type that came",
    "padding-loss": "the loss of the predicted gap counts padding",
    "padding-rmse": "the squared error of the predicted gap counts padding of the batch",
    "test-picks": "the best weights are picked on the test sequences",
}
ON_PADDING: tuple[Fault, ...] = ("padding-loss", "padding-rmse")
"""Faults of the head that only predicts the gap."""
BATCHES = (1, 4, 16, 64)
"""Numbers of sequences in a batch for which the reported RMSE is computed."""
BATCH = 16
"""Number of sequences in a batch of all other reported metrics, as in the public code's scripts."""


class Errors(NamedTuple):
    """Sums over a batch as the public code forms them, in the model's unit of time."""

    log_likelihood: float
    squared: float  # squared errors of the head that only predicts the gap
    events: int


class FaultyEventModel(EventModel):
    """An event model whose loss has some faults. Its heads, and the metrics computed from them, have none."""

    def __init__(
        self,
        scales: Scales,
        attention: AttentionOptions,
        options: ModelOptions,
        heads: HeadOptions,
        faults: Collection[Fault],
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(scales, attention, options, heads, generator)
        self.faults = frozenset(faults)

    def forward(self, piece: Piece, state: DecoderState | None = None) -> Outcome:
        """The loss of whole sequences, with the faults."""
        assert state is None, "sequences with faults are not read in chunks"
        hidden, state = self.encode(_whole(piece))
        before, after = hidden[:, :-1], hidden[:, 1:]
        counted = piece.counted
        gaps, types = piece.following.gaps[counted], piece.following.types[counted]
        with without_autocast(hidden):
            seen = after if "sees-itself" in self.faults else before
            extra = self._extra(before[counted].float(), gaps, types)
            if "padding-loss" in self.faults:
                padding = self.squared_errors(before, piece)[~counted].sum()
                extra = extra + self.options.time_weight * padding / max(1, len(extra))
            return Outcome(self._terms(seen[counted].float(), gaps, types), extra, state)

    def errors(self, piece: Piece) -> Errors:
        """Sums of a batch as the public code forms them."""
        hidden, _ = self.encode(piece.given)
        squared, terms = self.squared_errors(hidden, piece), self(piece).terms
        summed = squared if "padding-rmse" in self.faults else squared[piece.counted]
        return Errors(float((terms.time + terms.type).double().sum()), float(summed.double().sum()), len(terms.time))

    def squared_errors(self, before: Float[Tensor, "b n w"], piece: Piece) -> Float[Tensor, "b n"]:
        """Squared errors of the predicted gaps, padding included, whose time is 0 as in the public code."""
        if self.time_head is None:
            return torch.zeros_like(piece.given.gaps)
        gaps = (piece.following.times - piece.given.times).float()
        return (self.time_head(before.float())[..., 0] - gaps).square()

    def _terms(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]) -> Terms:
        assert isinstance(self.head, HawkesHead)
        likelihood = of_observed_types if "observed-type" in self.faults else log_likelihood
        return likelihood(self.head.intensity(h), gaps, types, self.head.rule(gaps))


def of_observed_types(intensity: Intensity, gaps: Float[Tensor, "e"], types: Int[Tensor, "e"], rule: Rule) -> Terms:
    """Log-likelihood whose integral leaves out the types that did not come."""
    at_end, of_its_type = log_intensities(intensity, gaps, types)
    by_type = intensity(gaps[:, None] * rule.at)
    observed = by_type.gather(-1, types[:, None, None].expand(-1, by_type.shape[1], 1))[..., 0]
    return Terms(at_end - gaps * (rule.weights * observed).sum(-1), of_its_type - at_end)


class Reported(NamedTuple):
    """What the public code would print for some sequences, in nats per event and in the data's unit of time."""

    nll: float
    rmse: float


@torch.no_grad()
def reported(model: FaultyEventModel, sequences: EventSequences, batch: int = BATCH) -> Reported:
    """Metrics of sequences that are padded in batches of `batch`, in the order of the data."""
    model.eval()
    sums = np.sum([model.errors(piece) for piece in _batches(model, sequences, batch)], axis=0)
    log_likelihoods, squared, events = sums.tolist()
    unit = model.scales.mean_gap
    return Reported(float(np.log(unit)) - log_likelihoods / events, float(np.sqrt(squared / events)) * unit)


def reported_rows(model: FaultyEventModel, sequences: EventSequences) -> list[Row]:
    """Rows of the reported metrics on the test sequences; the RMSE for several batch sizes, that of `BATCH` last."""
    nll = reported(model, sequences).nll
    rows: list[Row] = [{"metric": "reported_nll", "value": nll, "unit": "nats", "split": "test"}]
    for batch in sorted(BATCHES, key=lambda size: (size == BATCH, size)):
        value = reported(model, sequences, batch).rmse
        rows.append({"metric": "reported_rmse", "value": value, "unit": "time", "split": "test", "batch": batch})
    return rows


def _batches(model: FaultyEventModel, sequences: EventSequences, size: int) -> Iterator[Piece]:
    encoded, device = encode(model.scales, sequences), next(model.parameters()).device
    predictable = np.flatnonzero(sequences.lengths > 1)
    for start in range(0, len(predictable), size):
        batch = encoded.pad(predictable[start : start + size])
        yield from pieces(EventBatch(*(part.to(device) for part in batch)), 0)


def _whole(piece: Piece) -> EventBatch:
    """The events of whole sequences: the first of those given, and all that follow."""
    return EventBatch(*(torch.cat([given[:, :1], after], 1) for given, after in zip(*piece, strict=True)))
