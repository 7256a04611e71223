"""The page of `subquad spectrum`: cumulative curves, the heat map of layers and heads, effective ranks."""

from collections.abc import Iterator, Sequence
from math import floor
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from subquad.report.charts import HEIGHT, PALETTE, save
from subquad.report.page import Chapter, Fold, Page, Picture, table, write_page
from subquad.report.runs import command_of
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run
from subquad.words import short

TITLE = "How low the rank of attention is"
MODELS = {"trained": "trained", "random": "fresh weights"}
CELL = 26  # size in pixels of a cell in a heat map


def spectrum_charts(rows: Sequence[Row], *, interactive: bool = True) -> dict[str, alt.TopLevelMixin]:
    """Returns the chart of cumulative curves, and a heat map for each model in the rows."""
    drawn: dict[str, alt.TopLevelMixin] = {}
    if pick(rows, "cumulative", "trained"):  # a truncated file may lack these rows
        drawn["cumulative"] = _finish(curve_chart(rows, interactive=interactive), interactive)
    lowest = min(row["value"] for row in rows if row["metric"] == "share_at_index")
    for model in MODELS:
        if shares := pick(rows, "share_at_index", model):
            drawn[f"share-{model}"] = _finish(heat_map(shares, lowest=floor(10 * lowest) / 10), interactive)
    return drawn


def pick(rows: Sequence[Row], metric: str, model: str) -> list[Row]:
    """Returns the rows of a metric for one model, "trained" or "random"."""
    return [row for row in rows if row["metric"] == metric and row["model"] == model]


def curve_chart(rows: Sequence[Row], *, interactive: bool) -> alt.LayerChart:
    """Returns the cumulative curves: heads thin, layer means thick, fresh weights dashed, ranks as vertical lines."""
    heads = [_point(row) for row in pick(rows, "cumulative", "trained")]
    longest = max(point["index"] for point in heads)
    x = alt.X("index:Q", title="singular values, the largest first").scale(domain=[0, longest], nice=False)
    y = alt.Y("value:Q", title="share of their sum").scale(domain=[0, 1])
    colour = alt.Color("layer:O", title="layer").scale(scheme="viridis").legend(symbolOpacity=1)
    hidden = alt.selection_point(name="hidden", fields=["layer"], bind="legend", toggle="true", empty=False)
    thin, thick = (
        alt.Chart(alt.Data(values=curve_points)).encode(x=x, y=y, color=colour) for curve_points in (heads, _means(heads))
    )
    if interactive:
        thin, thick = thin.transform_filter(~hidden), thick.transform_filter(~hidden)
    hints = ["layer:O", alt.Tooltip("index:Q", format=".0f"), alt.Tooltip("value:Q", format=".3f")]
    layers = [
        thin.mark_line(strokeWidth=0.7, opacity=0.35).encode(detail="head:O"),
        thick.mark_line(strokeWidth=2.4),
        thick.mark_point(size=60, opacity=0).encode(tooltip=hints),
    ]
    if fresh := [_point(row) | {"layer": 0} for row in pick(rows, "cumulative", "random")]:
        dashed = alt.Chart(alt.Data(values=_means(fresh))).encode(x=x, y=y)
        layers.append(dashed.mark_line(color=PALETTE[0], strokeDash=[6, 4], strokeWidth=2))
    layers += _bound_marks(rows, longest)
    chart: Any = alt.layer(*layers).properties(width="container" if interactive else 480, height=HEIGHT)
    drawn: alt.LayerChart = chart.add_params(hidden) if interactive else chart
    return drawn


def _bound_marks(rows: Sequence[Row], longest: float) -> list[alt.Chart]:
    """Returns vertical lines at the largest ranks of mechanisms; equal ranks share a label."""
    names: dict[int, list[str]] = {}
    for name, rank in bounds(rows).items():
        if rank < longest:
            names.setdefault(rank, []).append(name)
    if not names:
        return []
    values = [{"rank": rank, "name": "; ".join(rank_names)} for rank, rank_names in sorted(names.items())]
    base = alt.Chart(alt.Data(values=values)).encode(x="rank:Q")
    label = base.mark_text(angle=270, align="left", dx=6, dy=-6, fontSize=10, color=PALETTE[1])
    return [base.mark_rule(color=PALETTE[1], strokeDash=[2, 3]), label.encode(y=alt.datum(0.02), text="name:N")]


def heat_map(rows: Sequence[Row], *, lowest: float) -> alt.Chart:
    """Returns the heat map of the first singular values' share by layer and head, with colours from `lowest` to 1."""
    values = [{"layer": row["layer"], "head": row["head"], "share": row["value"]} for row in rows]
    heads, layers = (len({row[name] for row in rows}) for name in ("head", "layer"))
    hints = ["layer:O", "head:O", alt.Tooltip("share:Q", format=".3f")]
    return (
        alt.Chart(alt.Data(values=values))
        .mark_rect()
        .encode(
            x=alt.X("head:O", title="head").axis(labelAngle=0),
            y=alt.Y("layer:O", title="layer"),
            color=alt.Color("share:Q", title="share").scale(scheme="viridis", domain=[lowest, 1]),
            tooltip=hints,
        )
        .properties(width=max(4 * CELL, heads * CELL), height=max(2 * CELL, layers * CELL))
    )


def _finish(drawn: Any, interactive: bool) -> alt.TopLevelMixin:
    background = "transparent" if interactive else "white"
    finished: alt.TopLevelMixin = drawn.configure(background=background).configure_view(stroke=None)
    return finished


def _point(row: Row) -> Row:
    """Returns the fields of a row that the chart needs."""
    return {"layer": row["layer"], "head": row["head"], "index": row["index"], "value": round(row["value"], 5)}


