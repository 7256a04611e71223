"""Windows of series to forecast: some steps that are known, and the steps after them. Splits are by series or by time."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.data.splits import SplitName
from subquad.tasks.series.sets import SeriesSet

DEVELOPED, TESTED = 0.7, 0.8
"""Where the development part and the test part of a series begin, if it is divided by time."""


class Windows(NamedTuple):
    """Places of windows: the series, and its step at which the forecast begins."""

    series: Int[ndarray, "windows"]
    begin: Int[ndarray, "windows"]

    def take(self, chosen: Int[ndarray, "some"]) -> "Windows":
        """Some of the windows."""
        return Windows(self.series[chosen], self.begin[chosen])

    def spread(self, most: int) -> "Windows":
        """At most so many windows, evenly spread over all of them."""
        count = len(self.series)
        return self if count <= most else self.take(np.linspace(0, count - 1, most).round().astype(np.int64))


class ForecastBatch(NamedTuple):
    """Steps before a forecast and the steps to forecast, in scaled values; missing values are 0."""

    values: Float[Tensor, "b n c"]
    mask: Bool[Tensor, "b n c"]
    """True where a value is known."""
    keep: Bool[Tensor, "b n"]
    """False before the beginning of a series."""
    gaps: Float[Tensor, "b m"]
    """Logarithm of the gap before each step in usual gaps; 0 for the steps to forecast, whose times are not known."""
    future: Float[Tensor, "b h c"]
    known: Bool[Tensor, "b h c"]
    """True where the value to forecast is known."""


def parts_of(length: int, split: SplitName) -> tuple[int, int]:
    """First step and end of the steps that are forecast in a part of a series that is divided by time."""
    first, second = int(length * DEVELOPED), int(length * TESTED)
    return {"train": (0, first), "development": (first, second), "test": (second, length)}[split]


def find_windows(
    series: SeriesSet, *, context: int, horizon: int, split: SplitName | None = None, every: int = 1
) -> Windows:
    """Windows at every so many steps, counted from the end, that forecast a part of each series, or with None all of it.

    A window has the whole context before it where the series is long enough, and at least one known value before and after
    the step at which the forecast begins.
    """
    is_known = ~np.isnan(series.values).all(1)
    counts = np.concatenate([[0], np.cumsum(is_known)])
    rows, begins = list[ndarray](), list[ndarray]()
    for place, (offset, length) in enumerate(zip(series.offsets[:-1], series.lengths, strict=True)):
        low, high = (0, int(length)) if split is None else parts_of(int(length), split)
        last = high - horizon
        first = max(low, min(context, max(1, last)), 1)
        begin = np.arange(last, first - 1, -every)[::-1]
        before = counts[offset + begin] - counts[offset + np.maximum(begin - context, 0)]
        after = counts[offset + begin + horizon] - counts[offset + begin]
        begin = begin[(before > 0) & (after > 0)]
        rows.append(np.full(len(begin), place))
        begins.append(begin)
    joined = (np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64) for parts in (rows, begins))
    return Windows(*joined)


def cut_windows(
    scaled: SeriesSet, gaps: Float[ndarray, "steps"], windows: Windows, *, context: int, horizon: int
) -> ForecastBatch:
    """Cuts windows out of scaled series. Times of the steps to forecast are not known, and neither are they told."""
    starts, lengths = scaled.offsets[windows.series], scaled.lengths[windows.series]
    before = windows.begin[:, None] + np.arange(-context, 0)
    after = windows.begin[:, None] + np.arange(horizon)
    in_series, is_there = before >= 0, after < lengths[:, None]
    known_at = starts[:, None] + np.where(in_series, before, 0)
    ahead_at = starts[:, None] + np.where(is_there, after, 0)
    past = np.where(in_series[..., None], scaled.values[known_at], np.nan)
    future = np.where(is_there[..., None], scaled.values[ahead_at], np.nan)
    passed = np.concatenate([np.where(in_series, gaps[known_at], 0), np.zeros(after.shape)], axis=1)
    return ForecastBatch(
        torch.from_numpy(np.nan_to_num(past)).float(),
        torch.from_numpy(~np.isnan(past)),
        torch.from_numpy(in_series),
        torch.from_numpy(passed).float(),
        torch.from_numpy(np.nan_to_num(future)).float(),
        torch.from_numpy(~np.isnan(future)),
    )
