"""The page of training runs: convergence, metrics, samples, and the command. Several overlay, seeds together."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import altair as alt

from subquad.files import write_whole
from subquad.report.charts import save
from subquad.report.curves import curves, thin
from subquad.report.page import code, heading, page, paragraph, section, table
from subquad.report.page import figure as chart_place
from subquad.report.residuals import quantiles, residual_chart
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run
from subquad.words import amount, compact


class Trained(NamedTuple):
    """A run, its rows, and what tells it from the others but for its seed."""

    run: Run
    rows: list[Row]
    label: str


def label_runs(runs: Sequence[Run]) -> list[Trained]:
    """Runs that differ by their seed only share a label."""
    flat = [_flat(run.about.get("options", {})) for run in runs]
    differing = {key for one in flat for key in one if len({json.dumps(other.get(key)) for other in flat}) > 1}
    differing.add("mechanism.kind")
    labels = [", ".join(_words(key, one[key]) for key in one if key in differing) for one in flat]
    return [Trained(run, run.rows(), label) for run, label in zip(runs, labels, strict=True)]


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _words(key: str, value: object) -> str:
    name = key.rsplit(".", 1)[-1].replace("_", " ")
    return str(value) if name == "kind" else f"{name} {value}"


def points(trained: Sequence[Trained], metric: str) -> list[Row]:
    """A metric of each run by step."""
    found: list[Row] = []
    for one in trained:
        rows = sorted((row for row in one.rows if _watched(row, metric)), key=lambda row: row["step"])
        for step, value in thin([row["step"] for row in rows], [row["value"] for row in rows]):
            found.append({"label": one.label, "run": one.run.folder.name, "step": step, "value": value})
    return found


def _watched(row: Row, metric: str) -> bool:
    """Whether a row is a metric's value while training; that of the test is another one's."""
    return row["metric"] == metric and row["value"] is not None and row.get("split") != "test"


def metric_names(trained: Sequence[Trained]) -> list[str]:
    """What was evaluated."""
    return list(dict.fromkeys(row["metric"] for one in trained for row in one.rows if row.get("split") == "held out"))


def training_charts(trained: Sequence[Trained], *, interactive: bool = True) -> dict[str, alt.LayerChart]:
    """The loss on a logarithmic axis, each metric, and the residuals of event models."""
    drawn: dict[str, alt.LayerChart] = {}
    for metric in ("loss", *metric_names(trained)):
        if found := points(trained, metric):
            log = metric == "loss" and min(row["value"] for row in found) > 0  # that of densities can be negative
            drawn[metric] = curves(found, metric.replace("_", " "), log=log, interactive=interactive)
    if residual := [point for one in trained for point in quantiles(one.rows, one.label)]:
        drawn["residuals"] = residual_chart(residual, interactive=interactive)
    return drawn


def write_training_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page."""
    trained = label_runs(runs)
    charts = training_charts(trained)
    title = "How training went"
    write_whole(path, page(title, list(_parts(title, trained, list(charts))), charts))


def write_training_figures(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Each chart as PNG and SVG."""
    return save(training_charts(label_runs(runs), interactive=False), folder)


def _parts(title: str, trained: Sequence[Trained], charts: Sequence[str]) -> Iterator[str]:
    machine = trained[0].run.about.get("machine", {})
    where = f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', '?')} cores"
    yield heading(title, f"{where}, {amount(machine.get('memory_bytes', 0))}")
    yield table(final_table(trained))
    if (tested := test_table(trained)).rows:
        yield table(tested)
    for name in charts:
        yield chart_place(name, "Loss" if name == "loss" else name.replace("_", " ").capitalize())
    if (samples := sample_table(trained)).rows:
        yield section("The model's answers")
        yield table(samples)
    yield section("To run it again")
    for one in trained:
        found = ", ".join(f"{name} {version}" for name, version in one.run.about.get("versions", {}).items())
        yield paragraph(f"{one.run.folder.name}, {one.run.about.get('started', 'time unknown')}: {found}")
        yield code(one.run.about.get("command", "subquad train"))


def final_loss(rows: Sequence[Row]) -> float | None:
    """The mean loss of the last twentieth of the steps, which a single batch does not sway."""
    losses = [row["value"] for row in sorted(rows, key=lambda row: row["step"]) if row["metric"] == "loss"]
    return mean(losses[-max(1, len(losses) // 20) :]) if losses else None


def last_value(rows: Sequence[Row], metric: str) -> float | None:
    """A metric at the last step that has it."""
    found = [row for row in rows if _watched(row, metric)]
    return max(found, key=lambda row: row["step"])["value"] if found else None


def final_table(trained: Sequence[Trained]) -> Table:
    """Each label: its final loss and metrics, as the mean over seeds and their range."""
    metrics = metric_names(trained)
    rows = []
    for label in dict.fromkeys(one.label for one in trained):
        group = [one for one in trained if one.label == label]
        cells = [_spread([final_loss(one.rows) for one in group])]
        cells += [_spread([last_value(one.rows, name) for one in group]) for name in (*metrics, "tokens_per_second")]
        steps = max((row["step"] for one in group for row in one.rows), default=0)
        rows.append([Cell(label), Cell(str(len(group)), len(group)), Cell(str(steps), steps), *cells])
    names = [name.replace("_", " ") for name in metrics]
    return Table("At the end: mean and range over seeds", ["attention", "runs", "steps", "loss", *names, "tokens/s"], rows)


def test_table(trained: Sequence[Trained]) -> Table:
    """Each run's metrics on what was kept for the end, with their intervals."""
    rows = []
    for one in trained:
        for row in (row for row in one.rows if row.get("split") == "test"):
            between = f"{compact(row['low'])} to {compact(row['high'])}" if "low" in row else ""
            name, value = row["metric"].replace("_", " "), Cell(compact(row["value"]), row["value"])
            rows.append([Cell(one.label), Cell(one.run.folder.name), Cell(name), value, Cell(between)])
    return Table("On the test", ["attention", "run", "metric", "value", "95% interval"], rows)


def _spread(values: Sequence[float | None]) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    middle = mean(known)
    text = compact(middle) if len(known) == 1 else f"{compact(middle)} ({compact(min(known))} to {compact(max(known))})"
    return Cell(text, middle)


def sample_table(trained: Sequence[Trained]) -> Table:
    """Questions, answers and the right ones."""
    rows = [
        [
            Cell(one.label),
            Cell(row["given"]),
            Cell(row["answered"]),
            Cell("right" if row["answered"] == row["right"] else row["right"]),
        ]
        for one in trained
        for row in one.rows
        if row["metric"] == "sample"
    ]
    return Table("On fresh sequences", ["attention", "given", "answered", "right"], rows)
