"""Learning from histories without labels: which parts belong to one client, and what comes next.

The contrastive part follows CoLES (Babaev et al. 2022): the vectors of two random parts of one client's history should be
closer to each other than to those of other clients in the batch. Parts are slices, which may overlap, or samples: each event
is in one of the two, so that both reach over the whole history and share nothing but the client's habits. The other part
predicts, from the vector of a slice, how often each symbol occurs among the events that follow it.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.data.ragged import offsets_of
from subquad.models.initialising import initialise
from subquad.tasks.transactions.batches import pad
from subquad.tasks.transactions.features import FIELDS, Features
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.model import Classifier

SHORTEST = 4
"""Smallest number of events of a part, if the client has as many."""
SMALLEST_SHARE, LARGEST_SHARE = 0.2, 0.7
"""Range of the share of a history that a part is."""
LONGEST = 250
"""Largest number of events of a part."""
FOLLOWING = 10
"""Number of events after a part whose symbols are predicted."""
TEMPERATURE = 0.1

Parts = Literal["slices", "samples"]


class PartsBatch(NamedTuple):
    """Two parts of each client's history, and the shares of symbols among the events that follow the first part."""

    events: Float[Tensor, "b n f"]
    keep: Bool[Tensor, "b n"]
    other: Float[Tensor, "b m f"]
    other_keep: Bool[Tensor, "b m"]
    following: Float[Tensor, "b s"]
    """Shares of the symbols of each predicted field, all fields after each other; all 0 if nothing follows."""


def predicted_fields(features: Features) -> list[tuple[int, int, int]]:
    """First field, number of fields and number of symbols of everything whose next symbols are predicted."""
    sizes = features.layout.sizes
    fields = [(at, 1, sizes[at]) for at, name in enumerate(("code", "type", "amount")) if sizes[at] > 1]
    first = len(FIELDS)
    for column, size in zip(features.further_columns, sizes[4:], strict=True):
        if size <= 1000:
            fields.append((first, column.width, size))
        first += column.width
    return fields


class Pretrainer(nn.Module):
    """A model of histories with a head that predicts the symbols of the events that follow."""

    def __init__(self, model: Classifier, symbols: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.model = model
        model_dim = model.head.in_features
        self.next = nn.Linear(model_dim, symbols)
        initialise(self.next, generator=generator)

    def forward(self, events: Float[Tensor, "b n f"], *, keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b w"]:
        """The vector of each part."""
        return self.model.vector(events, keep=keep)


def draw_samples(histories: Histories, features: Features, clients: Int[ndarray, "b"], seed: int) -> PartsBatch:
    """Draws for each event of each client which of two parts it is in. An only event is in both."""
    rng = np.random.default_rng(seed)
    chosen = histories.select(clients)
    encoded, starts = features.encode(chosen), chosen.offsets[:-1]
    is_first = rng.random(len(encoded)) < 0.5
    is_first[starts] = True  # no part is empty
    is_second = ~is_first
    is_second[chosen.offsets[1:] - 1] = True
    is_first[(chosen.offsets[1:] - 1)[chosen.lengths > 1]] = False
    cut = [pad(encoded[mask], offsets_of(np.add.reduceat(mask.astype(np.int64), starts))) for mask in (is_first, is_second)]
    following = np.zeros((len(clients), sum(size for _, _, size in predicted_fields(features))), np.float32)
    return PartsBatch(*cut[0], *cut[1], torch.from_numpy(following))


def draw_slices(histories: Histories, features: Features, clients: Int[ndarray, "b"], seed: int) -> PartsBatch:
    """Draws two slices of the history of each client, which may overlap."""
    rng = np.random.default_rng(seed)
    chosen = histories.select(clients)
    encoded = features.encode(chosen)
    parts = [_part(chosen.lengths, rng) for _ in range(2)]
    cut = []
    for starts, lengths in parts:
        edges = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.concatenate(
            [np.arange(begin, begin + length) for begin, length in zip(chosen.offsets[:-1] + starts, lengths, strict=True)]
        )
        cut.append(pad(encoded[rows], edges))
    after = parts[0][0] + parts[0][1]
    following = _following(encoded, features, chosen.offsets, after)
    return PartsBatch(*cut[0], *cut[1], torch.from_numpy(following))


def _part(lengths: Int[ndarray, "b"], rng: np.random.Generator) -> tuple[Int[ndarray, "b"], Int[ndarray, "b"]]:
    """First event and length of a random part of each history."""
    share = rng.uniform(SMALLEST_SHARE, LARGEST_SHARE, len(lengths))
    size = np.minimum(np.clip((share * lengths).astype(np.int64), np.minimum(SHORTEST, lengths), LONGEST), lengths)
    starts = (rng.random(len(lengths)) * (lengths - size + 1)).astype(np.int64)
    return starts, size


def _following(
    encoded: Float[ndarray, "events f"], features: Features, offsets: Int[ndarray, "edges"], after: Int[ndarray, "b"]
) -> Float[ndarray, "b s"]:
    fields = predicted_fields(features)
    shares = np.zeros((len(after), sum(size for _, _, size in fields)), np.float32)
    for client, begin in enumerate(offsets[:-1] + after):
        events = encoded[begin : min(begin + FOLLOWING, offsets[client + 1])]
        place = 0
        for first, width, size in fields:
            symbols = events[:, first : first + width].astype(np.int64).ravel()
            symbols = symbols[symbols > 0] if width > 1 else symbols
            if len(symbols):
                shares[client, place : place + size] = np.bincount(symbols, minlength=size) / len(symbols)
            place += size
    return shares


def contrastive_losses(first: Float[Tensor, "b w"], second: Float[Tensor, "b w"]) -> Float[Tensor, "b"]:
    """Cross-entropy of finding, for each part, the other part of the same client among those of the batch."""
    scores = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / TEMPERATURE
    right = torch.arange(len(scores), device=scores.device)
    return 0.5 * (F.cross_entropy(scores, right, reduction="none") + F.cross_entropy(scores.T, right, reduction="none"))


def next_losses(logits: Float[Tensor, "b s"], shares: Float[Tensor, "b s"], sizes: list[int]) -> Float[Tensor, "b"]:
    """Cross-entropy of the symbols of the events that follow, as a mean over fields."""
    losses = torch.zeros(len(logits), device=logits.device)
    for part, wanted in zip(logits.split(sizes, 1), shares.split(sizes, 1), strict=True):
        losses = losses - (wanted * part.log_softmax(1)).sum(1)
    return losses / len(sizes)
