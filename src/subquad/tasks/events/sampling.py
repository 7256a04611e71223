"""Random continuations of event sequences, drawn event by event from the state after the last one.

All continuations of a batch are drawn together, each from a copy of the state. With an attention whose state does not grow,
an event takes constant time and memory however long the history is.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.models import DecoderState, state_of, tensors_of
from subquad.tasks.events.batches import Encoded, EventBatch
from subquad.tasks.events.columns import carried_fields, hidden_after
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.returns import due_after

STATE_NUMBERS = 20_000_000
"""Largest number of entries in the states of all continuations that are drawn together."""

MOST_ROWS = 4096
"""Largest number of continuations that are drawn together."""


class History(NamedTuple):
    """What is known after the last event of s sequences."""

    h: Float[Tensor, "s w"]  # the model's vectors
    state: DecoderState
    times: Float[Tensor, "s"]  # time of the last event since the start of the sequence, float64
    lasts: Float[Tensor, "s c"]  # time of the last event of each type that can return
    columns: Float[Tensor, "s f"]  # fields of further columns of the events that follow, which are hidden


class Paths(NamedTuple):
    """Random continuations: n of each of s sequences, up to k events. Times are counted from the last event."""

    times: Float[ndarray, "s n k"]  # in the model's unit
    types: Int[ndarray, "s n k"]


def histories(
    model: EventModel, encoded: Encoded, tokens: int, sequences: Int[ndarray, "some"]
) -> Iterator[tuple[Int[ndarray, "s"], History]]:
    """Yields the numbers of sequences of equal length, and what is known after their last events.

    Padding would enter the states, so only sequences of equal length are read together.
    """
    model.eval()
    lengths = np.diff(encoded.offsets)[sequences]
    for length in np.unique(lengths[lengths > 0]):
        equal = sequences[lengths == length]
        together = max(1, tokens // int(length))
        for start in range(0, len(equal), together):
            chosen = equal[start : start + together]
            yield chosen, read_history(model, encoded.pad(chosen), tokens)


def read_history(model: EventModel, batch: EventBatch, tokens: int) -> History:
    """Reads sequences of equal length, long ones in parts of `tokens` events."""
    device = next(model.parameters()).device
    lasts = due_after(model.scales.return_parts, batch.times, batch.types).last
    state: DecoderState | None = None
    for start in range(0, batch.times.shape[1], tokens):
        part = EventBatch(*(values[:, start : start + tokens].to(device) for values in batch))
        hidden, state = model.encode(part, state)
    assert state is not None
    carried = carried_fields(model.scales.further_columns, model.scales.carried)
    return History(hidden[:, -1].float(), state, batch.times[:, -1], lasts, hidden_after(batch.columns[:, -1], carried))


@torch.no_grad()
def continuations(
    model: EventModel,
    history: History,
    samples: int,
    generator: torch.Generator,
    *,
    events: int,
    until: float = float("inf"),
) -> Paths:
    """Draws `events` events after each history, or fewer if all continuations have passed the time `until`."""
    count = len(history.h)
    one = sum(part.numel() for part in tensors_of(history.state)) // count
    most = int(min(MOST_ROWS, max(1, STATE_NUMBERS // max(1, one))))
    rows = torch.arange(count).repeat_interleave(samples)
    parts = [_draw(model, history, part, generator, events, until) for part in rows.split(most)]
    longest = max(times.shape[1] for times, _ in parts)
    times = np.concatenate([_lengthened(part.cpu().numpy(), longest, np.inf) for part, _ in parts])
    types = np.concatenate([_lengthened(part.cpu().numpy(), longest, -1) for _, part in parts])
    return Paths(times.reshape(count, samples, longest), types.reshape(count, samples, longest))


def _draw(
    model: EventModel, history: History, rows: Int[Tensor, "r"], generator: torch.Generator, events: int, until: float
) -> tuple[Float[Tensor, "r k"], Int[Tensor, "r k"]]:
    """Continuations of the chosen histories, one for each row."""
    device = history.h.device
    h, state = history.h[rows.to(device)], state_of(history.state, rows)
    start, lasts, columns = history.times[rows], history.lasts[rows], history.columns[rows][:, None]
    now, times, types = torch.zeros_like(start), [], []
    for number in range(events):
        drawn = model.head.draw(h, generator)
        gaps, kinds = drawn.gaps.double().cpu(), drawn.types.cpu()
        now = now + gaps
        times.append(now)
        types.append(kinds)
        if number == events - 1 or bool((now > until).all()):
            break
        at = (start + now)[:, None]
        due, lasts = due_after(model.scales.return_parts, at, kinds[:, None], lasts)
        keep = torch.ones(len(rows), 1, dtype=torch.bool)
        parts = (at, gaps[:, None].float(), kinds[:, None], keep, due, columns)
        event = EventBatch(*(part.to(device) for part in parts))
        hidden, state = model.step(event, state)
        h = hidden[:, -1].float()
    return torch.stack(times, 1), torch.stack(types, 1)


def _lengthened(values: ndarray, length: int, fill: float) -> ndarray:
    """Rows with `fill` after their last value."""
    return np.pad(values, ((0, 0), (0, length - values.shape[1])), constant_values=fill)
