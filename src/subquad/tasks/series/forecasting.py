"""Forecasts of series: quantiles of the next steps, beside forecasts without a trained model."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import nn

from subquad.data.splits import SplitName
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.tasks import comparing
from subquad.tasks.base import Best, Counted, Predictions
from subquad.tasks.mlm.limits import check_longest
from subquad.tasks.series.baselines import Baselines
from subquad.tasks.series.judging import CRPS, Judged, compared_rows, example_rows, judge, step_rows
from subquad.tasks.series.model import LEVELS, MIDDLE, Forecaster, pinball
from subquad.tasks.series.scales import OUT_OF_SIGHT
from subquad.tasks.series.sets import SeriesSet
from subquad.tasks.series.simulator import best_crps
from subquad.tasks.series.source import Source
from subquad.tasks.series.windows import ForecastBatch, Windows, cut_windows
from subquad.tasks.targets.sourced import FEW, SourcedTask
from subquad.types import AttentionOptions

MOST_FITTED = 4000
"""Largest number of training windows that baselines are fitted to."""
LOW, HIGH = LEVELS.index(0.1), LEVELS.index(0.9)


class ForecastTask(SourcedTask[ForecastBatch]):
    """Batches, model, loss and metrics for forecasts."""

    kind = "series"
    best: ClassVar[Best | None] = Best(CRPS, "low")
    units: ClassVar[Mapping[str, str]] = {CRPS: "deviations", "mean_absolute_error": "deviations"}
    takes: ClassVar[str] = "forecasts series: give a file of them, or --data"
    reads_files: ClassVar[bool] = True
    source: Source

    def __init__(self, source: Source) -> None:
        self.source, self.options = source, source.options

    @cached_property
    def gaps(self) -> Float[ndarray, "steps"]:
        """Logarithm of the gap before each step of all series."""
        return self.source.scales.gaps(self.source.raw)

    @cached_property
    def train(self) -> Windows:
        """All training windows."""
        return self.source.windows("train")

    @cached_property
    def development(self) -> Windows:
        """The windows that are evaluated during training."""
        return self.source.windows("development", self._every("development")).spread(self.options.held_out)

    @cached_property
    def test(self) -> Windows:
        """The windows that are evaluated at the end."""
        return self.source.windows("test", self._every("test")).spread(self.options.tested)

    def _every(self, split: SplitName) -> int:
        """Number of steps between two windows: the horizon, or fewer where a single series would have few windows."""
        steps = int(self.source.raw.lengths[self.source.places[split]].sum() * (0.1 if self.source.by_time else 1.0))
        return max(1, min(self.source.horizon, steps // 50))

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> Forecaster:
        context, horizon = self.source.context, self.source.horizon
        check_longest(context + horizon, "steps", attention, model, "--context or --horizon")
        return Forecaster(
            len(self.source.scales.channels),
            context,
            horizon,
            attention,
            model,
            reach=self.options.reach,
            linear=self.options.linear,
            generator=generator,
        )

    def batch(self, size: int, generator: torch.Generator) -> ForecastBatch:
        """Training windows, drawn with equal chances."""
        return self._cut(self.train.take(torch.randint(len(self.train.series), (size,), generator=generator).numpy()))

    def _cut(self, windows: Windows) -> ForecastBatch:
        source = self.source
        return cut_windows(source.scaled, self.gaps, windows, context=source.context, horizon=source.horizon)

    def loss(self, model: nn.Module, batch: ForecastBatch) -> Counted:
        """Continuous ranked probability score of the known values, in scaled values."""
        quantiles = model(batch.values, batch.mask, batch.keep, batch.gaps)
        scores = pinball(quantiles, batch.future).masked_fill(~batch.known, 0.0)
        return Counted(scores.sum(), self.count(batch))

    def count(self, batch: ForecastBatch) -> int:
        return int(batch.known.sum())

    @torch.no_grad()
    def quantiles(self, model: nn.Module, batch: ForecastBatch) -> Float[ndarray, "w h c q"]:
        """Quantiles of all windows of a batch, computed in parts, in scaled values."""
        model.eval()
        device = next(model.parameters()).device
        size = max(1, self.options.evaluation_steps // (self.source.context + self.source.horizon))
        parts = []
        for first in range(0, len(batch.values), size):
            part = ForecastBatch(*(tensor[first : first + size].to(device) for tensor in batch))
            parts.append(model(part.values, part.mask, part.keep, part.gaps).double().cpu().numpy())
        return np.concatenate(parts)

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """CRPS, absolute error of the median, and coverage of the 80% interval on the development part."""
        judged = self._judged(model, self.development)
        return {name: judged.mean(name) for name in (CRPS, "mean_absolute_error", "coverage_80")}

    def _judged(self, model: nn.Module, windows: Windows) -> Judged:
        batch = self._cut(windows)
        return judge(self.quantiles(model, batch), batch, self._groups(windows))

    def _groups(self, windows: Windows) -> ndarray:
        """What a bootstrap draws together: the windows of a series, or windows that overlap if there are few series."""
        if len(np.unique(windows.series)) >= FEW:
            return windows.series
        _, groups = np.unique(np.stack([windows.series, windows.begin // self.source.horizon]), axis=1, return_inverse=True)
        return groups.reshape(-1)

    @cached_property
    def baselines(self) -> Baselines:
        """Forecasts without a trained model, fitted to training windows."""
        batch = self._cut(self.train.spread(MOST_FITTED))
        values, mask, future, known = (part.numpy() for part in (batch.values, batch.mask, batch.future, batch.known))
        return Baselines(values, mask, future, known, self.source.scales.season)

    def final(self, model: nn.Module) -> list[Row]:
        """Metrics on the test part with intervals, beside baselines and the trivial answer; errors by step; examples."""
        batch, groups = self._cut(self.test), self._groups(self.test)
        ours = self.quantiles(model, batch)
        others = self.baselines.predict(batch.values.numpy(), batch.mask.numpy())
        judged = judge(ours, batch, groups)
        by_name = {name: judge(quantiles, batch, groups) for name, quantiles in others.items()}
        usual = judge(np.broadcast_to(self.baselines.usual, ours.shape), batch, groups)
        rows = [*compared_rows(judged, by_name, usual), *step_rows(judged, by_name)]
        if not self.options.data:
            best = best_crps(self.source.horizon) / float(np.mean(self.source.scales.deviations))
            rows.append({"metric": f"best_possible_{CRPS}", "unit": "deviations", "split": "test", "value": best})
        return [*rows, *example_rows(self.source, self.test, batch, ours)]

    def lengths(self) -> dict[str, ndarray]:
        """The number of steps that the model reads and forecasts, for each window of each split."""
        windows = {"train": self.train, "development": self.development, "test": self.test}
        steps = self.source.context + self.source.horizon
        return {split: np.full(len(of_split.series), steps) for split, of_split in windows.items()}

    def judge(self, model: nn.Module) -> comparing.Judged:
        """The CRPS of each group of windows of the test part."""
        return _compared(self._judged(model, self.test))

    def rivals(self) -> dict[str, comparing.Rival]:
        """The training distribution, and forecasts without a trained model."""
        batch, groups = self._cut(self.test), self._groups(self.test)
        others = self.baselines.predict(batch.values.numpy(), batch.mask.numpy())
        usual = np.broadcast_to(self.baselines.usual, next(iter(others.values())).shape)
        rivals = {"training distribution": comparing.Rival(_compared(judge(usual, batch, groups)), is_trivial=True)}
        return rivals | {name: comparing.Rival(_compared(judge(known, batch, groups))) for name, known in others.items()}

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Forecasts of the development part: the last known value, the median forecast of the last step, and what came."""
        chosen = torch.randperm(len(self.development.series), generator=generator)[:count].numpy()
        windows = self.development.take(chosen)
        batch, scales = self._cut(windows), self.source.scales
        quantiles = self.quantiles(model, batch)
        lines = []
        for at, (series, begin) in enumerate(zip(*windows, strict=True)):
            low, middle, high = (scales.restored(quantiles[at, -1, :, place])[0] for place in (LOW, MIDDLE, HIGH))
            came = scales.restored(batch.future[at, -1].numpy())[0] if batch.known[at, -1, 0] else np.nan
            name = f"{self.source.raw.names[series]}, {scales.channels[0]}, {self.source.horizon} steps after step {begin}"
            answer = f"{middle:.4g} ({low:.4g} to {high:.4g})"
            lines.append({"given": name, "answered": answer, "right": f"{came:.4g}" if np.isfinite(came) else "missing"})
        return lines

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """Median, 10% and 90% quantile of each of the next steps of each channel of each series of a file or folder."""
        source = self.source
        series = source.load(path)
        scaled, gaps = source.scales.scaled(series, OUT_OF_SIGHT), source.scales.gaps(series)
        lengths, complaints = series.lengths, list(series.complaints)
        known = [at for at in range(len(lengths)) if not np.isnan(scaled.of(at)[-source.context :]).all()]
        if len(known) < len(lengths):
            complaints.append(f"{path.name}: {len(lengths) - len(known):,} series have no value to forecast from")
        windows = Windows(np.array(known, np.int64), lengths[known])
        lines: list[list[str]] = []
        if known:
            batch = cut_windows(scaled, gaps, windows, context=source.context, horizon=source.horizon)
            restored = source.scales.restored(np.moveaxis(self.quantiles(model, batch), -1, 1))
            for place, quantiles in zip(known, restored, strict=True):
                lines += self._lines(series, place, quantiles)
        return Predictions(["series", "channel", "step", "time", "low_10", "median", "high_90"], lines, tuple(complaints))

    def _lines(self, series: SeriesSet, place: int, quantiles: Float[ndarray, "q h c"]) -> list[list[str]]:
        scales, last = self.source.scales, series.times_of(place)[-1]
        is_date = series.reading.time_form not in ("", "seconds")
        lines = []
        for at, channel in enumerate(scales.channels):
            for step in range(self.source.horizon):
                time = last + scales.step * (step + 1)
                cells = [f"{quantiles[level, step, at]:.7g}" for level in (LOW, MIDDLE, HIGH)]
                lines.append([series.names[place], channel, str(step + 1), _written(time, is_date=is_date), *cells])
        return lines


def _compared(judged: Judged) -> comparing.Judged:
    return comparing.judged_means(CRPS, "low", "deviations", judged.sums[CRPS], judged.counts)


def _written(time: float, *, is_date: bool) -> str:
    """A time as an ISO date, or as a number."""
    if is_date and abs(time) < 1e11:
        when = datetime.fromtimestamp(round(time), UTC)
        return when.strftime("%Y-%m-%d" if round(time) % 86400 == 0 else "%Y-%m-%dT%H:%M:%S")
    return f"{time:.12g}"
