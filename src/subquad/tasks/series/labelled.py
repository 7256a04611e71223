"""Classes or numbers of whole series: an encoder, beside models of summary statistics."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.data.buckets import Buckets, bounded
from subquad.data.ragged import keep_of, pad, slices
from subquad.data.splits import SplitName
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.tasks.base import Counted, Cut, Predictions
from subquad.tasks.mlm.limits import check_longest
from subquad.tasks.series.model import SeriesClassifier
from subquad.tasks.series.sets import SeriesSet
from subquad.tasks.series.source import Source
from subquad.tasks.targets.boosting import boosted
from subquad.tasks.targets.linear import fit_linear
from subquad.tasks.targets.target import Target
from subquad.tasks.targets.task import TargetedTask
from subquad.types import AttentionOptions

LINEAR, BOOSTING = "linear model of summary statistics", "boosting on summary statistics"
"""Names of the baselines."""


class SeriesBatch(NamedTuple):
    """Scaled values, 0 where they are missing; which are known; gaps; the mask of real steps; and targets."""

    values: Float[Tensor, "b n c"]
    mask: Bool[Tensor, "b n c"]
    gaps: Float[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]
    target: Float[Tensor, "b k"]


class Prepared(NamedTuple):
    """Scaled series as tensors."""

    series: SeriesSet
    values: Float[Tensor, "steps c"]
    gaps: Float[Tensor, "steps"]


class LabelSeries(TargetedTask[SeriesBatch]):
    """Batches, model, loss and metrics for series with labels."""

    kind = "series"
    takes: ClassVar[str] = "labels series: give a file of them, or --data"
    reads_files: ClassVar[bool] = True
    source: Source

    def __init__(self, source: Source) -> None:
        self.source, self.options = source, source.options

    @property
    def target(self) -> Target:
        """The classes, labels or number that is predicted."""
        return self.source.target

    @cached_property
    def splits(self) -> dict[SplitName, Prepared]:
        """The scaled series of each split."""
        places: dict[SplitName, list[int]] = self.source.places
        return {split: self.prepared(self.source.raw.take(members)) for split, members in places.items()}

    def prepared(self, series: SeriesSet) -> Prepared:
        """The last steps of series in scaled values. A series without any step has one without values."""
        scales, latest = self.source.scales, series.latest(self.options.latest)
        scaled = scales.scaled(latest)
        return Prepared(scaled, torch.from_numpy(scaled.values), torch.from_numpy(scales.gaps(latest)))

    @cached_property
    def buckets(self) -> Buckets:
        """Indices of the training series, grouped by length."""
        lengths = np.maximum(self.splits["train"].series.lengths, 1)
        return Buckets(np.arange(len(lengths)), lengths)

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> SeriesClassifier:
        if self.source.kept is None:
            longest = min(int(self.source.raw.lengths.max()), self.options.latest)
            check_longest(longest, "steps", attention, model, "--latest")
        channels = len(self.source.scales.channels)
        return SeriesClassifier(
            channels, self.target.outputs, attention, model, reach=self.options.reach, generator=generator
        )

    def cut(self, length: int) -> Cut:
        """The same task with the last positions of each series only."""
        return Cut(replace(self.options, latest=min(length, self.options.latest)), "last")

    def batch(self, size: int, generator: torch.Generator) -> SeriesBatch:
        """Training series of similar length."""
        return self._padded(self.splits["train"], self.buckets.draw(size, generator), self.truth("train"))

    def _padded(self, prepared: Prepared, places: Int[ndarray, "b"], truth: Float[ndarray, "series k"]) -> SeriesBatch:
        offsets = prepared.series.offsets
        lengths = np.maximum(prepared.series.lengths[places], 1)
        padded = pad(slices(prepared.values, offsets, places), torch.nan)
        padded = padded if padded.shape[1] else torch.full((len(places), 1, padded.shape[2]), torch.nan)
        gaps = pad(slices(prepared.gaps, offsets, places))
        gaps = gaps if gaps.shape[1] else torch.zeros(len(places), 1)
        target = torch.from_numpy(truth[places]).float()
        return SeriesBatch(padded.nan_to_num(), ~padded.isnan(), gaps, keep_of(lengths), target)

    def loss(self, model: nn.Module, batch: SeriesBatch) -> Counted:
        """The loss of the target of each series."""
        outputs = model(batch.values, batch.mask, batch.gaps, keep=batch.keep).float()
        return Counted(self.target.loss(outputs, batch.target).sum(), self.count(batch))

    def count(self, batch: SeriesBatch) -> int:
        return len(batch.target)

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        return {split: np.maximum(prepared.series.lengths, 1) for split, prepared in self.splits.items()}

    def truth(self, split: SplitName) -> Float[ndarray, "series k"]:
        return self.source.truth(split)

    def scores(self, model: nn.Module, split: SplitName) -> Float[ndarray, "series p"]:
        return self.predicted(model, self.splits[split])

    @torch.no_grad()
    def predicted(self, model: nn.Module, prepared: Prepared) -> Float[ndarray, "series p"]:
        """What a model predicts for each series."""
        model.eval()
        device = next(model.parameters()).device
        count = len(prepared.series.names)
        outputs = np.zeros((count, self.target.outputs))
        for rows in bounded(np.maximum(prepared.series.lengths, 1), self.options.evaluation_steps):
            batch = self._padded(prepared, rows, np.zeros((count, 1)))
            batch = SeriesBatch(*(tensor.to(device) for tensor in batch))
            outputs[rows] = model(batch.values, batch.mask, batch.gaps, keep=batch.keep).double().cpu().numpy()
        return self.target.predict(outputs)

    def baselines(self) -> dict[str, Float[ndarray, "test p"]]:
        """Predictions by a linear model, and by gradient boosting if scikit-learn is there, of summary statistics."""
        train, test = (summary_statistics(self.splits[split].series) for split in ("train", "test"))
        truth = self.truth("train")
        linear, _ = fit_linear(train, truth, self.target)
        predicted = {LINEAR: self.target.predict(linear.logits(test))}
        with suppress(SubquadError):  # scikit-learn, which is an extra, may not be installed
            predicted[BOOSTING] = boosted(self.target, train, truth, test)
        return predicted

    def sample_text(self, split: SplitName, place: int) -> str:
        series = self.splits[split].series
        return f"{series.names[place]}, {series.lengths[place]} steps"

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The prediction for each series of a file or folder, in its order."""
        series = self.source.load(path)
        predicted = self.predicted(model, self.prepared(series))
        lines = [[name, *self.answer_line(values)] for name, values in zip(series.names, predicted, strict=True)]
        return Predictions(["series", *self.answer_columns], lines, series.complaints)


def summary_statistics(series: SeriesSet) -> Float[ndarray, "series numbers"]:
    """Numbers that describe each series without the order of its steps but for ends, changes and the slope."""
    rows = [_statistics(series.of(at)) for at in range(len(series.names))]
    return np.stack(rows)


def _statistics(values: Float[ndarray, "n c"]) -> Float[ndarray, "numbers"]:
    numbers: list[float] = [float(np.log1p(len(values)))]
    for channel in values.T.astype(np.float64):
        known = channel[~np.isnan(channel)]
        numbers += [1.0 - len(known) / max(1, len(channel))]
        numbers += _of_known(known) if len(known) else [0.0] * 9
    return np.array(numbers)


def _of_known(known: Float[ndarray, "n"]) -> Sequence[float]:
    changes, places = np.diff(known, prepend=known[:1]), np.linspace(-1, 1, len(known))
    centred = known - known.mean()
    memory = (centred[1:] * centred[:-1]).sum() / max(1e-12, float((centred**2).sum()))
    slope = (centred * places).sum() / max(1e-12, float((places**2).sum()))
    ends = (known.min(), known.max(), known[0], known[-1])
    return [float(value) for value in (known.mean(), known.std(), *ends, np.abs(changes).mean(), memory, slope)]
