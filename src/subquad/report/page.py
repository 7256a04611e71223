"""A page that needs nothing but itself: tables, charts and the code that draws them, in one file."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import altair as alt

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


LONG_TEXT = 20
"""Characters from which on a cell breaks its lines."""


def page(title: str, parts: Sequence[str], charts: Mapping[str, alt.TopLevelMixin]) -> str:
    """The whole file. `parts` are made by the functions below; a chart is drawn where its figure stands."""
    style, script = (files("subquad.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return "\n".join(
        [HEAD.format(title=escape(title), style=style), *parts, *_scripts(charts, script), "</body>\n</html>\n"]
    )


def _scripts(charts: Mapping[str, alt.TopLevelMixin], script: str) -> Iterator[str]:
    import vl_convert

    specs = {name: drawn.to_dict() for name, drawn in charts.items()}
    data = json.dumps(_finite(specs), allow_nan=False)
    data = data.replace("<", "\\u003c")  # so that nothing in it ends the script that it stands in
    yield f'<script type="application/json" id="charts">{data}</script>'
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", "_".join(alt.SCHEMA_VERSION.split(".")[:2]))
    yield f"<script>{library.replace('</script', '<' + chr(92) + '/script')}</script>"
    yield f'<script type="module">\n{script}</script>'


def _finite(part: Any) -> Any:
    """A part of a chart without infinities and NaN, which are no JSON: a browser would not draw any chart."""
    if isinstance(part, Mapping):
        return {name: _finite(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_finite(value) for value in part]
    return None if isinstance(part, float) and not math.isfinite(part) else part


def heading(text: str, about: str = "") -> str:
    """The page's title, and what it is about."""
    return f"<h1>{escape(text)}</h1>\n" + (f'<p class="about">{escape(about)}</p>' if about else "")


def section(text: str) -> str:
    """A heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Words."""
    return f"<p>{escape(text)}</p>"


def bullets(lines: Sequence[str]) -> str:
    """Sentences below each other."""
    return '<ul class="answers">\n' + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>"


def code(text: str) -> str:
    """A command."""
    return f"<pre><code>{escape(text)}</code></pre>"


def figure(name: str, caption: str) -> str:
    """Where a chart is drawn."""
    return f'<figure><figcaption>{escape(caption)}</figcaption><div class="chart" id="chart-{escape(name)}"></div></figure>'


def chooser(options: Sequence[str]) -> str:
    """The choice of what all charts show."""
    inner = "".join(f"<option>{escape(option)}</option>" for option in options)
    return f'<label class="choice">Show <select id="view">{inner}</select></label>'


def folded(summary: str, parts: Sequence[str]) -> str:
    """Parts that are opened by a click."""
    return f"<details><summary>{escape(summary)}</summary>\n" + "\n".join(parts) + "\n</details>"


def table(content: Table) -> str:
    """A table that sorts by a click on the head of a column."""
    words = [all(row[at].value is None for row in content.rows) for at in range(len(content.columns))]
    heads = "".join(
        f'<th scope="col"{" class=word" if is_word else ""}><button type="button">{escape(name)}</button></th>'
        for name, is_word in zip(content.columns, words, strict=True)
    )
    rows = "\n".join("<tr>" + "".join(map(_cell, row, words)) + "</tr>" for row in content.rows)
    caption = f"<caption>{escape(content.caption)}</caption>"
    return f'<div class="scroll"><table>{caption}<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _cell(cell: Cell, is_word: bool) -> str:
    if is_word:
        kind = "word text" if len(cell.text) > LONG_TEXT else "word"
        return f'<td class="{kind}">{escape(cell.text)}</td>'
    value = "" if cell.value is None else f' data-value="{cell.value:.9g}"'
    # may be broken before its range only
    return f"<td{value}>{escape(cell.text).replace(' ', '&nbsp;').replace('&nbsp;(', ' (')}</td>"
