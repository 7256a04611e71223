"""A model of events beside baselines on the same test data: who loses to whom, in words and in a table.

A row whose metric begins with ``nll_above_`` has the model's negative log-likelihood minus that of its ``baseline``.
"""

from collections.abc import Sequence

from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row
from subquad.statistics import Interval
from subquad.words import between, capitalized

ABOVE = "nll_above_"
"""Beginning of the name of a metric that tells by how much a model's likelihood is worse than that of a baseline."""


def differences(rows: Sequence[Row]) -> dict[str, Interval]:
    """The model's value minus that of each baseline, by the name of the baseline."""
    chosen = [row for row in rows if row.get("baseline") and row["metric"].startswith(ABOVE)]
    return {str(row["baseline"]): Interval.of_row(row) for row in chosen if row["value"] is not None and "low" in row}


def standing(rows: Sequence[Row], model: str = "the model") -> str:
    """Says which baselines the model loses to, or that it is ahead of all; empty if there are none.

    A difference whose interval holds 0 is not certain, and is said to be level.
    """
    gaps = differences(rows)
    if not gaps:
        return ""
    lost = [name for name in gaps if gaps[name].low > 0]
    worst = max(lost or gaps, key=lambda name: gaps[name].value)
    if lost:
        others = f" and to {', '.join(name for name in lost if name != worst)}" if len(lost) > 1 else ""
        return f"{model} loses to the baseline {worst} by {between(gaps[worst], '.3f')} nats per event{others}"
    if gaps[worst].high >= 0:
        return f"{model} is level with the baseline {worst}: {between(gaps[worst], '+.3f')} nats per event"
    ahead = Interval(-gaps[worst].value, -gaps[worst].high, -gaps[worst].low)
    return f"{model} is ahead of all {len(gaps)} baselines, of {worst} by {between(ahead, '.3f')} nats per event"


def standing_sentence(rows: Sequence[Row]) -> str:
    """Returns what `standing` says as a sentence for the terminal; empty if there are no baselines."""
    words = standing(rows)
    return f"{capitalized(words)}." if words else ""


def is_behind(rows: Sequence[Row]) -> bool:
    """Whether the model certainly loses to a baseline."""
    return any(gap.low > 0 for gap in differences(rows).values())


def baseline_table(rows: Sequence[Row], model: str) -> Table:
    """The negative log-likelihood of the model and of each baseline, its parts, and the difference."""
    tested = {row["metric"]: row for row in rows if row.get("split") == "test"}
    gaps = differences(rows)
    lines = []
    if "nll" in tested and gaps:
        parts = [tested.get(name, {}).get("value") for name in ("nll_time", "nll_type")]
        lines.append([Cell(model), _cell(tested["nll"]), *map(_number, parts), NOTHING])
    for name, gap in gaps.items():
        row = tested.get(f"nll_of_{name}")
        if row is not None:
            parts = [row.get("time"), row.get("type")]
            lines.append([Cell(name), _cell(row), *map(_number, parts), Cell(between(gap, "+.3f"), gap.value)])
    columns = ["", "-log-likelihood", "of the time", "of the type", "model minus baseline"]
    return Table("Nats per event on the same test events; 95% intervals over sequences", columns, lines)


def _cell(row: Row) -> Cell:
    if "low" not in row:
        return _number(row["value"])
    return Cell(between(Interval.of_row(row), ".3f"), row["value"])


def _number(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value:.3f}", value)
