"""How good forecasts are: scores of quantiles for each window, rows with intervals beside baselines, and examples."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.results import Row
from subquad.statistics import Interval, divide, summed_interval
from subquad.tasks.series.model import LEVELS, MIDDLE
from subquad.tasks.series.windows import ForecastBatch, Windows

if TYPE_CHECKING:
    from subquad.tasks.series.source import Source

CRPS = "crps"
"""Name of the deciding metric: the continuous ranked probability score, in standard deviations of the training part."""
UNITS = {CRPS: "deviations", "mean_absolute_error": "deviations", "coverage_80": "share", "coverage_90": "share"}
SHOWN, BEFORE = 3, 3
"""Number of examples, and number of horizons before the forecast that are shown."""
MOST_POINTS = 400
"""Largest number of steps of an example that are shown."""


class Judged(NamedTuple):
    """Scores of forecasts, summed over the known values of each group of windows, and by step."""

    sums: dict[str, Float[ndarray, "groups"]]
    counts: Float[ndarray, "groups"]
    by_step: Float[ndarray, "h"]
    """Mean CRPS of each step."""

    def mean(self, name: str) -> float:
        """A metric over all known values."""
        return float(self.sums[name].sum() / self.counts.sum())

    def interval(self, name: str) -> Interval:
        """A metric with its interval from drawing groups."""
        return _ratio(self.sums[name], self.counts)

    def gain(self, other: "Judged") -> Interval:
        """By how much the CRPS is below that of other forecasts of the same windows."""
        return _ratio(other.sums[CRPS] - self.sums[CRPS], self.counts)


def _ratio(sums: Float[ndarray, "groups"], counts: Float[ndarray, "groups"]) -> Interval:
    return summed_interval(np.stack([sums, counts], axis=1), lambda added: divide(added[:, 0], added[:, 1]))


def judge(quantiles: Float[ndarray, "w h c q"], batch: ForecastBatch, groups: Int[ndarray, "w"]) -> Judged:
    """Scores the forecasts of a batch."""
    truth, known = batch.future.double().numpy(), batch.known.numpy()
    levels, missed = np.array(LEVELS), truth[..., None] - quantiles
    scores = {
        CRPS: 2.0 * np.maximum(levels * missed, (levels - 1.0) * missed).mean(-1),
        "mean_absolute_error": np.abs(missed[..., MIDDLE]),
        "coverage_80": _inside(quantiles, truth, 0.1, 0.9),
        "coverage_90": _inside(quantiles, truth, 0.05, 0.95),
    }
    _, numbers = np.unique(groups, return_inverse=True)
    counts = np.bincount(numbers, known.sum((1, 2)))
    sums = {name: np.bincount(numbers, np.where(known, values, 0.0).sum((1, 2))) for name, values in scores.items()}
    by_step = divide(np.where(known, scores[CRPS], 0.0).sum((0, 2)), known.sum((0, 2)).astype(float))
    return Judged(sums, counts, by_step)


def _inside(quantiles: ndarray, truth: ndarray, low: float, high: float) -> ndarray:
    ends = (quantiles[..., LEVELS.index(level)] for level in (low, high))
    least, most = ends
    inside: ndarray = ((least <= truth) & (truth <= most)).astype(float)
    return inside


def compared_rows(ours: Judged, others: Mapping[str, Judged], usual: Judged) -> Iterator[Row]:
    """Yields metrics on the test part of the model and of baselines, and by how much the model is better than each."""
    for name, unit in UNITS.items():
        yield {"metric": name, "unit": unit, "split": "test", **ours.interval(name)._asdict()}
    for baseline, theirs in others.items():
        about = {"split": "baseline", "baseline": baseline}
        for name, unit in UNITS.items():
            yield {"metric": name, "unit": unit, **about, **theirs.interval(name)._asdict()}
        yield {"metric": f"{CRPS}_gained", "unit": "deviations", **about, **ours.gain(theirs)._asdict()}
    for name in (CRPS, "mean_absolute_error"):
        yield {"metric": name, "unit": UNITS[name], "split": "trivial", "value": usual.mean(name)}


def step_rows(ours: Judged, others: Mapping[str, Judged]) -> Iterator[Row]:
    """Yields the CRPS of each step ahead, of the model and of baselines."""
    for label, judged in {"model": ours, **others}.items():
        for step, value in enumerate(judged.by_step, start=1):
            if np.isfinite(value):
                yield {"metric": "crps_at", "unit": "deviations", "of": label, "ahead": step, "value": float(value)}


def example_rows(
    source: "Source", windows: Windows, batch: ForecastBatch, quantiles: Float[ndarray, "w h c q"]
) -> Iterator[Row]:
    """Yields the steps of some forecasts of the test part: those before them, what came, and the forecast."""
    scales, horizon = source.scales, source.horizon
    chosen = np.unique(np.linspace(0, len(windows.series) - 1, min(SHOWN, len(windows.series))).round().astype(int))
    for window in chosen:
        place, begin, channel = int(windows.series[window]), int(windows.begin[window]), 0
        name = f"{source.raw.names[place]}, {scales.channels[channel]}"
        about = {"metric": "forecast_example", "unit": "", "example": f"{name}, from step {begin}"}
        values = source.raw.of(place)[:, scales.places[channel]]
        first = max(0, begin - min(BEFORE * horizon, MOST_POINTS))
        for step in range(first, min(len(values), begin + min(horizon, MOST_POINTS))):
            if np.isfinite(values[step]):
                kind = "before" if step < begin else "came"
                yield {**about, "at": step, "kind": kind, "value": float(values[step])}
        restored = scales.restored(np.moveaxis(quantiles[window], -1, 0))[..., channel]
        for step in range(min(horizon, MOST_POINTS)):
            low, middle, high = (float(restored[LEVELS.index(level), step]) for level in (0.1, 0.5, 0.9))
            yield {**about, "at": begin + step, "kind": "forecast", "value": middle, "low": low, "high": high}
