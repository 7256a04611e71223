"""A model's likelihoods and predictions for every event of some sequences, in the data's unit of time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data.buckets import bounded
from subquad.tasks.events.batches import Encoded, EventBatch
from subquad.tasks.events.columns import EventColumns
from subquad.tasks.events.forecasts import Forecast
from subquad.tasks.events.heads import HawkesHead
from subquad.tasks.events.metrics import crps
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.sequences import EventSequences

SLICE = 2048
"""Number of events that a head evaluates at a time, each at many points of time."""

DRAWS, FEWEST_DRAWS, MOST_DRAWN = 64, 4, 3_200_000
"""Number of random gaps from which the ranked probability score of an event is computed, which any number estimates without
bias; the number with many events; and the number for all events together above which there are fewer for each."""

LEVELS = (0.05, 0.5, 0.95)
"""Levels of the gap's quantiles: a 90% interval and the median."""


class Scored(NamedTuple):
    """Likelihoods and predictions for all events but first ones; `lengths` has the number of them in each sequence."""

    lengths: Int[ndarray, "sequences"]
    gaps: Float[ndarray, "events"]
    types: Int[ndarray, "events"]
    time: Float[ndarray, "events"]  # log-likelihood of the time, in nats
    type: Float[ndarray, "events"]  # log-likelihood of the type, in nats
    likeliest: Int[ndarray, "events"]  # most probable type, given the time of the event
    confidence: Float[ndarray, "events"]  # probability of the most probable type, given the time of the event
    expected: Float[ndarray, "events"]  # expected gap
    quantiles: Float[ndarray, "events levels"]  # quantiles of the gap
    foreseen: Int[ndarray, "events"]  # most probable type before the time is known
    rescaled: Float[ndarray, "events"]  # integral of the intensity over the gap; zeros unless asked for
    doubled: Float[ndarray, "events"]  # the same integral with twice as many points, for heads with an intensity
    headed: Int[ndarray, "events"]  # type predicted by its own head, or the most probable type without such a head
    headed_gaps: Float[ndarray, "events"]  # gap predicted by its own head, or the expected gap without such a head
    crps: Float[ndarray, "events"]  # continuous ranked probability score of the gap; zeros unless asked for
    ends: Float[ndarray, "sequences"]  # integral of the intensity from the last event to the end of the sequence


def encode(scales: Scales, sequences: EventSequences) -> Encoded:
    """Converts sequences to the model's numbers and units."""
    numbers = scales.times(sequences), scales.gaps(sequences), scales.types(sequences)
    columns = EventColumns.of(scales.further_columns, sequences, dated=scales.dated)
    return Encoded(sequences.offsets, *numbers, scales.return_parts, columns)


@torch.no_grad()
def score(
    model: EventModel,
    sequences: EventSequences,
    *,
    tokens: int,
    residuals: bool = False,
    levels: Sequence[float] | None = LEVELS,
) -> Scored:
    """Scores all events in batches of `tokens` positions.

    Args:
        model: the model.
        sequences: sequences of events.
        tokens: number of positions in a batch.
        residuals: asks for what is slow: integrals of the intensity, and the ranked probability score, which needs draws.
        levels: levels of the gap's quantiles, each of which takes longer than the likelihood. None leaves all forecasts out:
            expected gaps and foreseen types are zeros then.
    """
    encoded, scales = encode(model.scales, sequences), model.scales
    by_event: dict[str, ndarray] = {}
    after_last, ends = _after_last(sequences) / scales.mean_gap, np.zeros(len(sequences.names))
    for at, last, h in states(model, encoded, tokens):
        following = at[~last] + 1
        for name, values in _judge(model, h[~last], encoded, following, residuals, levels).items():
            column = by_event.setdefault(name, np.zeros((len(sequences.times), *values.shape[1:]), values.dtype))
            column[following] = values
        if residuals:
            ended = np.searchsorted(sequences.offsets, at[last], side="right") - 1
            gaps = torch.from_numpy(after_last[ended]).to(h)
            ends[ended] = model.head.compensators(h[last], gaps).double().cpu().numpy()
    later = ~sequences.first
    fields = {name: values[later] for name, values in by_event.items()}
    fields["time"] = fields["time"] - np.log(scales.mean_gap)  # density per unit of time of the data
    for name in ("expected", "quantiles", "headed_gaps", "crps"):
        fields[name] = fields[name] * scales.mean_gap
    return Scored(
        lengths=(sequences.lengths - 1).clip(0), gaps=sequences.gaps[later], types=encoded.types[later], ends=ends, **fields
    )


def _after_last(sequences: EventSequences) -> Float[ndarray, "sequences"]:
    """Time from the last event of each sequence to its end; 0 for a sequence without events."""
    after = np.zeros(len(sequences.names))
    present = sequences.lengths > 0
    after[present] = sequences.ends[present] - sequences.times[sequences.offsets[1:][present] - 1]
    return after


