"""The layout of every page: one HTML file with its tables, its charts and the code that draws them."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import altair as alt

from subquad.files import write_whole
from subquad.report.library import chart_library
from subquad.report.tables import Cell, Table

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
"""


PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")
"""A picture in the text of a cell, which the page shows."""
LONG_TEXT = 20
"""Number of characters above which the text of a cell is wrapped."""


@dataclass(frozen=True)
class Picture:
    """A chart with its caption."""

    name: str
    """Unique name of the chart on the page."""
    caption: str
    chart: alt.TopLevelMixin


@dataclass(frozen=True)
class Chapter:
    """Charts under a heading."""

    title: str
    pictures: Sequence[Picture]
    text: str = ""


@dataclass(frozen=True)
class Fold:
    """A section that opens with a click; its parts come from `table`, `paragraph` and `bullets`."""

    summary: str
    parts: Sequence[str]
    is_open: bool = False


@dataclass(frozen=True)
class Command:
    """A command that repeats a run, and a description of the run."""

    about: str
    line: str


@dataclass(frozen=True)
class Page:
    """Contents of a page: an answer, the data and a picture, then charts, then tables, then the commands to run it again."""

    title: str
    answer: str
    """The result in one sentence."""
    data: str = ""
    """Description of the data in one sentence, below the answer."""
    data_folds: Sequence[Fold] = ()
    """Tables of the data, below their description."""
    about: str = ""
    """Description of the run and the machine."""
    picture: Picture | None = None
    """The chart that shows the answer."""
    views: Sequence[str] = ()
    """Names of the views between which the reader can switch all charts."""
    chapters: Sequence[Chapter] = ()
    folds: Sequence[Fold] = ()
    commands: Sequence[Command] = ()

    @property
    def pictures(self) -> list[Picture]:
        """All charts, in the order of the page."""
        first = [] if self.picture is None else [self.picture]
        return [*first, *(picture for chapter in self.chapters for picture in chapter.pictures)]


def write_page(content: Page, path: Path) -> None:
    """Writes a page as one file."""
    write_whole(path, render(content))


def render(content: Page) -> str:
    """Returns the HTML of a page."""
    style, script = (files("subquad.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    charts = {picture.name: picture.chart for picture in content.pictures}
    parts = [HEAD.format(title=escape(content.title), style=style), *_body(content), *_scripts(charts, script)]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _body(content: Page) -> Iterator[str]:
    yield f"<h1>{escape(content.title)}</h1>"
    yield f'<p class="answer">{escape(content.answer)}</p>'
    if content.data:
        yield f'<p class="about">{escape(content.data)}</p>'
    yield from map(_folded, content.data_folds)
    if len(content.views) > 1:
        yield _chooser(content.views)
    if content.picture is not None:
        yield _figure(content.picture)
    if content.about:
        yield f'<p class="about">{escape(content.about)}</p>'
    for chapter in content.chapters:
        yield section(chapter.title)
        if chapter.text:
            yield paragraph(chapter.text)
        yield from map(_figure, chapter.pictures)
    if content.folds:
        yield section("Tables and details")
        yield from map(_folded, content.folds)
    if content.commands:
        yield section("Run it again")
    for command in content.commands:
        if command.about:
            yield paragraph(command.about)
        yield f"<pre><code>{escape(command.line)}</code></pre>"


def _scripts(charts: Mapping[str, alt.TopLevelMixin], script: str) -> Iterator[str]:
    specs = {name: drawn.to_dict() for name, drawn in charts.items()}
    data = json.dumps(_finite(specs), allow_nan=False)
    data = data.replace("<", "\\u003c")  # so that the data cannot close the script element
    yield f'<script type="application/json" id="charts">{data}</script>'
    yield f"<script>{chart_library()}</script>"
    yield f'<script type="module">\n{script}</script>'


def _finite(part: Any) -> Any:
    """Replaces infinities and NaN, which JSON does not allow, by None in a chart's specification."""
    if isinstance(part, Mapping):
        return {name: _finite(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_finite(value) for value in part]
    return None if isinstance(part, float) and not math.isfinite(part) else part


def section(text: str) -> str:
    """Returns the HTML of a heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Returns the HTML of a paragraph."""
    return f"<p>{escape(text)}</p>"


def bullets(lines: Sequence[str]) -> str:
    """Returns the HTML of a list of sentences."""
    return '<ul class="answers">\n' + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>"


def _figure(picture: Picture) -> str:
    """Returns the HTML element into which a chart is drawn, with its caption."""
    caption, name = escape(picture.caption), escape(picture.name)
    return f'<figure><figcaption>{caption}</figcaption><div class="chart" id="chart-{name}"></div></figure>'


def _chooser(options: Sequence[str]) -> str:
    """Returns the HTML menu that chooses the view of all charts."""
    inner = "".join(f"<option>{escape(option)}</option>" for option in options)
    return f'<label class="choice">Show <select id="view">{inner}</select></label>'


def _folded(fold: Fold) -> str:
    """Returns the HTML of a section that opens with a click."""
    opened = " open" if fold.is_open else ""
    return f"<details{opened}><summary>{escape(fold.summary)}</summary>\n" + "\n".join(fold.parts) + "\n</details>"


def table(content: Table) -> str:
    """Returns the HTML of a table that can be sorted by clicking on a column head."""
    words = [all(row[at].value is None for row in content.rows) for at in range(len(content.columns))]
    heads = "".join(
        f'<th scope="col"{" class=word" if is_word else ""}><button type="button">{escape(name)}</button></th>'
        for name, is_word in zip(content.columns, words, strict=True)
    )
    rows = "\n".join("<tr>" + "".join(map(_cell, row, words)) + "</tr>" for row in content.rows)
    caption = f"<caption>{escape(content.caption)}</caption>"
    return f'<div class="scroll"><table>{caption}<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _cell(cell: Cell, is_word: bool) -> str:
    if PNG.fullmatch(cell.text):
        return f'<td class="word"><img class="pixels" alt="" src="{cell.text}"></td>'
    if is_word:
        kind = "word text" if len(cell.text) > LONG_TEXT else "word"
        return f'<td class="{kind}">{escape(cell.text)}</td>'
    value = "" if cell.value is None else f' data-value="{cell.value:.9g}"'
    # non-breaking spaces allow a line break only before the range
    return f"<td{value}>{escape(cell.text).replace(' ', '&nbsp;').replace('&nbsp;(', ' (')}</td>"
