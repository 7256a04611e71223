"""Charts and tables of a model of clients: what the data hold, curves, confusion, and which columns matter."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from subquad.report.charts import HEIGHT, PALETTE, WIDTH, legend_columns
from subquad.report.client_baselines import metric_name
from subquad.report.tables import Cell, Table
from subquad.results import Row
from subquad.statistics import Interval, is_positive
from subquad.words import between

CURVES = {
    "roc": ("false_positives", "share of others that are taken for it", "share of the class that is found", "ROC"),
    "precision": ("recall", "share of the class that is found", "share of what is found that is right", "Precision"),
    "calibration": ("predicted", "predicted", "what happened, with 95% intervals", "Calibration"),
}
"""Field of the horizontal axis, titles of both axes and caption, by metric."""


TARGETS = {"classes": "a class", "labels": "several labels", "number": "a number", "event": "a time to an event"}
"""What is predicted of a client, in words."""


def summary_table(learned: Mapping[str, Any]) -> Table | None:
    """Returns the table of clients, events and columns that a run stored; None if it stored none."""
    summary = learned.get("summary")
    if not summary:
        return None
    rows = []
    for entry in summary:
        missing = f"{entry['missing']:.1%}" if entry["missing"] else ""
        values = Cell(f"{entry['values']:,}", entry["values"]) if entry["values"] else Cell("")
        rows.append(
            [Cell(entry["name"]), Cell(entry["where"]), Cell(entry["kind"]), values, Cell(missing), Cell(entry["note"])]
        )
    return Table("Columns", ["column", "of", "kind", "values", "missing", ""], rows)


def overview_sentence(learned: Mapping[str, Any]) -> str:
    """Describes clients, events and the target in one sentence; empty if a run stored nothing about them."""
    entries = [entry for entry in learned.get("summary") or () if entry["where"] in ("overview", "target")]
    said = [
        f"{entry['values']:,} {entry['name']}, {entry['note']}"
        if entry["where"] == "overview"
        else f"the target is {TARGETS.get(entry['kind'], entry['kind'])}, {entry['note']}"
        for entry in entries
    ]
    return f"Data: {'; '.join(said)}." if said else ""


def importance_table(rows: Sequence[Row]) -> Table | None:
    """Returns the table of columns by how much the metric falls without their values; None if it was not measured."""
    measured = sorted((row for row in rows if row["metric"] == "importance"), key=lambda row: -row["value"])
    if not measured:
        return None
    body = []
    for row in measured:
        fall = Interval.of_row(row)
        certain = {True: "it matters", False: "it misleads", None: "not certain"}[is_positive(fall)]
        certain = "no difference" if (fall.low, fall.high) == (0, 0) else certain
        body.append([Cell(row["column"]), Cell(between(fall, "+.3f"), row["value"]), Cell(certain)])
    of = measured[0]["of"]
    of_events = of == "nll"
    caption = (
        "Rise of the negative log-likelihood per event when the values of a column are exchanged between test events"
        if of_events
        else f"Fall of {metric_name(of)} on test clients when the values of a column are exchanged between them"
    )
    return Table(caption, ["column", f"{'rise' if of_events else 'fall'}, with 95% interval", ""], body)


def confusion_table(rows: Sequence[Row]) -> Table | None:
    """Returns the table of real classes by predicted ones; None if there are no classes."""
    cells = {(row["right"], row["answered"]): row["value"] for row in rows if row["metric"] == "confusion"}
    if not cells:
        return None
    names = list(dict.fromkeys(right for right, _ in cells))
    body = [[Cell(right), *(Cell(f"{cells[right, answer]:,}", cells[right, answer]) for answer in names)] for right in names]
    return Table("Test split by real class (rows) and predicted class", ["", *(f"predicted {name}" for name in names)], body)


def client_charts(
    labelled: Mapping[str, Sequence[Row]], *, interactive: bool = True
) -> dict[str, tuple[str, alt.LayerChart]]:
    """Returns caption and chart of each curve that the rows of one or several runs have, by metric."""
    drawn = {}
    for metric, (x_field, x_title, y_title, caption) in CURVES.items():
        points = [
            {"label": label, "x": row[x_field], "value": row["value"], "low": row.get("low"), "high": row.get("high")}
            for label, rows in labelled.items()
            for row in rows
            if row["metric"] == metric
        ]
        if points:
            drawn[metric] = caption, _curve(points, metric, x_title, y_title, interactive=interactive)
    return drawn


def _curve(points: Sequence[Row], metric: str, x_title: str, y_title: str, *, interactive: bool) -> alt.LayerChart:
    labels = list(dict.fromkeys(row["label"] for row in points))
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))]
    legend = alt.Legend(orient="top", title=None, columns=legend_columns(labels), labelLimit=400)
    colour = alt.Color("label:N").scale(domain=labels, range=colours).legend(legend)
    x, y = alt.X("x:Q", title=x_title), alt.Y("value:Q", title=y_title)
    base = alt.Chart(alt.Data(values=list(points))).encode(x=x, color=colour)
    hints = [
        "label:N",
        alt.Tooltip("x:Q", format=".3~g", title=x_title),
        alt.Tooltip("value:Q", format=".3~g", title=y_title),
    ]
    layers = [
        base.mark_line(strokeWidth=2).encode(y=y, order="x:Q"),
        base.mark_point(filled=True, size=30).encode(y=y, tooltip=hints),
    ]
    if metric == "calibration":
        layers.append(base.mark_rule(opacity=0.6).encode(y=alt.Y("low:Q", title=y_title), y2="high:Q"))
    if metric != "precision":
        ends = [min(row["x"] for row in points), max(row["x"] for row in points)] if metric == "calibration" else [0.0, 1.0]
        diagonal = alt.Chart(alt.Data(values=[{"x": end, "value": end} for end in ends]))
        layers.append(diagonal.mark_line(color=PALETTE[0], strokeDash=[4, 4]).encode(x=x, y=y))
    drawn = alt.layer(*layers).properties(width="container" if interactive else WIDTH, height=HEIGHT)
    return drawn.configure(background="transparent" if interactive else "white").configure_view(stroke=None)
