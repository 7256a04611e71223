"""A model of event sequences: an embedding of events, a causal stack, and a head for the next event."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.checking import AtLeastTwo, Checked, Count, NonNegative
from subquad.models import CausalEncoder, DecoderState, ModelOptions, linear_numbers
from subquad.models.initialising import initialise
from subquad.ops.autocast import without_autocast
from subquad.tasks.columns.features import ColumnLayout
from subquad.tasks.events.batches import EventBatch, Piece
from subquad.tasks.events.columns import ColumnVectors, column_numbers
from subquad.tasks.events.heads import HawkesHead, Head, HeadName
from subquad.tasks.events.likelihood import Integral, Terms
from subquad.tasks.events.mixture import MixtureHead
from subquad.tasks.events.scales import Scales
from subquad.types import AttentionOptions

FASTER = 4.0
"""Factor of times, in mean gaps, in their encoding, so that its shortest wave is about as long as a mean gap."""


@dataclass(frozen=True)
class HeadOptions(Checked):
    """Options of the heads on top of the stack."""

    head: HeadName = "mixture"
    inner: Count = 64
    integral: Integral = "monte-carlo"
    points: AtLeastTwo = 16
    components: Count = 16
    types_see_gap: bool = True
    type_weight: NonNegative = 0.0
    time_weight: NonNegative = 0.0


class EventEmbedding(nn.Module):
    """The sum of a vector for the type, one for the logarithm of the time since the previous event, and of columns."""

    def __init__(self, scales: Scales, model_dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.scales = scales
        self.types = nn.Parameter(torch.randn(len(scales.type_names), model_dim, generator=generator))
        self.first = nn.Parameter(torch.randn(model_dim, generator=generator))
        self.bend, self.mix = nn.Linear(2, model_dim), nn.Linear(model_dim, model_dim)
        initialise(self.bend, self.mix, generator=generator)
        with torch.no_grad():
            self.bend.weight[:, 0] = 2.0 * torch.randn(model_dim, generator=generator)
            self.bend.bias.copy_(2.0 * torch.randn(model_dim, generator=generator))
        features = scales.further_columns
        self.columns = ColumnVectors(features, model_dim, generator) if features else None

    def forward(self, events: EventBatch) -> Float[Tensor, "b n w"]:
        scales, gaps = self.scales, events.gaps
        logs = (gaps.clamp(min=scales.resolution).log() - scales.log_gap_mean) / scales.log_gap_deviation
        numbers = torch.stack([logs, gaps.clamp(0.0, 10.0) / 10.0], dim=-1)
        since = self.mix(torch.tanh(self.bend(numbers)))
        since = torch.where((gaps < 0)[..., None], self.first, since)
        summed = F.embedding(events.types, self.types) + since
        return summed if self.columns is None else summed + self.columns(events.columns)


class Outcome(NamedTuple):
    """Log-likelihoods of events in the model's unit of time, weighted losses of other heads, and the final state."""

    terms: Terms
    extra: Float[Tensor, "e"]  # weighted losses of the heads that only predict
    state: DecoderState


def event_numbers(types: int, model_dim: int, heads: HeadOptions, columns: ColumnLayout | None = None) -> int:
    """Number of parameters and buffers of `EventModel` outside of its stack."""
    inner = heads.inner
    embedding = types * model_dim + model_dim + linear_numbers(2, model_dim) + linear_numbers(model_dim, model_dim)
    weigh = linear_numbers(inner, types)
    if heads.head == "mixture":
        start = 2 * heads.components  # means and widths at the start
        head = linear_numbers(model_dim, 3 * heads.components) + linear_numbers(model_dim, 2 * inner) + weigh + start
    else:
        head = linear_numbers(model_dim, 3 * inner) + weigh + 2 * types
    predicting = (types if heads.type_weight else 0) + (1 if heads.time_weight else 0)
    return embedding + head + linear_numbers(model_dim, predicting) + column_numbers(columns or ColumnLayout(), model_dim)


class EventModel(nn.Module):
    """A model of the log-likelihood of every event but the first, given those before it.

    Beside the head for the distribution, there can be two that only predict, as in Zuo et al. 2020, section 3.3: the next
    type, trained by cross-entropy, and the next gap, trained by squared error.
    """

    def __init__(
        self,
        scales: Scales,
        attention: AttentionOptions,
        options: ModelOptions,
        heads: HeadOptions,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        model_dim = options.model_dim
        self.scales, self.options, self.model_dim = scales, heads, model_dim
        self.stack = CausalEncoder(EventEmbedding(scales, model_dim, generator), attention, options, generator=generator)
        self.head: Head = _head(scales, model_dim, heads, generator)
        self.type_head = nn.Linear(model_dim, len(scales.type_names)) if heads.type_weight else None
        self.time_head = nn.Linear(model_dim, 1) if heads.time_weight else None
        for layer in (self.type_head, self.time_head):
            if layer is not None:
                initialise(layer, generator=generator)

    def forward(self, piece: Piece, state: DecoderState | None = None) -> Outcome:
        """Log-likelihoods of all counted events of a piece, given the state before the piece."""
        hidden, state = self.encode(piece.given, state)
        counted = piece.counted
        gaps, types = piece.following.gaps[counted], piece.following.types[counted]
        with without_autocast(hidden):  # likelihoods are small differences of large sums, which need float32
            h = hidden[counted].float()
            return Outcome(self.head.terms(h, gaps, types), self._extra(h, gaps, types), state)

    def encode(self, events: EventBatch, state: DecoderState | None = None) -> tuple[Float[Tensor, "b n w"], DecoderState]:
        """A vector for the heads right after each event, and the state after the last.

        It is the stack's output, followed by the time until each return is due.
        """
        hidden, state = self.stack.causal(events, FASTER * events.times, state)
        return _with_due(hidden, events), state

    def step(self, event: EventBatch, state: DecoderState | None = None) -> tuple[Float[Tensor, "b 1 w"], DecoderState]:
        """As `encode` for one event. The memory of the old state is reused unless gradients are recorded."""
        hidden, state = self.stack.step(event, FASTER * event.times, state, reuse=not torch.is_grad_enabled())
        return _with_due(hidden, event), state

    def hidden(self, h: Float[Tensor, "e w"]) -> Float[Tensor, "e v"]:
        """The stack's output, without the times until returns are due."""
        return h[:, : self.model_dim]

    def _extra(self, h: Tensor, gaps: Tensor, types: Tensor) -> Tensor:
        total, h = torch.zeros_like(gaps), self.hidden(h)
        if self.type_head is not None:
            total = total + self.options.type_weight * F.cross_entropy(self.type_head(h), types, reduction="none")
        if self.time_head is not None:
            total = total + self.options.time_weight * (self.time_head(h)[:, 0] - gaps).square()
        return total


def _with_due(hidden: Float[Tensor, "b n w"], events: EventBatch) -> Float[Tensor, "b n v"]:
    return torch.cat([hidden.float(), events.due], dim=-1) if events.due.shape[-1] else hidden


def _head(scales: Scales, model_dim: int, options: HeadOptions, generator: torch.Generator | None) -> Head:
    types = len(scales.type_names)
    if options.head == "mixture":
        return MixtureHead(
            model_dim,
            types,
            scales,
            components=options.components,
            inner=options.inner,
            types_see_gap=options.types_see_gap,
            generator=generator,
        )
    return HawkesHead(
        model_dim,
        types,
        inner=options.inner,
        horizon=scales.horizon,
        integral=options.integral,
        points=options.points,
        generator=generator,
    )