def _means(points: Sequence[Row]) -> list[Row]:
    """Averages points over heads."""
    by_place: dict[tuple[int, float], list[float]] = {}
    for point in points:
        by_place.setdefault((point["layer"], point["index"]), []).append(point["value"])
    return [{"layer": layer, "index": index, "value": mean(values)} for (layer, index), values in by_place.items()]


def bounds(rows: Sequence[Row]) -> dict[str, int]:
    """Returns the largest rank of each mechanism, by name."""
    return {row["mechanism"]: row["rank"] for row in rows if row["metric"] == "share_within_rank"}


def layer_table(rows: Sequence[Row]) -> Table:
    """Returns the table of share, effective rank and rank by layer: means over heads and their range."""
    shown = [model for model in MODELS if pick(rows, "rank", model)]
    columns = {"share_at_index": place(rows), "effective_rank": "effective rank", "rank": "rank"}
    lines = []
    for layer in sorted({row["layer"] for row in rows}):
        cells = [Cell(str(layer), layer)]
        for metric in columns:
            for model in shown:
                cells.append(_range([row["value"] for row in pick(rows, metric, model) if row["layer"] == layer]))
        lines.append(cells)
    names = [name if model == "trained" else MODELS[model] for name in columns.values() for model in shown]
    caption = f"By layer, of {rows[0]['length']:.0f} positions: mean over heads, lowest and highest head"
    return Table(caption, ["layer", *names], lines)


def rank_table(rows: Sequence[Row]) -> Table:
    """Returns the table of each mechanism's rank, and the share of the matrices that this rank can represent."""
    shown = [model for model in MODELS if pick(rows, "share_within_rank", model)]
    lines = []
    for name, rank in sorted(bounds(rows).items(), key=lambda item: item[1]):
        cells = [Cell(name), Cell(str(rank), rank)]
        for model in shown:
            shares = [row["value"] for row in pick(rows, "share_within_rank", model) if row["mechanism"] == name]
            cells.append(_range(shares))
        lines.append(cells)
    caption = "Bidirectional mechanisms of subquad: the share of the singular values' sum that their rank could hold"
    return Table(caption, ["attention", "rank", *(f"of {MODELS[model]} matrices" for model in shown)], lines)


def place(rows: Sequence[Row]) -> str:
    """Returns the column name for the share of the first singular values."""
    row = next(row for row in rows if row["metric"] == "share_at_index")
    return f"share of the first {row['index']:.0f}"


def _range(values: Sequence[float]) -> Cell:
    if not values:
        return NOTHING
    middle = mean(values)
    return Cell(f"{short(middle)} ({short(min(values))} to {short(max(values))})", middle)


def write_spectrum_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of one or several models."""
    write_page(spectrum_page(runs), path)


WORDS = (
    "Singular values of attention matrices, each matrix's over their sum, added up from the largest on and averaged over "
    "sequences (Wang et al. 2020, figure 1). The effective rank is the exponential of the entropy of these shares (Roy and "
    "Vetterli 2007); the rank counts the singular values that are more than rounding errors. Upright lines are ranks that a "
    "mechanism cannot exceed: what is to their right it cannot have in common with such a matrix."
)


def spectrum_page(runs: Sequence[Run]) -> Page:
    """Builds the page: cumulative curves first, then heat maps, for each model."""
    pictures = [picture for number, run in enumerate(runs) for picture in _pictures(run, number)]
    return Page(
        TITLE,
        " ".join(spectrum_answer(run) for run in runs),
        picture=pictures[0] if pictures else None,
        chapters=[Chapter("By layer and head", pictures[1:], WORDS)] if pictures[1:] else [],
        folds=[Fold(_name(run), [table(layer_table(run.rows())), table(rank_table(run.rows()))]) for run in runs],
        commands=[command_of(run, "subquad spectrum") for run in runs],
    )


def spectrum_answer(run: Run) -> str:
    """Returns the share of the first singular values in one sentence."""
    rows = run.rows()
    trained = [row["value"] for row in pick(rows, "share_at_index", "trained")]
    if not trained:
        return f"{_name(run)}: no matrix of the trained model was measured."
    row = next(row for row in rows if row["metric"] == "share_at_index")
    fresh = [row["value"] for row in pick(rows, "share_at_index", "random")]
    beside = f", {short(mean(fresh))} with fresh weights" if fresh else ""
    first = f"the first {row['index']:.0f} of {row['length']:.0f} singular values"
    return f"{_name(run)}: {first} hold {short(mean(trained))} of their sum on average over layers and heads{beside}."


def _pictures(run: Run, number: int) -> list[Picture]:
    rows = run.rows()
    captions = {
        "cumulative": f"{_name(run)}. Heads thin, their mean by layer thick; fresh weights dashed",
        "share-trained": f"{_name(run)}, trained: {place(rows)}",
        "share-random": f"{_name(run)}, fresh weights: {place(rows)}",
    }
    return [Picture(f"{name}-{number}", captions[name], chart) for name, chart in spectrum_charts(rows).items()]


def _name(run: Run) -> str:
    options = run.about.get("options", {})
    origin = options.get("class") or f"task {options.get('task', 'unknown')}"
    return f"{Path(str(options.get('model', 'a model'))).name} ({origin}, {options.get('attention', 'unknown')} attention)"


def write_spectrum_figures(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Writes each chart as PNG and SVG."""
    drawn = {
        name if len(runs) == 1 else f"{name}-{number}": chart
        for number, run in enumerate(runs, start=1)
        for name, chart in spectrum_charts(run.rows(), interactive=False).items()
    }
    return save(drawn, folder)
