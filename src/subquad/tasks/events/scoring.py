"""A model's word on every event of some sequences, in the data's unit of time."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data.buckets import bounded
from subquad.tasks.events.batches import Encoded, EventBatch
from subquad.tasks.events.forecasts import Forecast
from subquad.tasks.events.heads import HawkesHead
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.sequences import EventSequences

SLICE = 2048
"""Events at a time that a head looks at: at many points of time each."""

LEVELS = (0.05, 0.5, 0.95)
"""Quantiles of the gap: an interval of 90%, and the median."""


class Scored(NamedTuple):
    """A model's word on the events that have one before them; `lengths` says how many of them each sequence has."""

    lengths: Int[ndarray, "sequences"]
    gaps: Float[ndarray, "events"]
    types: Int[ndarray, "events"]
    time: Float[ndarray, "events"]  # log-likelihood, in nats
    type: Float[ndarray, "events"]
    likeliest: Int[ndarray, "events"]  # type, given the time at which the event came
    expected: Float[ndarray, "events"]  # gap
    quantiles: Float[ndarray, "events levels"]  # of the gap
    foreseen: Int[ndarray, "events"]  # likeliest type before the time is known
    rescaled: Float[ndarray, "events"]  # the integral of the intensity over the gap, where asked for
    doubled: Float[ndarray, "events"]  # the same with twice the points, for an intensity
    headed: Int[ndarray, "events"]  # type, by the head that is trained to predict it; the likeliest where there is none
    headed_gaps: Float[ndarray, "events"]  # by the head that is trained to predict them; the expected where there is none
    ends: Float[ndarray, "sequences"]  # the integral from the last event to the end of the sequence


def encode(scales: Scales, sequences: EventSequences) -> Encoded:
    """Sequences as the model reads them."""
    return Encoded(sequences.offsets, scales.times(sequences), scales.gaps(sequences), scales.types(sequences))


@torch.no_grad()
def score(model: EventModel, sequences: EventSequences, *, tokens: int, residuals: bool = False) -> Scored:
    """All of it, so many positions at a time; integrals of the intensity, which take long, only where asked for."""
    encoded, scales = encode(model.scales, sequences), model.scales
    events, watched = len(sequences.times), np.zeros(len(sequences.names))
    some = sequences.lengths > 0
    watched[some] = (sequences.ends[some] - sequences.times[sequences.offsets[1:][some] - 1]) / scales.mean_gap
    found: dict[str, ndarray] = {}
    ends = np.zeros(len(sequences.names))
    for at, last, h in states(model, encoded, tokens):
        following = at[~last] + 1
        for name, values in _judge(model, h[~last], encoded, following, residuals).items():
            kept = found.setdefault(name, np.zeros((events, *values.shape[1:]), values.dtype))
            kept[following] = values
        if residuals:
            which = np.searchsorted(sequences.offsets, at[last], side="right") - 1
            gaps = torch.from_numpy(watched[which]).to(h)
            ends[which] = model.head.compensators(h[last], gaps).double().cpu().numpy()
    later = ~sequences.first
    unit = np.log(scales.mean_gap)  # a density in the data's unit is that in the model's over the size of the unit
    given = {name: values[later] for name, values in found.items()}
    given["time"] = given["time"] - unit
    for name in ("expected", "quantiles", "headed_gaps"):
        given[name] = given[name] * scales.mean_gap
    return Scored(
        lengths=(sequences.lengths - 1).clip(0), gaps=sequences.gaps[later], types=encoded.types[later], ends=ends, **given
    )


def states(
    model: EventModel, encoded: Encoded, tokens: int
) -> Iterator[tuple[Int[ndarray, "e"], Bool[ndarray, "e"], Float[Tensor, "e w"]]]:
    """What the model knows after each event: numbers of events, which of them are their sequence's last, and vectors.

    Sequences come in batches of so many positions; a longer one is read in parts, from the state that the last one left.
    """
    model.eval()
    device = next(model.parameters()).device
    lengths = np.diff(encoded.offsets)
    present = np.flatnonzero(lengths > 0)
    for some in bounded(lengths[present], tokens):
        which = present[some]
        batch, state = EventBatch(*(part.to(device) for part in encoded.pad(which))), None
        for start in range(0, batch.keep.shape[1], tokens):
            part = EventBatch(*(values[:, start : start + tokens] for values in batch))
            hidden, state = model.encode(part, state)
            keep = part.keep.cpu().numpy()
            places = start + np.arange(keep.shape[1])
            at = (encoded.offsets[:-1][which][:, None] + places)[keep]
            last = np.broadcast_to(places == lengths[which][:, None] - 1, keep.shape)[keep]
            yield at, last, hidden[part.keep].float()


def in_slices(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """A function of many events, some at a time; its results are named tuples of tensors, or tensors."""
    parts = [function(*some) for some in zip(*(tensor.split(SLICE) for tensor in tensors), strict=True)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return type(parts[0])(*(torch.cat(column) for column in zip(*parts, strict=True)))


def foresee(model: EventModel, h: Float[Tensor, "e w"]) -> Forecast:
    """What follows each event, in the model's unit: the expected gap, its quantiles at `LEVELS`, the types."""
    levels = torch.tensor(LEVELS, dtype=h.dtype, device=h.device)
    forecast: Forecast = in_slices(lambda some: model.head.forecast(some, levels), h)
    return forecast


def _judge(
    model: EventModel, h: Tensor, encoded: Encoded, following: Int[ndarray, "e"], residuals: bool
) -> dict[str, ndarray]:
    """The fields of `Scored` that are made of vectors and of the events that follow them."""
    gaps = torch.from_numpy(encoded.gaps[following]).to(h)
    types = torch.from_numpy(encoded.types[following]).to(h.device)
    head = model.head
    terms = in_slices(head.terms, h, gaps, types)
    found: dict[str, Tensor] = {
        "time": terms.time.double(),
        "type": terms.type.double(),
        "likeliest": in_slices(head.types_at, h, gaps).argmax(-1),
        "rescaled": (in_slices(head.compensators, h, gaps) if residuals else torch.zeros_like(gaps)).double(),
    }
    found["doubled"] = found["rescaled"]
    if residuals and isinstance(head, HawkesHead):
        found["doubled"] = in_slices(lambda x, g: head.compensators(x, g, factor=2), h, gaps).double()
    forecast = foresee(model, h)
    found["expected"], found["quantiles"] = forecast.gap.double(), forecast.quantiles.double()
    found["foreseen"] = forecast.types.argmax(-1)
    found["headed"] = found["likeliest"] if model.type_head is None else model.type_head(h).argmax(-1)
    found["headed_gaps"] = found["expected"] if model.time_head is None else model.time_head(h)[:, 0].double()
    return {name: values.cpu().numpy() for name, values in found.items()}
