"""The series of a run by split, their scales and targets, and what a run stores of them."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from typing_extensions import TypedDict

from subquad.checking import STRICT, Whole, read_as
from subquad.data.splits import SplitName
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.base import DataSize
from subquad.tasks.series.loading import load_series
from subquad.tasks.series.options import SeriesOptions
from subquad.tasks.series.scales import OUT_OF_SIGHT, Scales, learn_scales, reading_from
from subquad.tasks.series.sets import Reading, SeriesSet
from subquad.tasks.series.windows import Windows, find_windows, parts_of
from subquad.tasks.targets.kinds import learn_target, target_from
from subquad.tasks.targets.labels import Labelled, label_column
from subquad.tasks.targets.sourced import (
    FEW,
    SPLITS,
    USES,
    check_same,
    divide_told,
    goal_line,
    label_groups,
    resolve_goal,
    target_json,
)
from subquad.tasks.targets.target import Target

HORIZON, CONTEXTS = 24, 4
"""Default number of steps to forecast, and of steps before them for each."""


class LearnedFields(TypedDict):
    """Types of the fields that a run stores about its series."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    goal: Literal["forecast", "label"]
    scales: dict[str, Any]
    reading: dict[str, Any]
    target: dict[str, Any] | None
    horizon: Whole
    context: Whole
    channels: Whole
    series: Whole
    steps: Whole


