"""The task series: forecast series of numbers, or predict the class or number of a whole series."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subquad.tasks.series.forecasting import ForecastTask
from subquad.tasks.series.labelled import LabelSeries
from subquad.tasks.series.options import SeriesOptions
from subquad.tasks.series.source import Source


@dataclass(frozen=True)
class Series(SeriesOptions):
    """Forecast numeric series of one or several channels, or predict their class or a number: your own, or made-up ones."""

    kind: str = field(default="series", init=False)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> ForecastTask | LabelSeries:
        """Returns the task. If `learned` is given, the series are read only on first use."""
        source = Source(self, learned)
        return LabelSeries(source) if source.goal == "label" else ForecastTask(source)
