"""Parts of a training page for event sequences: the data, forecasts beside what came, and how types are told apart."""

from collections.abc import Sequence

import altair as alt

from subquad.report.charts import HEIGHT, PALETTE, WIDTH
from subquad.report.page import Fold, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row
from subquad.statistics import Interval
from subquad.words import between, span

SPLITS = ("train", "development", "test")
KINDS = {"before": "before the cut", "forecast": "forecast: median and 90%", "came": "what came"}
"""Labels of events on the timeline, by kind."""
OTHERS = "all others"
"""Name of the types that are joined, because there are many."""


def data_sentence(rows: Sequence[Row]) -> str:
    """Describes the training data in one sentence; empty without rows about them."""
    about = {(row["what"], row.get("quantile")): row["value"] for row in _data(rows, "train")}
    if ("sequences", None) not in about:
        return ""
    names = [row["type"] for row in _data(rows, "train") if row["what"] == "type"]
    types = f"more than {len(names) - 1} types" if OTHERS in names else f"{len(names)} type{'s' if len(names) > 1 else ''}"
    lengths = [about.get(("events of a sequence", level), 0) for level in (0.0, 0.5, 1.0)]
    sentence = (
        f"Data: {about['sequences', None]:,.0f} training sequences of {lengths[0]:,.0f} to {lengths[2]:,.0f} events "
        f"(median {lengths[1]:,.0f}), {about['events', None]:,.0f} events, {types}"
    )
    if ("gap", 0.5) in about:
        say = span if _are_seconds(rows) else "{:.3g}".format
        middle, low, high = (say(about["gap", level]) for level in (0.5, 0.05, 0.95))
        sentence += f"; gaps have the median {middle} ({low} to {high} for nine in ten)"
    return f"{sentence}."


def data_tables(rows: Sequence[Row]) -> list[Table]:
    """Tables of sequences and gaps, of types, and of types that come again; only those that there are rows for."""
    return [each for each in (data_table(rows), type_table(rows), return_table(rows)) if each.rows]


def event_folds(rows: Sequence[Row]) -> list[Fold]:
    """The table of forecasts of several events, if there are rows for it."""
    ahead = ahead_table(rows)
    return [Fold("Forecasts of several events", [table(ahead)])] if ahead.rows else []


def _are_seconds(rows: Sequence[Row]) -> bool:
    """Whether gaps are in seconds, as they are between dates."""
    return any(row["what"] == "gap" and row["unit"] == "seconds" for row in _data(rows, "train"))


def _data(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row["metric"] == "data" and row.get("part") == part]


def data_table(rows: Sequence[Row]) -> Table:
    """Numbers of sequences and events and quantiles of lengths and gaps, for each split."""
    names: dict[str, dict[str, float]] = {}
    for part in SPLITS:
        for row in _data(rows, part):
            if row["what"] not in ("type", "return"):
                level = f", {row['quantile']:.0%} quantile" if "quantile" in row else ""
                names.setdefault(f"{row['what']}{level}", {})[part] = row["value"]
    lines = [
        [Cell(name), *(Cell(f"{values[part]:,.6g}", values[part]) if part in values else NOTHING for part in SPLITS)]
        for name, values in names.items()
    ]
    caption = "Times are in seconds" if _are_seconds(rows) else "Times are in the data's unit"
    return Table(caption, ["", *SPLITS], lines)


def type_table(rows: Sequence[Row]) -> Table:
    """Shares of the most frequent types, for each split."""
    shares: dict[str, dict[str, float]] = {}
    for part in SPLITS:
        for row in _data(rows, part):
            if row["what"] == "type":
                shares.setdefault(str(row["type"]), {})[part] = row["value"]
    lines = [
        [Cell(name), *(Cell(f"{values[part]:.4f}", values[part]) if part in values else NOTHING for part in SPLITS)]
        for name, values in shares.items()
    ]
    return Table("Share of the events of each type", ["type", *SPLITS], lines)


def return_table(rows: Sequence[Row]) -> Table:
    """Types that come again after a fixed time."""
    lines = [
        [
            Cell(str(row["type"])),
            Cell(f"{row['value']:.6g}", row["value"]),
            Cell(f"{row['deviation']:.3g}", row["deviation"]),
            Cell(f"{row['share']:.3f}", row["share"]),
        ]
        for row in _data(rows, "train")
        if row["what"] == "return"
    ]
    columns = ["type", "comes again after", "standard deviation", "share of its events that do"]
    return Table("Types that come again after a fixed time, found in the training sequences", columns, lines)


def ahead_table(rows: Sequence[Row]) -> Table:
    """Coverage and ranked probability score of each forecast event."""
    names = ("coverage_ahead", "crps_ahead", "crps_ahead_of_renewal")
    known = {(row["metric"], row["event"]): row for row in rows if row["metric"] in names}
    events = sorted({event for _, event in known})
    lines = [[Cell(str(event), event), *(_between(known.get((name, event))) for name in names)] for event in events]
    columns = ["event", "within the 90% interval", "CRPS of its time", "CRPS of a renewal process"]
    return Table("Events after the cut of test sequences, continued by sampling", columns, lines)


def _between(row: Row | None) -> Cell:
    if row is None:
        return NOTHING
    return Cell(between(Interval.of_row(row), ".3f" if abs(row["value"]) < 10 else ""), row["value"])


