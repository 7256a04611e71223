"""Tables of forecasts by sampling: the next events of each sequence, or the number of events in a window of time."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.times import as_text
from subquad.tasks.base import Outlook, Predictions
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.sampling import History, Paths, continuations, histories
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.scoring import LEVELS, encode
from subquad.tasks.events.sequences import EventSequences

MOST_EVENTS = 2000
"""Largest number of events of a continuation in a window of time."""


def look_ahead(model: EventModel, sequences: EventSequences, outlook: Outlook, tokens: int) -> Predictions:
    """Forecasts what follows each sequence that has events, in the order of the sequences."""
    scales, generator = model.scales, torch.Generator().manual_seed(outlook.seed)
    encoded, lines = encode(scales, sequences), {}
    complaints = list(sequences.complaints)
    until = float("inf") if outlook.window is None else outlook.window / scales.mean_gap
    events = outlook.events if outlook.window is None else MOST_EVENTS
    for chosen, history in histories(model, encoded, tokens, np.arange(len(sequences.names))):
        paths = continuations(model, history, outlook.samples, generator, events=events, until=until)
        if outlook.window is not None and (paths.times[:, :, -1] <= until).any():
            complaints.append(
                f"some continuations have more than {MOST_EVENTS:,} events in the window, which are not counted: "
                "choose a shorter --window"
            )
        for at, number in enumerate(chosen):
            last = float(sequences.times[sequences.offsets[number + 1] - 1])
            name, times, types = sequences.names[number], paths.times[at], paths.types[at]
            if outlook.window is None:
                lines[int(number)] = list(_event_lines(name, last, times, types, scales))
            else:
                rates = _intensities(model, history, at, outlook, until)
                lines[int(number)] = list(_window_lines(name, last, Paths(times, types), outlook, rates, scales))
    columns = event_columns(scales) if outlook.window is None else window_columns(scales)
    ordered = [line for number in sorted(lines) for line in lines[number]]
    return Predictions(columns, ordered, tuple(dict.fromkeys(complaints)))


def event_columns(scales: Scales) -> list[str]:
    """Names of the columns of a forecast of events: a 90% interval and the median of the time, and types."""
    return ["sequence", "event", "low", "median", "high", "type", *(f"p_{name}" for name in scales.type_names)]


def window_columns(scales: Scales) -> list[str]:
    """Names of the columns of counts in a window: mean, a 90% interval, and the mean of each type.

    `intensity` is the rate of events at the start of the part of the window, if nothing has come until then.
    """
    return [
        *("sequence", "from", "to", "expected_count", "low", "high", "intensity"),
        *(f"n_{name}" for name in scales.type_names),
    ]


def _event_lines(
    name: str, last: float, times: Float[ndarray, "n k"], types: Int[ndarray, "n k"], scales: Scales
) -> Iterator[list[str]]:
    for number in range(times.shape[1]):
        ends = last + np.quantile(times[:, number], LEVELS) * scales.mean_gap
        shares = np.bincount(types[:, number], minlength=len(scales.type_names)) / len(types)
        yield [
            *(name, str(number + 1), *(as_text(end, is_date=scales.dated) for end in ends)),
            scales.type_names[int(shares.argmax())],
            *(f"{share:.6g}" for share in shares),
        ]


def _window_lines(
    name: str, last: float, paths: Paths, outlook: Outlook, rates: Float[ndarray, "points"], scales: Scales
) -> Iterator[list[str]]:
    assert outlook.window is not None
    edges = np.linspace(0.0, outlook.window / scales.mean_gap, outlook.points + 1)
    for number, (low, high) in enumerate(pairwise(edges.tolist())):
        inside = (paths.times > low) & (paths.times <= high)
        if number == 0:
            inside |= paths.times == 0.0
        counts = inside.sum(1)
        by_type = np.bincount(paths.types[inside], minlength=len(scales.type_names)) / len(counts)
        ends = np.quantile(counts, (LEVELS[0], LEVELS[-1]), method="inverted_cdf")
        times = (as_text(last + edge * scales.mean_gap, is_date=scales.dated) for edge in (low, high))
        numbers = (counts.mean(), *ends, rates[number] / scales.mean_gap, *by_type)
        yield [name, *times, *(f"{value:.6g}" for value in numbers)]


@torch.no_grad()
def _intensities(model: EventModel, history: History, at: int, outlook: Outlook, until: float) -> Float[ndarray, "points"]:
    """Intensity of all types at the start of each part of the window, if nothing has come until then, per mean gap."""
    starts = torch.linspace(0.0, until, outlook.points + 1)[:-1].to(history.h)
    by_type = model.head.intensities(history.h[at].expand(len(starts), -1), starts)
    return by_type.sum(-1).double().cpu().numpy()
