"""Series of numbers, of one or several channels: forecasts, or the class or number of a whole series."""

from subquad.tasks.series.forecasting import ForecastTask
from subquad.tasks.series.labelled import LabelSeries
from subquad.tasks.series.task import Series

__all__ = ["ForecastTask", "LabelSeries", "Series"]