def states(
    model: EventModel, encoded: Encoded, tokens: int
) -> Iterator[tuple[Int[ndarray, "e"], Bool[ndarray, "e"], Float[Tensor, "e w"]]]:
    """Yields indices of events, a mask of those that are their sequence's last, and the model's output after each.

    Sequences come in batches of `tokens` positions. A longer sequence is read in parts, each from the state after the last.
    """
    model.eval()
    device = next(model.parameters()).device
    lengths = np.diff(encoded.offsets)
    present = np.flatnonzero(lengths > 0)
    for rows in bounded(lengths[present], tokens):
        chosen = present[rows]
        batch, state = EventBatch(*(part.to(device) for part in encoded.pad(chosen))), None
        for start in range(0, batch.keep.shape[1], tokens):
            part = EventBatch(*(values[:, start : start + tokens] for values in batch))
            hidden, state = model.encode(part, state)
            keep = part.keep.cpu().numpy()
            places = start + np.arange(keep.shape[1])
            at = (encoded.offsets[:-1][chosen][:, None] + places)[keep]
            last = np.broadcast_to(places == lengths[chosen][:, None] - 1, keep.shape)[keep]
            yield at, last, hidden[part.keep].float()


@torch.no_grad()
def event_vectors(model: EventModel, sequences: EventSequences, tokens: int) -> Float[ndarray, "events w"]:
    """The model's vector after each event, without the times until returns are due."""
    vectors = np.zeros((len(sequences.times), model.model_dim), np.float32)
    for at, _, h in states(model, encode(model.scales, sequences), tokens):
        vectors[at] = model.hidden(h).cpu().numpy()
    return vectors


def in_slices(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Applies a function of many events slice by slice. It returns a tensor or a named tuple of tensors."""
    parts = [function(*slices) for slices in zip(*(tensor.split(SLICE) for tensor in tensors), strict=True)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return type(parts[0])(*(torch.cat(column) for column in zip(*parts, strict=True)))


def foresee(model: EventModel, h: Float[Tensor, "e w"], levels: Sequence[float] = LEVELS) -> Forecast:
    """Forecast of the event after each vector in the model's unit: expected gap, quantiles at `levels`, and types."""
    wanted = torch.tensor(levels, dtype=h.dtype, device=h.device)
    forecast: Forecast = in_slices(lambda part: model.head.forecast(part, wanted), h)
    return forecast


def _judge(
    model: EventModel,
    h: Tensor,
    encoded: Encoded,
    following: Int[ndarray, "e"],
    residuals: bool,
    levels: Sequence[float] | None,
) -> dict[str, ndarray]:
    """The fields of `Scored` that are computed from vectors and the events that follow them."""
    gaps = torch.from_numpy(encoded.gaps[following]).to(h)
    types = torch.from_numpy(encoded.types[following]).to(h.device)
    head = model.head
    terms = in_slices(head.terms, h, gaps, types)
    by_type = in_slices(head.types_at, h, gaps).max(-1)
    fields: dict[str, Tensor] = {
        "time": terms.time.double(),
        "type": terms.type.double(),
        "likeliest": by_type.indices,
        "confidence": by_type.values.double(),
        "rescaled": (in_slices(head.compensators, h, gaps) if residuals else torch.zeros_like(gaps)).double(),
    }
    fields["doubled"] = fields["rescaled"]
    if residuals and isinstance(head, HawkesHead):
        fields["doubled"] = in_slices(lambda x, g: head.compensators(x, g, factor=2), h, gaps).double()
    nothing = Forecast(torch.zeros_like(gaps), h.new_zeros(len(h), 0), h.new_zeros(len(h), 1))
    forecast = nothing if levels is None else foresee(model, h, levels)
    fields["expected"], fields["quantiles"] = forecast.gap.double(), forecast.quantiles.double()
    fields["foreseen"] = forecast.types.argmax(-1)
    fields["headed"] = fields["likeliest"] if model.type_head is None else model.type_head(model.hidden(h)).argmax(-1)
    fields["headed_gaps"] = (
        fields["expected"] if model.time_head is None else model.time_head(model.hidden(h))[:, 0].double()
    )
    scored = {name: values.cpu().numpy() for name, values in fields.items()}
    draws = int(np.clip(MOST_DRAWN // max(1, len(encoded.times)), FEWEST_DRAWS, DRAWS))
    ranked = _crps(model, h, encoded.gaps[following], draws) if residuals else np.zeros(len(following))
    return scored | {"crps": ranked}


def _crps(model: EventModel, h: Float[Tensor, "e w"], gaps: Float[ndarray, "e"], draws: int) -> Float[ndarray, "e"]:
    """Continuous ranked probability score of each gap, from random gaps with a fixed seed."""
    generator, scores = torch.Generator().manual_seed(0), []
    for part in h.split(4 * SLICE // draws):
        drawn = model.head.draw(part.repeat_interleave(draws, dim=0), generator).gaps
        scores.append(drawn.view(len(part), draws).double().cpu().numpy())
    return crps(np.concatenate(scores), gaps) if len(gaps) else np.zeros(0)
