"""The charts of a page as figures for papers: of a fixed width, on white, titled by their captions, one for each view."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt

from subquad.report.charts import WIDTH, save
from subquad.report.page import Page, Picture

TITLE_CHARACTERS = 76
"""Number of characters above which a figure's title is wrapped, so that it is no wider than the chart."""


def write_page_figures(page: Page, folder: Path) -> Iterator[Path]:
    """Writes each chart of a page as PNG and SVG, and yields the paths of the PNG files."""
    return save(page_figures(page), folder)


def page_figures(page: Page) -> dict[str, alt.TopLevelMixin]:
    """Returns a figure of each chart, by name. A chart of several views gives a figure of each view."""
    figures: dict[str, alt.TopLevelMixin] = {}
    for picture in page.pictures:
        for view in page.views if _has_views(picture.chart) else [""]:
            figures[f"{picture.name} {view}".rstrip()] = _figure(picture, view)
    return figures


def _has_views(chart: Any) -> bool:
    return any(parameter.name == "view" for parameter in _parameters(chart))


def _parameters(chart: Any) -> list[Any]:
    return [] if chart.params is alt.Undefined else list(chart.params)


def _figure(picture: Picture, view: str) -> alt.TopLevelMixin:
    """Returns the figure of a chart, which shows the given view if the chart has views."""
    chart: Any = picture.chart
    drawn = chart.copy(deep=["config"])
    drawn.title = textwrap.wrap(f"{picture.caption}; {view}" if view else picture.caption, TITLE_CHARACTERS)
    drawn.config.background = "white"
    if drawn._get("width") == "container":
        drawn.width = WIDTH
    if view:
        others = [parameter for parameter in _parameters(drawn) if parameter.name != "view"]
        drawn.params = [*others, alt.VariableParameter(name="view", value=view)]
    figure: alt.TopLevelMixin = drawn
    return figure
