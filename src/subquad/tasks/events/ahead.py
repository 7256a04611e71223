"""How good forecasts of several events are: test sequences are cut, continued by sampling, and compared with what came.

All sequences are cut after the same number of events, so that they are continued together.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.ragged import offsets_of, places_of
from subquad.results import Row
from subquad.statistics import Interval, grouped_mean
from subquad.tasks.events.baselines import Fitted
from subquad.tasks.events.metrics import crps
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.sampling import Paths, continuations, histories
from subquad.tasks.events.scoring import LEVELS, encode
from subquad.tasks.events.sequences import EventSequences

EVENTS = 10
"""Number of events that are forecast."""

SHARE = 0.5
"""Length of the window in which events are counted, in mean gaps for each event that is forecast."""

SEQUENCES, SAMPLES = 64, 64
"""Largest number of sequences that are continued, and number of continuations of each."""

LONGEST = 256
"""Largest number of events after which a sequence is cut."""

SHOWN, BEFORE = 3, 12
"""Number of sequences on the timeline, and number of events before the cut that are shown."""


class Cut(NamedTuple):
    """Test sequences that are cut after the same number of events."""

    whole: EventSequences
    length: int  # number of events before the cut
    events: int  # number of events after the cut that are forecast

    @property
    def before(self) -> EventSequences:
        """The events before the cut."""
        count = len(self.whole.names)
        at = places_of(self.whole.offsets[:-1], np.full(count, self.length))
        lasts = at.reshape(count, self.length)[:, -1]
        return self.whole._replace(
            offsets=offsets_of(np.full(count, self.length)),
            times=self.whole.times[at],
            types=self.whole.types[at],
            ends=self.whole.times[lasts],
            columns=tuple(column.take(at) for column in self.whole.columns),
        )

    @property
    def after(self) -> Int[ndarray, "s k"]:
        """Indices of the events after the cut that are forecast."""
        return (self.whole.offsets[:-1] + self.length)[:, None] + np.arange(self.events)

    @property
    def last(self) -> Float[ndarray, "s"]:
        """Time of the last event before the cut."""
        return self.whole.times[self.whole.offsets[:-1] + self.length - 1]


def cut_sequences(test: EventSequences) -> Cut | None:
    """Chooses random sequences that are long enough and where to cut them; None if no sequence has two events."""
    longest = int(test.lengths.max(initial=0))
    if longest < 2:
        return None
    events = min(EVENTS, longest // 2)
    usual = int(np.median(test.lengths[test.lengths > events]))
    length = max(1, min(LONGEST, usual - events))
    enough = np.flatnonzero(test.lengths >= length + events)
    chosen = np.random.default_rng(0).permutation(enough)[:SEQUENCES]
    return Cut(test.select(np.sort(chosen)), length, events)


def ahead_rows(model: EventModel, test: EventSequences, baselines: Fitted, tokens: int) -> list[Row]:
    """Rows of the coverage and the ranked probability score of later events and of counts, and of a timeline."""
    cut = cut_sequences(test)
    if cut is None:
        return []
    encoded, generator = encode(model.scales, cut.before), torch.Generator().manual_seed(0)
    everything = np.arange(len(cut.whole.names))
    ((_, history),) = histories(model, encoded, max(tokens, len(encoded.times)), everything)
    paths = continuations(model, history, SAMPLES, generator, events=cut.events)
    rows = _event_rows(cut, paths, baselines) + count_rows(cut, paths, model.scales.mean_gap)
    return rows + _timeline(cut, paths, model)


def _event_rows(cut: Cut, paths: Paths, baselines: Fitted) -> list[Row]:
    """Rows of the time of each forecast event: share within the 90% interval, and scores beside a renewal process."""
    unit = baselines.scales.mean_gap
    actual = (cut.whole.times[cut.after] - cut.last[:, None]) / unit
    rng = np.random.default_rng(0)
    static = np.cumsum(baselines.draw_gaps((len(actual), SAMPLES, cut.events), rng), axis=2)
    rows: list[Row] = []
    for number in range(cut.events):
        times, came = paths.times[:, :, number], actual[:, number]
        low, high = np.quantile(times, (LEVELS[0], LEVELS[-1]), axis=1)
        inside = _mean(((low <= came) & (came <= high)).astype(float))
        scores = {"": crps(times, came) * unit, "_of_renewal": crps(static[:, :, number], came) * unit}
        split = {"split": "test"} if number == cut.events - 1 else {}
        about = {"event": number + 1, **split}
        rows.append({"metric": "coverage_ahead", "unit": "share", **inside._asdict(), **about})
        for name, values in scores.items():
            rows.append({"metric": f"crps_ahead{name}", "unit": "time", **_mean(values)._asdict(), **about})
    return rows


def count_rows(cut: Cut, paths: Paths, unit: float) -> list[Row]:
    """Rows of the number of events in a window after the cut, where more than are forecast count as so many.

    Sequences may end with a certain number of events, or at a certain time. Those whose window is not over when they end
    have had all events that are forecast, so that no sequence is left out. Leaving out would choose slow ones.
    """
    window = SHARE * cut.events
    after = (cut.whole.times[cut.after] - cut.last[:, None]) / unit
    counts = (after <= window).sum(1)
    drawn = (paths.times <= window).sum(2).astype(float)
    low, high = np.quantile(drawn, (LEVELS[0], LEVELS[-1]), axis=1)
    intervals = {
        "count_coverage": _mean(((low <= counts) & (counts <= high)).astype(float)),
        "count_mae": _mean(np.abs(np.median(drawn, axis=1) - counts)),
        "count_mae_of_mean_rate": _mean(np.abs(window - counts)),
    }
    units, about = {"count_coverage": "share"}, {"split": "test", "window": window * unit, "most": cut.events}
    return [
        {"metric": name, "unit": units.get(name, "1"), **about, **interval._asdict()} for name, interval in intervals.items()
    ]


def _timeline(cut: Cut, paths: Paths, model: EventModel) -> list[Row]:
    """Rows of some sequences around their cut: events before it, those after it, and their forecasts."""
    rows: list[Row] = []
    names, unit = cut.whole.type_names, model.scales.mean_gap
    for at in range(min(SHOWN, len(cut.whole.names))):
        unit_name = "seconds since 1970" if cut.whole.dated else "time"
        about = {"metric": "timeline", "unit": unit_name, "sequence": cut.whole.names[at]}
        start = cut.whole.offsets[at]
        for event in range(start + max(0, cut.length - BEFORE), start + cut.length):
            rows.append(about | _event(cut, event, names) | {"kind": "before"})
        for number, event in enumerate(cut.after[at]):
            low, middle, high = (cut.last[at] + np.quantile(paths.times[at, :, number], LEVELS) * unit).tolist()
            shares = np.bincount(paths.types[at, :, number], minlength=len(model.scales.type_names)) / SAMPLES
            likeliest = model.scales.type_names[int(shares.argmax())]
            spread = {"low": low, "high": high, "type": likeliest, "chance": float(shares.max()), "kind": "forecast"}
            rows.append(about | {"value": middle, "event": number + 1, **spread})
            rows.append(about | _event(cut, int(event), names) | {"kind": "came", "event": number + 1})
    return rows


def _event(cut: Cut, event: int, names: list[str]) -> Row:
    return {"value": float(cut.whole.times[event]), "type": names[cut.whole.types[event]]}


def _mean(values: Float[ndarray, "s"]) -> Interval:
    """The mean over sequences with its interval."""
    return grouped_mean(values, np.ones(len(values), np.int64))