def event_charts(rows: Sequence[Row], *, interactive: bool = True) -> dict[str, alt.LayerChart]:
    """Charts by name: a timeline of each sequence with forecasts, the calibration of types, and the confusion of types."""
    charts: dict[str, list[alt.Chart]] = {}
    lines = [row for row in rows if row["metric"] == "timeline"]
    for number, name in enumerate(dict.fromkeys(str(row["sequence"]) for row in lines), 1):
        charts[f"timeline_{number}"] = timeline([row for row in lines if str(row["sequence"]) == name])
    if calibrated := [row for row in rows if row["metric"] == "type_calibration"]:
        charts["type_calibration"] = calibration_chart(calibrated)
    if confused := [row for row in rows if row["metric"] == "type_confusion"]:
        charts["type_confusion"] = confusion_chart(confused)
    return {
        name: alt.layer(*layers)
        .properties(width="container" if interactive else WIDTH, height=HEIGHT)
        .configure(background="transparent" if interactive else "white")
        .configure_view(stroke=None)
        for name, layers in charts.items()
    }


def caption_of(name: str, rows: Sequence[Row]) -> str:
    """Caption of one of the charts."""
    if name == "type_calibration":
        return "Share of right types by the probability that the model gave them"
    if name == "type_confusion":
        return "Which type came, and which was the likeliest at that time: share of the events of the type"
    names = list(dict.fromkeys(str(row["sequence"]) for row in rows if row["metric"] == "timeline"))
    return f"Test sequence {names[int(name.rpartition('_')[2]) - 1]}: the next events, forecast from those before the cut"


def timeline(rows: Sequence[Row]) -> list[alt.Chart]:
    """Layers: events before the cut at the bottom, above it each later event with its forecast and the time when it came."""
    are_dates = any(row.get("unit") == "seconds since 1970" for row in rows)
    times, unit = ("T", 1000.0) if are_dates else ("Q", 1.0)  # dates of charts are in milliseconds
    points = [
        {
            "kind": KINDS[row["kind"]],
            "time": row["value"] * unit,
            "event": row.get("event", 0),
            **{end: row[end if end in row else "value"] * unit for end in ("low", "high")},
            "type": str(row["type"]),
        }
        for row in rows
    ]
    labels = list(KINDS.values())
    colour = alt.Color("kind:N").scale(domain=labels, range=[PALETTE[0], PALETTE[2], PALETTE[1]])
    colour = colour.legend(alt.Legend(orient="top", title=None))
    y = alt.Y("event:Q", title="event after the cut", axis=alt.Axis(tickMinStep=1))
    scale = alt.Scale(type="utc") if are_dates else alt.Scale(zero=False)
    x = alt.X(f"time:{times}", title="time", scale=scale)
    written = "%Y-%m-%d %H:%M" if are_dates else ".5~g"
    hints = ["kind:N", "event:Q", "type:N", alt.Tooltip(f"time:{times}", format=written)]
    base = alt.Chart(alt.Data(values=points)).encode(y=y, color=colour)
    spans = base.transform_filter(alt.datum.kind == KINDS["forecast"])
    return [
        spans.mark_rule(strokeWidth=3, opacity=0.4).encode(
            x=alt.X(f"low:{times}", title="time", scale=scale), x2=f"high:{times}"
        ),
        base.mark_point(filled=True, size=45).encode(x=x, tooltip=hints),
    ]


def calibration_chart(rows: Sequence[Row]) -> list[alt.Chart]:
    """Layers of the share of right types against their mean probability; a calibrated model lies on the diagonal."""
    points = [{"confidence": row["confidence"], "right": row["value"], "events": row["events"]} for row in rows]
    ends = alt.Chart(alt.Data(values=[{"confidence": 0.0, "right": 0.0}, {"confidence": 1.0, "right": 1.0}]))
    x = alt.X("confidence:Q", title="probability of the likeliest type").scale(domain=[0, 1])
    y = alt.Y("right:Q", title="share that came").scale(domain=[0, 1])
    return [
        ends.mark_line(color=PALETTE[0], strokeDash=[4, 4]).encode(x=x, y=y),
        alt.Chart(alt.Data(values=points))
        .mark_point(filled=True, color=PALETTE[2], opacity=0.9)
        .encode(x=x, y=y, size=alt.Size("events:Q", legend=None), tooltip=["confidence:Q", "right:Q", "events:Q"]),
    ]


def confusion_chart(rows: Sequence[Row]) -> list[alt.Chart]:
    """Events of each type by the likeliest type, as shares of the events of the type."""
    totals: dict[str, float] = {}
    for row in rows:
        totals[str(row["actual"])] = totals.get(str(row["actual"]), 0.0) + row["value"]
    cells = [
        {
            "actual": str(row["actual"]),
            "predicted": str(row["predicted"]),
            "share": row["value"] / totals[str(row["actual"])],
            "events": row["value"],
        }
        for row in rows
    ]
    order = list(totals)
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("predicted:N", title="likeliest type", sort=order),
        y=alt.Y("actual:N", title="type that came", sort=order),
    )
    shade = alt.Color("share:Q", title="share").scale(scheme="blues", domain=[0, 1])
    hints = ["actual:N", "predicted:N", "events:Q", alt.Tooltip("share:Q", format=".3f")]
    return [base.mark_rect().encode(color=shade, tooltip=hints)]
