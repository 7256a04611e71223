"""Baselines beside a trained model: sentences that say where it loses, and a table."""

from collections.abc import Iterator, Sequence

from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row
from subquad.statistics import Interval, is_positive
from subquad.words import between, compact

GAINED = "_gained"
"""End of the name of a metric that tells by how much a model is better than a baseline."""
LEVEL = "level with"
"""What is said of a model that differs from a baseline by less than is shown."""
NAMES = {
    "auroc": "AUROC",
    "crps": "CRPS",
    "macro_auroc": "macro AUROC",
    "r2": "R\N{SUPERSCRIPT TWO}",
    "log_loss": "log-loss",
}


def metric_name(metric: str) -> str:
    """The name of a metric for people."""
    return NAMES.get(metric, metric.replace("_", " "))


def baseline_sentences(rows: Sequence[Row]) -> list[str]:
    """A sentence for each baseline: whether the model is behind it or ahead, by how much, and if that may be chance."""
    return [sentence for _, sentence in _compared(rows)]


def trivial_sentence(rows: Sequence[Row]) -> str:
    """The metrics of the answer that is the same for all, as a sentence; empty if they were not measured."""
    measured = [row for row in rows if row.get("split") == "trivial" and row["value"] is not None]
    figures = ", ".join(f"{metric_name(row['metric'])} {compact(row['value'])}" for row in measured)
    return f"The same answer for all has {figures}." if figures else ""


def lost_to(rows: Sequence[Row]) -> list[str]:
    """Sentences about the baselines that the model is behind."""
    return [sentence for gap, sentence in _compared(rows) if _place(gap) == "behind"]


def _compared(rows: Sequence[Row]) -> Iterator[tuple[Interval, str]]:
    """Yields gap and sentence for each baseline, those that the model is behind by most first."""
    gaps = [row for row in rows if row.get("split") == "baseline" and row["metric"].endswith(GAINED)]
    for row in sorted(gaps, key=lambda row: row["value"]):
        metric, baseline = row["metric"].removesuffix(GAINED), row["baseline"]
        gap = Interval.of_row(row)
        ours = _value(rows, metric, "test", None)
        theirs = _value(rows, metric, "baseline", baseline)
        place = _place(gap)
        chance = "" if is_positive(gap) is not None or place == LEVEL else ", which may be chance"
        figures = f"{metric_name(metric)} {ours} against {theirs}, difference {between(gap, '+.3f')}"
        yield gap, f"{place.capitalize()} the {baseline}: {figures}{chance}."


def _place(gap: Interval) -> str:
    """Where a model is beside a baseline; level with it if the difference is not certain and too small to be shown."""
    if is_positive(gap) is None and round(gap.value, 3) == 0:
        return LEVEL
    return "behind" if gap.value < 0 else "ahead of"


def _value(rows: Sequence[Row], metric: str, split: str, baseline: str | None) -> str:
    values = [
        row["value"]
        for row in rows
        if row["metric"] == metric and row.get("split") == split and row.get("baseline") == baseline
    ]
    return f"{values[-1]:.3f}" if values else "-"


def baseline_table(rows: Sequence[Row], name: str) -> Table:
    """Returns the table of all metrics of the model, of the baselines and of the trivial answer."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows if row.get("split") == "trivial" or _is_test(row)))
    baselines = list(dict.fromkeys(row["baseline"] for row in rows if row.get("split") == "baseline"))
    lines = [(name, "test", None), *((baseline, "baseline", baseline) for baseline in baselines)]
    lines.append(("the same for all", "trivial", None))
    body = []
    for label, split, baseline in lines:
        own = {row["metric"]: row for row in rows if row.get("split") == split and row.get("baseline") == baseline}
        body.append([Cell(label), *(_cell(own.get(metric)) for metric in metrics)])
    return Table("On the test split, with 95% intervals", ["model", *map(metric_name, metrics)], body)


def _is_test(row: Row) -> bool:
    return row.get("split") == "test" and "low" in row


def _cell(row: Row | None) -> Cell:
    if row is None or row["value"] is None:
        return NOTHING
    text = between(Interval.of_row(row), ".3f") if "low" in row else compact(row["value"])
    return Cell(text, row["value"])
