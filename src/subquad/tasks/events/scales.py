"""Type names and time scales, learned from the training sequences and stored in the run as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import Checked, NonNegative, Positive, Whole, Words, excerpt, read
from subquad.data.tables import listed
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.columns.features import ColumnFeatures, read_features
from subquad.tasks.events.cells import LEAST, PRECISION, first_cell
from subquad.tasks.events.renewal import fit_renewal
from subquad.tasks.events.resolution import grid_of
from subquad.tasks.events.returns import Return, find_returns
from subquad.tasks.events.sequences import EventSequences

FARTHEST = 2.0
"""Ratio of the forecasts' horizon to the longest gap of the training sequences."""

FINEST = 1e-6
"""Smallest resolution, in mean gaps."""


@dataclass(frozen=True)
class Scales(Checked):
    """Scales of the training sequences. The model's unit of time is their mean gap; other values are in this unit."""

    type_names: tuple[str, ...]
    mean_gap: Positive  # in the data's unit of time
    log_gap_mean: float
    log_gap_deviation: Positive
    resolution: Positive  # shortest gap above 0 that is on the grid
    horizon: Positive  # largest gap of a forecast
    grid: NonNegative = 0.0  # width of the grid on which gaps are recorded; 0 for continuous times
    narrowest: NonNegative = 0.05  # least width of a mixture's component in deviations of log-gaps; .05 in runs without it
    renewal: tuple[tuple[float, float, float], ...] = ()  # weight, mean, width of components fitted to all log-gaps
    returns: tuple[tuple[int, float, float, float], ...] = ()  # type, share, lag and deviation of each return
    sequences: Whole = 0  # number of sequences in all data, to notice changes
    events: Whole = 0
    further: tuple[dict[str, Any], ...] = ()  # features of further columns
    carried: tuple[str, ...] = ()  # names of further columns that have one value in each sequence
    dated: bool = False  # whether times are dates, in seconds since 1970
    time_form: Words = "auto"  # how times are written, by a name in times.WRITTEN; "auto" to recognize it in each file
    unused: tuple[tuple[str, str], ...] = ()  # names of columns that are not used, with the reason
    summary: tuple[dict[str, Any], ...] = ()  # what the data and each column hold, for people; empty without further columns

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Scales":
        """Reads the values that `as_json` returned."""
        return read(cls, kept, f"{place_of(kept)}: learned")

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON types."""
        return {**asdict(self), "type_names": list(self.type_names)}

    @cached_property
    def further_columns(self) -> tuple[ColumnFeatures, ...]:
        """Features of further columns."""
        return tuple(read_features(values, f"learned: further: {at}") for at, values in enumerate(self.further))

    @property
    def return_parts(self) -> tuple[Return, ...]:
        """Types that come again after a fixed time."""
        return tuple(Return(*part) for part in self.returns)

    def times(self, sequences: EventSequences) -> Float[ndarray, "events"]:
        """Times since the start of each sequence in the model's unit, subtracted in float64 before scaling for precision."""
        return (sequences.times - np.repeat(sequences.starts, sequences.lengths)) / self.mean_gap

    def gaps(self, sequences: EventSequences) -> Float[ndarray, "events"]:
        """Times since the previous event in the model's unit; below 0 for a first event."""
        return np.where(sequences.first, -1.0, sequences.gaps / self.mean_gap)

    def types(self, sequences: EventSequences) -> Int[ndarray, "events"]:
        """Types as the model's numbers, independent of the order of names in the data."""
        known = {name: number for number, name in enumerate(self.type_names)}
        numbers = np.array([known.get(name, -1) for name in sequences.type_names], np.int64)
        types = numbers[sequences.types]
        if (types < 0).any():
            at = int(np.flatnonzero(types < 0)[0])
            where = int(np.searchsorted(sequences.offsets, at, side="right")) - 1
            raise SubquadError(
                f"sequence {excerpt(sequences.names[where])} has an event of type "
                f"{excerpt(sequences.type_names[sequences.types[at]])}, which the model does not know: it was trained on "
                f"{listed(self.type_names)}"
            )
        return types


def learn(
    training: EventSequences, everything: tuple[int, int] = (0, 0), components: int = 0, *, returns: bool = False
) -> Scales:
    """Learns scales from the training sequences, with a static mixture of `components` components if there are any.

    `everything` has the numbers of sequences and events of all data. `returns` says whether to look for types that come
    again after a fixed time.
    """
    gaps = training.gaps[~training.first]
    if not len(gaps):
        raise SubquadError("no training sequence has two events, so there is no gap to learn from: give longer ones")
    mean = float(gaps.mean())
    if not mean > 0:
        raise SubquadError("all training events are at one time: give data whose times differ")
    scaled = gaps / mean
    grid = grid_of(gaps, float(np.abs(training.times).max())) / mean
    resolution = max(float(scaled[scaled > 0].min()), grid, FINEST)
    logs = np.log(scaled.clip(resolution))
    return Scales(
        type_names=tuple(training.type_names),
        mean_gap=mean,
        log_gap_mean=float(logs.mean()),
        log_gap_deviation=max(float(logs.std()), 0.1),
        resolution=resolution,
        horizon=FARTHEST * float(scaled.max()),
        grid=grid,
        narrowest=0.0,
        renewal=_renewal(scaled, resolution, grid, components),
        returns=tuple(find_returns(training, mean, grid)) if returns else (),
        dated=training.dated,
        time_form=training.time_form,
        sequences=everything[0],
        events=everything[1],
    )


def _renewal(
    gaps: Float[ndarray, "gaps"], resolution: float, grid: float, components: int
) -> tuple[tuple[float, float, float], ...]:
    """A static mixture of log-gaps, where those below the shortest one stand in the middle of their common cell."""
    if not components:
        return ()
    first = first_cell(resolution, grid)
    log_gaps = np.log(np.where(gaps > first, gaps, first / 2.0))
    mixture = fit_renewal(log_gaps, components, LEAST * PRECISION)
    return tuple(zip(*(part.tolist() for part in mixture), strict=True))