class Source:
    """Reads the series of a run on first use. Without stored fields, learns scales and targets from them."""

    def __init__(self, options: SeriesOptions, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.place = f"{place_of(learned or {})}: learned"
        self.kept = None if learned is None else read_as(LearnedFields, learned, self.place)

    @cached_property
    def raw(self) -> SeriesSet:
        """All series. Raises `SubquadError` if they are not those that the run was made with."""
        raw = self.options.load()
        if self.kept is not None:
            had, has = (self.kept["series"], self.kept["steps"]), (len(raw.names), len(raw.times))
            check_same(self.options.source, ("series", "steps"), had, has)
        return raw

    @cached_property
    def goal(self) -> Literal["forecast", "label"]:
        """What is predicted."""
        if self.kept is not None:
            return self.kept["goal"]
        return resolve_goal(self.options.goal, "forecast", self.options.source, has_labels=self.raw.labels is not None)

    @cached_property
    def by_time(self) -> bool:
        """Whether each series is divided by time, its last part being the test."""
        if self.goal == "label" or self.raw.told:
            return False
        return len(self.raw.names) < FEW if self.options.split == "auto" else self.options.split == "time"

    @cached_property
    def places(self) -> dict[SplitName, list[int]]:
        """Indices of the series of each split; all series are in each split if they are divided by time."""
        raw = self.raw
        if self.by_time:
            return {split: list(range(len(raw.names))) for split in SPLITS}
        is_labelled, options = self.goal == "label", self.options
        groups = label_groups(self.labelled) if is_labelled else np.zeros(len(raw.names), np.int64)
        advice = "" if is_labelled else ", or --split time"
        return divide_told(raw.names, groups, raw.told, seed=options.split_seed, source=options.source, advice=advice)

    @cached_property
    def labelled(self) -> Labelled:
        """The labels of all series as classes, several labels or numbers."""
        assert self.raw.labels is not None
        return label_column(self.options.source, self.raw.labels, self.options.target)

    def truth(self, split: SplitName) -> Float[ndarray, "series k"]:
        """The targets of the series of a split."""
        return self.labelled.targets[self.places[split]]

    @cached_property
    def training(self) -> SeriesSet:
        """The training series or, if series are divided by time, the training part of each."""
        raw = self.raw.take(self.places["train"])
        if not self.by_time:
            return raw
        ends = [parts_of(int(length), "train")[1] for length in raw.lengths]
        keep = np.concatenate([np.arange(length) < end for length, end in zip(raw.lengths, ends, strict=True)])
        offsets = np.concatenate([[0], np.cumsum(ends)])
        return raw._replace(offsets=offsets, values=raw.values[keep], times=raw.times[keep])

    @cached_property
    def _learned_scales(self) -> tuple[Scales, list[str]]:
        if self.kept is not None:
            return Scales.from_json(self.kept["scales"], f"{self.place}: scales"), []
        return learn_scales(self.training, self.options.source, self.options.season)

    @property
    def scales(self) -> Scales:
        """Scales of the channels that are used, and the gap and the season of steps."""
        return self._learned_scales[0]

    @cached_property
    def target(self) -> Target:
        """What is predicted of a series, where labels are predicted."""
        if self.kept is not None:
            return target_from(self.kept["target"], f"{self.place}: target")
        return learn_target(self.labelled.kind, self.labelled.names, self.truth("train"))

    @cached_property
    def horizon(self) -> int:
        """Number of steps to forecast."""
        if self.kept is not None:
            return self.kept["horizon"]
        if self.options.horizon is not None:
            return self.options.horizon
        lengths = self.raw.lengths
        if self.by_time:
            low, high = parts_of(int(lengths.max()), "development")
            return max(1, min(HORIZON, (high - low) // 2))
        return max(1, min(HORIZON, int(np.median(lengths)) // 4))

    @cached_property
    def context(self) -> int:
        """Number of steps that forecasts are made from."""
        if self.kept is not None:
            return self.kept["context"]
        if self.options.context is not None:
            return self.options.context
        longest = int(self.training.lengths.max())
        usual = max(CONTEXTS * self.horizon, 2 * self.scales.season)
        return max(1, min(usual, max(self.horizon, (longest - self.horizon) // 2)))

    @cached_property
    def scaled(self) -> SeriesSet:
        """All series in scaled values, for forecasts."""
        return self.scales.scaled(self.raw, OUT_OF_SIGHT)

    def windows(self, split: SplitName, every: int = 1) -> Windows:
        """Windows to forecast in a split."""
        part = split if self.by_time else None
        chosen = np.array(self.places[split])
        found = find_windows(self.scaled.take(chosen), context=self.context, horizon=self.horizon, split=part, every=every)
        if not len(found.series):
            raise SubquadError(
                f"no series in the {split} part of {self.options.source} is long enough for a forecast of {self.horizon} "
                "steps: give longer series, or a smaller --horizon"
            )
        return Windows(chosen[found.series], found.begin)

    def load(self, path: Path) -> SeriesSet:
        """Reads new series in the way in which those of the run were read."""
        assert self.kept is not None or self.raw
        reading = self.reading
        if reading.layout == "wide" and not self.options.value_columns:
            reading = replace(reading, values=())  # new tables may have more steps
        series = load_series(path, reading, labels=False)
        needed = self.kept["channels"] if self.kept is not None else len(self.raw.channels)
        if len(series.channels) != needed:
            raise SubquadError(
                f"{path} has {len(series.channels)} channels, but the model was trained on {needed}: give the same"
            )
        return series

    @cached_property
    def reading(self) -> Reading:
        """How the table of the run was read, with what its options name."""
        if self.kept is not None:
            return reading_from(self.kept["reading"], f"{self.place}: reading")
        reading = self.raw.reading
        return reading if reading.layout != "auto" else replace(reading, layout=self.options.layout)

    @property
    def learned(self) -> dict[str, Any]:
        """The fields that a run stores."""
        is_forecast = self.goal == "forecast"
        return {
            "goal": self.goal,
            "scales": self.scales.as_json(),
            "reading": {**asdict(self.reading), "values": list(self.reading.values)},
            "target": None if is_forecast else target_json(self.target),
            "horizon": self.horizon if is_forecast else 0,
            "context": self.context if is_forecast else 0,
            "channels": len(self.raw.channels),
            "series": len(self.raw.names),
            "steps": len(self.raw.times),
        }

    @property
    def data_size(self) -> DataSize:
        """Numbers of training series or windows, and of their steps."""
        if self.goal == "label":
            lengths = np.minimum(self.training.lengths, self.options.latest)
            return DataSize(len(lengths), int(lengths.sum()))
        count = len(self.windows("train").series)
        return DataSize(max(1, count // self.horizon), max(1, count // self.horizon) * (self.context + self.horizon))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        more = self.labelled.complaints if self.goal == "label" else []
        return (*self.raw.complaints, *self._learned_scales[1], *more)

    @property
    def description(self) -> list[str]:
        """Lines that say what the data hold and what was recognised."""
        raw, scales = self.raw, self.scales
        shortest, middle, longest = np.quantile(raw.lengths, (0.0, 0.5, 1.0))
        missing = float(np.isnan(raw.values[:, list(scales.places)]).mean())
        shares = "each divided by time: 70% to learn from, 10% for development, the last 20% for the test"
        counts = ", ".join(f"{len(self.places[split]):,} {USES[split]}" for split in SPLITS)
        count = len(scales.channels)
        lines = [
            f"{len(raw.names):,} series of {shortest:,.0f} to {longest:,.0f} steps, median {middle:,.0f}; "
            f"{shares if self.by_time else counts}",
            f"  {count} channel{'s' * (count > 1)}, {missing:.1%} of the values missing; steps are "
            f"{'regular' if scales.regular else 'irregular, so that the model is told the gaps'}",
            *(f"  {said}" for said in raw.said),
        ]
        if self.goal == "forecast":
            season = f"a season of {scales.season} steps" if scales.season else "no season found"
            about = f"--horizon {self.horizon} --context {self.context}; {season}"
            return [*lines, f"  goal: the next {self.horizon} steps from {self.context} (--goal forecast {about})"]
        return [*lines, goal_line(self.labelled, self.target)]
