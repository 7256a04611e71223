"""Returns: types that come again after a fixed time, such as a yearly award or a monthly payment, whatever comes between.

The lag of an event is the time since the last event of the same type. A return is a narrow range of lags that many events
of a type have. It is found in the training sequences and described by the share of events that come again after it, the lag,
and its standard deviation. A type has several returns if its lags have several peaks, such as 365 and 366 days.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.tasks.events.cells import LEAST, PRECISION
from subquad.tasks.events.renewal import fit_renewal
from subquad.tasks.events.sequences import EventSequences

SHORTEST = 2.0
"""Shortest lag of a return, in mean gaps. Shorter ones are seen in the gaps themselves."""

FINEST = 30.0
"""Shortest lag of a return in widths of the grid of times. On a coarser grid any lag would be a peak."""

NARROW, WIDE = 0.005, 0.1
"""Half of the range of log-lags that is counted as one peak, and of the range around it that it is compared with."""

SHARPEST = 0.5
"""Smallest share of the lags within `WIDE` of a peak that must be within `NARROW` of it. It is a twentieth for even lags."""

FEWEST, RAREST = 20, 0.05
"""Smallest number of lags in a peak, and smallest share of all lags of its type."""

PEAKS, PARTS = 3, 4
"""Largest number of peaks of a type, and number of normal distributions that describe a peak."""

LIGHTEST = 0.01
"""Smallest weight of one of these distributions within its peak."""

NEVER = -1e9
"""Time until a return that is not due because its type has not come yet."""


class Return(NamedTuple):
    """A lag after which events of a type come again, in mean gaps."""

    type: int
    share: float  # share of the events of the type that come again after this lag
    lag: float
    deviation: float


class Lags(NamedTuple):
    """Lags of one type, in mean gaps: those that ended with another event, and those that the end of a sequence cut off."""

    ended: Float[ndarray, "lags"]
    cut: Float[ndarray, "lasts"]


def find_returns(sequences: EventSequences, unit: float, grid: float) -> list[Return]:
    """Returns of all types, where `unit` is the mean gap and `grid` the width of the grid of times in mean gaps."""
    returns = []
    for kind in range(len(sequences.type_names)):
        lags = lags_of(sequences, kind, unit)
        if len(lags.ended) >= FEWEST:
            returns += _of_type(kind, lags, grid)
    return returns


def lags_of(sequences: EventSequences, kind: int, unit: float) -> Lags:
    """Lags of a type in units of `unit`."""
    at = np.flatnonzero(sequences.types == kind)
    where = np.searchsorted(sequences.offsets, at, side="right") - 1
    again = np.diff(where, append=-1) == 0
    ended = np.diff(sequences.times[at], append=0.0)[again]
    return Lags(ended / unit, (sequences.ends[where] - sequences.times[at])[~again] / unit)


def _of_type(kind: int, lags: Lags, grid: float) -> list[Return]:
    """The peaks of the lags of a type, the highest first, each as several normal distributions."""
    logs = np.sort(np.log(lags.ended[lags.ended > max(SHORTEST, FINEST * grid)]))
    returns: list[Return] = []
    for _ in range(PEAKS):
        counts = np.searchsorted(logs, logs + 2.0 * NARROW, side="right") - np.arange(len(logs))
        if not len(logs) or counts.max() < max(FEWEST, RAREST * len(lags.ended)):
            break
        start = int(counts.argmax())
        end = start + int(counts[start])
        middle = float(np.median(logs[start:end]))
        around = np.searchsorted(logs, [middle - WIDE, middle + WIDE])
        if end - start >= SHARPEST * (around[1] - around[0]):
            returns += _peak(kind, logs[start:end], lags, grid)
        logs = np.concatenate([logs[:start], logs[end:]])
    return returns


def _peak(kind: int, logs: Float[ndarray, "lags"], lags: Lags, grid: float) -> list[Return]:
    """The normal distributions of the lags of a peak, none narrower than a component of the mixture may be."""
    lag = float(np.exp(np.median(logs)))
    at_risk = len(lags.ended) + int((lags.cut >= lag).sum())
    least = LEAST * max(grid / lag, PRECISION)
    mixture = fit_renewal(logs, PARTS, least)
    share = len(logs) / at_risk
    parts = [
        Return(kind, float(share * w), float(np.exp(m)), float(s * np.exp(m))) for w, m, s in zip(*mixture, strict=True)
    ]
    return [part for part in parts if part.share >= LIGHTEST * share]


class Lasts(NamedTuple):
    """The time until each of c returns is due after every event, and the time of the last event of its type at the end."""

    due: Float[Tensor, "b n c"]  # float32; below 0 if overdue
    last: Float[Tensor, "b c"]  # float64; -inf if the type has not come


def due_after(
    returns: "tuple[Return, ...]",
    times: Float[Tensor, "b n"],
    types: Int[Tensor, "b n"],
    last: Float[Tensor, "b c"] | None = None,
) -> Lasts:
    """When each return is due after every event, where `last` has the times before the first of these events."""
    kinds = torch.tensor([each.type for each in returns], dtype=torch.long, device=times.device)
    lags = torch.tensor([each.lag for each in returns], dtype=times.dtype, device=times.device)
    never = times.new_full((), -torch.inf)
    at = torch.where(types[..., None] == kinds, times[..., None], never)
    if last is not None:
        at = torch.cat([last[:, None], at], dim=1)
    latest = at.cummax(1).values if at.shape[2] else at
    latest = latest if last is None else latest[:, 1:]
    due = lags - (times[..., None] - latest)
    return Lasts(torch.where(latest > never, due, NEVER).float(), latest[:, -1] if latest.shape[1] else latest.sum(1))
