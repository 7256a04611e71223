"""Costs, ratios and crossovers, computed from the rows of a comparison, by view.

A view is a set of rows that can be compared: one form (bidirectional or causal), one kind of work, one setting.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal, NamedTuple, get_args

import numpy as np

from subquad.checking import excerpt
from subquad.errors import SubquadError
from subquad.measure.fits import (
    Costs,
    Crossover,
    Growth,
    Scaling,
    Scatter,
    crossover,
    draw_costs,
    extrapolated_crossover,
    growth,
    middle,
    pooled_scatter,
    scaling,
)
from subquad.results import Row, place_of
from subquad.statistics import Interval, percentile_interval

BASELINE = "softmax"
MATERIALISED = "materialised"

Form = Literal["bidirectional", "causal"]
What = Literal["forward", "training", "layer", "step", "update"]
FORMS: tuple[Form, ...] = get_args(Form)
WHATS: tuple[What, ...] = get_args(What)
WORDS: dict[str, str] = {
    "forward": "attention, forward",
    "training": "attention, forward and backward",
    "layer": "a whole transformer layer, forward",
    "step": "one decoding step after so many tokens",
    "update": "one training step of an encoder-decoder on the copy task",
}
CAUSAL_WORK = ("step", "update")
"""Kinds of work that are always causal."""
AXES = ("batch", "heads", "head_dim", "threads", "dtype", "device", "kernels")
EARLIER = {"kernels": "torch"}
"""Values of axes that rows of earlier versions do not have."""


class View(NamedTuple):
    """A form, a kind of work and a setting. The setting holds the values of `AXES`."""

    form: str
    what: str
    setting: tuple[object, ...]


class Failure(NamedTuple):
    """The length at which a mechanism failed, and why."""

    length: int
    failure: str
    message: str


@dataclass(frozen=True)
class Comparison:
    """The rows of one run, with ratios, crossovers and intervals computed from them."""

    rows: Sequence[Row]
    seed: int = 0

    @cached_property
    def views(self) -> list[View]:
        """All views, in the order of forms and kinds of work."""
        views = {view_of(row) for row in self.rows if row["metric"] == "seconds"}
        return sorted(views, key=lambda view: (str(view.setting), FORMS.index(view.form), WHATS.index(view.what)))

    @cached_property
    def mechanisms(self) -> list[str]:
        """All mechanisms: the baseline first, then the others in the order of measurement, materialised softmax last."""
        names = dict.fromkeys(row["mechanism"] for row in self.rows if row["metric"] == "seconds")
        return sorted(names, key=lambda name: (name == MATERIALISED, name != BASELINE))

    def measured(self, view: View) -> list[str]:
        """The mechanisms that have a time in this view."""
        return [name for name in self.mechanisms if self._seconds.get((view, name))]

    @cached_property
    def _seconds(self) -> dict[tuple[View, str], dict[int, dict[int, float]]]:
        """Seconds by view and mechanism, then by length, then by visit."""
        seconds: dict[tuple[View, str], dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for row in self.rows:
            if row["metric"] == "seconds" and row["value"] is not None:
                if row["value"] <= 0:
                    raise SubquadError(f"{place_of(row)}: seconds must be more than 0: mend the row or take it out")
                seconds[view_of(row), row["mechanism"]][row["length"]][row["visit"]] = row["value"]
        return {key: dict(sorted(lengths.items())) for key, lengths in seconds.items()}

    @cached_property
    def _peaks(self) -> dict[tuple[View, str], dict[int, list[float]]]:
        peaks: dict[tuple[View, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            if row["metric"] == "peak_memory" and row["value"] is not None:
                peaks[view_of(row), row["mechanism"]][row["length"]].append(row["value"])
        return peaks

    @cached_property
    def failures(self) -> dict[tuple[View, str], Failure]:
        """The shortest length at which a mechanism ran out of memory or time, or raised."""
        failures: dict[tuple[View, str], Failure] = {}
        for row in self.rows:
            if row["metric"] == "seconds" and row["value"] is None:
                key, failure = (view_of(row), row["mechanism"]), Failure(row["length"], row["failure"], row["message"])
                failures[key] = min(failures.get(key, failure), failure)
        return failures

    def visits(self, view: View, mechanism: str, length: int) -> int:
        """Number of visits to a cell."""
        return len(self._seconds.get((view, mechanism), {}).get(length, {}))

    def lengths(self, view: View, mechanism: str) -> list[int]:
        """Lengths at which a mechanism has a time."""
        return list(self._seconds.get((view, mechanism), {}))

    def peak(self, view: View, mechanism: str, length: int) -> float | None:
        """Peak memory in bytes beside the inputs: the median over visits."""
        visits = self._peaks.get((view, mechanism), {}).get(length)
        return median(visits) if visits else None

    def seconds(self, view: View, mechanism: str) -> dict[int, list[float]]:
        """Seconds of each visit, by length in ascending order."""
        return {length: list(visits.values()) for length, visits in self._seconds.get((view, mechanism), {}).items()}

    def middle(self, view: View, mechanism: str, length: int) -> float:
        """Seconds of a cell: the median over its visits."""
        return middle(self.seconds(view, mechanism)[length])

    def costs(self, view: View, mechanism: str) -> Costs | None:
        """Seconds by length, with bootstrap draws."""
        cells = self.seconds(view, mechanism)
        return draw_costs(cells, self._scatter(view, None), self._rng(mechanism)) if cells else None

    def ratios(self, view: View, mechanism: str, baseline: str = BASELINE) -> Costs | None:
        """Speed-up over the baseline by length, from times of the same visit."""
        cells = self.paired(view, mechanism, baseline)
        return draw_costs(cells, self._scatter(view, baseline), self._rng()) if cells else None

    def speedup(self, view: View, mechanism: str, length: int, baseline: str = BASELINE) -> Interval | None:
        """Speed-up over the baseline at one length."""
        ratios = self.ratios(view, mechanism, baseline)
        if ratios is None or length not in ratios.lengths:
            return None
        at = int(np.searchsorted(ratios.lengths, length))
        return percentile_interval(float(ratios.middle[at]), ratios.draws[:, at])

    def crossover(self, view: View, mechanism: str, baseline: str = BASELINE) -> Crossover | None:
        """The length from which on a mechanism is faster than the baseline. None for fewer than two common lengths."""
        ratios = self.ratios(view, mechanism, baseline)
        return crossover(ratios) if ratios is not None and len(ratios.lengths) > 1 else None

    def extrapolated(self, view: View, mechanism: str, baseline: str = BASELINE) -> Interval | None:
        """The extrapolated length from which a mechanism is faster, where it is not within the measured lengths."""
        crossing, mine, theirs = (
            self.crossover(view, mechanism, baseline),
            self.costs(view, mechanism),
            self.costs(view, baseline),
        )
        if (
            crossing is None
            or crossing.within
            or mine is None
            or theirs is None
            or min(len(mine.lengths), len(theirs.lengths)) < 3
        ):
            return None
        return extrapolated_crossover(theirs, mine)

    def memory_crossover(self, view: View, mechanism: str, baseline: str = BASELINE) -> float | None:
        """The shortest measured length from which on a mechanism needs less memory than the baseline."""
        mine, theirs = (self._peaks.get((view, name), {}) for name in (mechanism, baseline))
        pays: float | None = None
        for length in sorted(set(mine) & set(theirs), reverse=True):
            if median(mine[length]) >= median(theirs[length]):
                break
            pays = length
        return pays

    def growth(self, view: View, mechanism: str) -> Growth | None:
        """How a mechanism's time grows with the length. None for fewer than three lengths."""
        costs = self.costs(view, mechanism)
        return None if costs is None else growth(costs)

    def scaling(self, view: View, mechanism: str) -> Scaling | None:
        """The power of the length that a mechanism's time grows with beyond its fixed costs. None if these rule it."""
        costs = self.costs(view, mechanism)
        return None if costs is None else scaling(costs)

    def paired(self, view: View, mechanism: str, baseline: str = BASELINE) -> dict[int, list[float]]:
        """The baseline's time divided by the mechanism's, by length, for visits that measured both."""
        mine, theirs = self._seconds.get((view, mechanism), {}), self._seconds.get((view, baseline), {})
        return {
            length: [theirs[length][visit] / seconds for visit, seconds in mine[length].items() if visit in theirs[length]]
            for length in mine
            if mine[length].keys() & theirs.get(length, {}).keys()
        }

    def _scatter(self, view: View, baseline: str | None) -> Scatter:
        """Scatter between visits of the seconds, or of the ratios to a baseline, pooled over all cells of a view."""
        cells: Iterable[Sequence[float]]
        if baseline is None:
            cells = [list(v.values()) for (at, _), lengths in self._seconds.items() if at == view for v in lengths.values()]
        else:
            mechanisms = [name for name in self.measured(view) if name != baseline]
            cells = [ratios for name in mechanisms for ratios in self.paired(view, name, baseline).values()]
        return pooled_scatter(list(cells))

    def _rng(self, name: str = "") -> np.random.Generator:
        """Random numbers that are others for each name, so that errors of two mechanisms have nothing in common."""
        return np.random.default_rng([self.seed, *name.encode()])


def view_of(row: Row) -> View:
    """The view that a row belongs to. Raises `SubquadError` for a kind of work that is not known here."""
    if row["what"] not in WHATS:
        raise SubquadError(f"{place_of(row)}: {excerpt(row['what'])} is no kind of work: mend the row or take it out")
    setting = tuple(EARLIER[axis] if axis in EARLIER and axis not in row else row[axis] for axis in AXES)
    return View(row["form"], row["what"], setting)


def name_setting(view: View, views: Iterable[View]) -> str:
    """The values by which a view's setting differs from the others', in words; empty if there is only one setting."""
    settings = {other.setting for other in views}
    differing = [at for at in range(len(AXES)) if len({setting[at] for setting in settings}) > 1]
    return ", ".join(f"{AXES[at]} {view.setting[at]}" for at in differing)


def name_view(view: View, views: Iterable[View] = ()) -> str:
    """Describes a view in words: the kind of work, the form, and the setting where the settings of `views` differ."""
    return ", ".join(
        filter(None, (WORDS[view.what], "" if view.what in CAUSAL_WORK else view.form, name_setting(view, views)))
    )
