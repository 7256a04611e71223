"""What is learned about series from the training part: scales of channels, the usual gap between steps, and the season."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.checking import Checked, Positive, Several, Whole, Words, read
from subquad.data.ragged import first_places
from subquad.errors import SubquadError
from subquad.tasks.series.sets import Reading, SeriesSet

STEADY = 0.15
"""Largest relative difference of gaps between steps that count as equal; months differ by a tenth."""
STRONG = 0.2
"""Smallest autocorrelation at a season."""
LONGEST_SEASON = 400
FARTHEST, OUT_OF_SIGHT = 20.0, 1e6
"""Values further from the mean than so many standard deviations are cut, to tell classes and to forecast."""


@dataclass(frozen=True)
class Scales(Checked):
    """Channels that are used, their means and standard deviations, and the gap and the season of steps."""

    channels: Several[Words]  # names of the channels that are used
    places: Several[Whole]  # their places among all channels of the data
    means: Several[float]
    deviations: Several[Positive]
    step: Positive = 1.0  # median gap between two steps
    regular: bool = True  # whether all gaps are about equal, so that the model is not told about times
    season: Whole = 0  # number of steps of a season; 0 if there is none

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Scales":
        """Reads what `as_json` returned."""
        scales = read(cls, values, where)
        sizes = {len(part) for part in (scales.channels, scales.places, scales.means, scales.deviations)}
        if len(sizes) > 1:
            raise SubquadError(f"{where} has lists of different lengths: the file is damaged")
        return scales

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def scaled(self, series: SeriesSet, farthest: float = FARTHEST) -> SeriesSet:
        """The used channels of a set with mean 0 and variance 1 in training; values beyond `farthest` are cut."""
        values = series.values[:, list(self.places)].astype(np.float64)
        scaled = np.clip((values - np.array(self.means)) / np.array(self.deviations), -farthest, farthest)
        return series._replace(values=scaled.astype(np.float32), channels=self.channels)

    def restored(self, scaled: Float[ndarray, "*n c"]) -> Float[ndarray, "*n c"]:
        """Scaled values in the units of the data."""
        return scaled * np.array(self.deviations) + np.array(self.means)

    def gaps(self, series: SeriesSet) -> Float[ndarray, "steps"]:
        """Logarithm of the gap before each step in usual gaps; 0 at usual gaps and for regular series."""
        if self.regular:
            return np.zeros(len(series.times), np.float32)
        gaps = np.diff(series.times, prepend=series.times[:1]) / self.step
        gaps[first_places(series.offsets)] = 1.0
        return np.log(np.clip(gaps, 1e-3, 1e3)).astype(np.float32)


def learn_scales(train: SeriesSet, source: str, season: int | None) -> tuple[Scales, list[str]]:
    """Learns scales from training series, and says which channels are left out: those without different values."""
    values = train.values.astype(np.float64)
    complaints, places, means, deviations = list[str](), list[int](), list[float](), list[float]()
    for at, name in enumerate(train.channels):
        known = values[~np.isnan(values[:, at]), at]
        spread = float(known.std()) if len(known) else 0.0
        if len(known) < 2 or spread <= 1e-9 * max(1e-30, float(np.abs(known).max())):
            why = "no values" if not len(known) else "a single value only"
            complaints.append(f"the channel {name!r:.60} is left out: it has {why} in the training part")
            continue
        places.append(at)
        means.append(float(known.mean()))
        deviations.append(spread)
    if not places:
        raise SubquadError(
            f"no channel of {source} has two different values in the training part: there is nothing to learn"
        )
    gaps = np.diff(train.times)[~first_places(train.offsets)[1:]]
    gaps = gaps[np.isfinite(gaps) & (gaps > 0)]
    step = float(np.median(gaps)) if len(gaps) else 1.0
    regular = not len(gaps) or float(np.quantile(gaps, 0.999) - np.quantile(gaps, 0.001)) <= STEADY * step
    names = tuple(train.channels[at] for at in places)
    scales = Scales(names, tuple(places), tuple(means), tuple(deviations), step, regular)
    found = find_season(scales.scaled(train)) if season is None else season
    return Scales(names, tuple(places), tuple(means), tuple(deviations), step, regular, found), complaints


def find_season(train: SeriesSet) -> int:
    """The lag of the first high peak of the autocorrelation of values without their trend; 0 if there is none."""
    longest = int(min(LONGEST_SEASON, train.lengths.max() // 3))
    if longest < 3:
        return 0
    sums, weights = np.zeros(longest + 1), np.zeros(longest + 1)
    for place in np.argsort(-train.lengths)[:50]:
        values = train.of(int(place))
        centred = np.nan_to_num(values - np.nanmean(np.where(np.isnan(values).all(0), 0.0, values), axis=0))
        trend = np.linspace(-1, 1, len(centred))[:, None]
        centred = centred - trend * (centred * trend).sum(0) / max(1e-12, float((trend**2).sum()))
        for lag in range(min(longest, len(centred) // 2) + 1):
            sums[lag] += (centred[lag:] * centred[: len(centred) - lag]).sum() / (len(centred) - lag)
            weights[lag] += 1
    correlation = sums / np.maximum(weights, 1) / max(1e-12, sums[0] / max(1, weights[0]))
    peaks = [
        lag
        for lag in range(2, longest)
        if correlation[lag] >= STRONG
        and correlation[lag] >= correlation[lag - 1]
        and correlation[lag] > correlation[lag + 1]
    ]
    if not peaks:
        return 0
    highest = max(correlation[lag] for lag in peaks)
    return next(lag for lag in peaks if correlation[lag] >= 0.9 * highest)


def reading_from(values: Mapping[str, Any], where: str) -> Reading:
    """How a table was read, from what a run stored."""
    return read(Reading, values, where)
