"""The page of `subquad convert`: what is left of the model, by stage and beside controls, its heads, and what it saves."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.experiments.compare.words import amount, duration
from subquad.experiments.compare.words import figure as digits
from subquad.files import write_whole
from subquad.report.charts import save
from subquad.report.conversion_charts import RECIPES, STAGES, by_length, conversion_charts, end_of, qualities
from subquad.report.page import bullets, code, figure, heading, page, paragraph, section, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run

TITLE = "A trained model with another attention"
CAPTIONS = {
    "quality": "Held-out text, by step: lines on few texts, diamonds with 95% intervals on all; dashed: the original",
    "loss": "Loss, by step",
    "attention-divergence": "How far the attention is from the original's: Kullback-Leibler divergence by layer and head",
    "effective-rank": "Effective rank of the attention matrices, by layer and head",
    "seconds": "Time of one text",
    "bytes": "Memory of one text",
}
WORDS = (
    "The original is the model as it was; swapped is the same model with the new attention and nothing trained. Calibrated "
    "and distilled set or train the attention alone, layer by layer, on the original's own hidden states; tuned is trained "
    "end to end. Controls are trained for the same time: plain fine-tuning of the swapped model, without the stages before; "
    "the window alone, where the attention has one; the original fine-tuned, where the goal is the task's own loss."
)
COST_WORDS = (
    "One text through the model without its head, both models in turns on this machine. Where a table of positions ends "
    "earlier, it is repeated."
)


def write_conversion_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of one or several conversions."""
    each = [(number, conversion_charts(run.rows())) for number, run in enumerate(runs)]
    charts = {f"{name}-{number}": drawn for number, own in each for name, drawn in own.items()}
    parts = [part for number, run in enumerate(runs) for part in _parts(run, number, list(charts))]
    write_whole(path, page(TITLE, [heading(TITLE), paragraph(WORDS), *parts], charts))


def write_conversion_figures(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Each chart as PNG and SVG."""
    drawn = {
        name if len(runs) == 1 else f"{name}-{number}": chart
        for number, run in enumerate(runs, start=1)
        for name, chart in conversion_charts(run.rows(), interactive=False).items()
    }
    return save(drawn, folder)


def _parts(run: Run, number: int, charts: Sequence[str]) -> Iterator[str]:
    rows = run.rows()
    yield section(_name(run.about))
    if said := answers(rows):
        yield bullets(said)
    if qualities(rows):
        yield table(stage_table(rows))
    for name, caption in CAPTIONS.items():
        if name == "seconds" and by_length(rows):
            yield section("Time and memory")
            yield paragraph(COST_WORDS)
            yield table(cost_table(rows))
        if f"{name}-{number}" in charts:
            yield figure(f"{name}-{number}", caption)
    yield section("To run it again")
    yield paragraph(f"{run.folder.name}, {run.about.get('started', 'time unknown')}")
    yield code(run.about.get("command", "subquad convert"))


def _name(about: Mapping[str, Any]) -> str:
    options = about.get("options", {})
    mechanism = options.get("mechanism") or {}
    inner = mechanism.get("feature_map") or mechanism.get("rest")
    kind = inner.get("kind") if isinstance(inner, Mapping) else inner
    name = mechanism.get("kind", "another attention")
    return f"{Path(str(options.get('model', 'a model'))).name}: {name}" + (f" ({kind})" if kind else "")


def answers(rows: Sequence[Row]) -> list[str]:
    """What came of it, in sentences."""
    found = []
    last = stages(rows, "conversion")[-1:]
    for metric in qualities(rows)[:1] if last else []:
        after = find(rows, metric, "conversion", last[0])
        before = [
            f"{one} {_number(row)}" for one in ("original", "swapped") if (row := find(rows, metric, "conversion", one))
        ]
        others = [
            f"{name} {_number(row)}"
            for name in RECIPES[1:]
            for stage in stages(rows, name)[-1:]
            if (row := find(rows, metric, name, stage)) is not None
        ]
        if after is not None:
            against = f"; controls: {', '.join(others)}" if others else ""
            found.append(f"{metric.capitalize()}: {last[0]} {_spread(after)}, {', '.join(before)}{against}.")
            found += _too_short(rows, metric, after)
    lengths = {at: own for at, own in by_length(rows).items() if {("seconds", "before"), ("seconds", "after")} <= own.keys()}
    if lengths:
        longest = max(lengths)
        found.append(f"At {longest} tokens it is {_ratio(lengths[longest], 'seconds')[0].text} times as fast as before.")
    for length, own in by_length(rows).items():
        for (metric, model), row in own.items():
            if metric == "failure":
                found.append(f"At {length} tokens the model {model} gave no figures: {row['failure']} ({row['message']}).")
    return found


def _too_short(rows: Sequence[Row], metric: str, after: Row) -> Iterator[str]:
    """A model that was better in mid-way was tuned in too few steps for what tuning unsettles at first."""
    sign = -1.0 if metric == "perplexity" else 1.0
    past = [row for stage in ("swapped", "distilled") if (row := find(rows, metric, "conversion", stage)) is not None]
    best = max(past, key=lambda row: sign * row["value"], default=after)
    if after["stage"] == "tuned" and sign * best["value"] > sign * after["value"]:
        yield (
            f"It was better before it was tuned ({best['stage']}: {_number(best)}): these were too few steps; give more "
            "--minutes, or leave the second stage out with --tune-steps 0."
        )


def stages(rows: Sequence[Row], recipe: str) -> list[str]:
    """Those of a recipe at which quality was measured."""
    known = {row.get("stage") for row in rows if row.get("recipe") == recipe and row.get("split") != "watched"}
    return [stage for stage in STAGES if stage in known and any(find(rows, at, recipe, stage) for at in qualities(rows))]


def find(rows: Sequence[Row], metric: str, recipe: str, stage: str) -> Row | None:
    """The last figure of a metric that is not a glance on the way."""
    own = [row for row in rows if (row["metric"], row.get("recipe"), row.get("stage")) == (metric, recipe, stage)]
    return next((row for row in reversed(own) if row.get("split") != "watched"), None)


def stage_table(rows: Sequence[Row]) -> Table:
    """Every recipe and stage, with all that was measured."""
    metrics, lines = qualities(rows), []
    for recipe in RECIPES:
        for stage in stages(rows, recipe):
            own = [find(rows, metric, recipe, stage) for metric in metrics]
            known = next(row for row in own if row is not None)
            name = "the original" if stage == "original" else recipe
            steps, elapsed = known.get("step") or 0, known.get("elapsed") or 0.0
            cells = [NOTHING if row is None else Cell(_spread(row), row["value"]) for row in own]
            taken = [Cell(str(steps), steps), Cell(duration(elapsed) if elapsed else "0 s", elapsed)]
            lines.append([Cell(name), Cell(stage), *taken, *cells])
    caption = "Held-out text, with 95% intervals"
    return Table(caption, ["recipe", "stage", "steps", "training", *metrics], lines)


def cost_table(rows: Sequence[Row]) -> Table:
    """Each length: before, after, and how many times as much the one was."""
    lines = []
    for length, own in by_length(rows).items():
        cells = [Cell(str(length), length)]
        for metric, words in (("seconds", duration), ("bytes", amount)):
            for model in ("before", "after"):
                row = own.get((metric, model))
                failed = own.get(("failure", model))
                cells.append(
                    Cell(words(row["value"]), row["value"]) if row else Cell(failed["failure"]) if failed else NOTHING
                )
            cells += _ratio(own, metric)
        lines.append(cells)
    columns = ["tokens", "time before", "after", "times as fast", "memory before", "after", "times less"]
    return Table("One text: medians; ranges are of the worst and the best quotient of both intervals", columns, lines)


def _ratio(own: Mapping[tuple[str, str], Row], metric: str) -> list[Cell]:
    before, after = (own.get((metric, model)) for model in ("before", "after"))
    if before is None or after is None or not after["value"]:
        return [NOTHING]
    middle = before["value"] / after["value"]
    low, high = (end_of(before, one) / end_of(after, other) for one, other in (("low", "high"), ("high", "low")))
    text = digits(middle) if metric == "bytes" or low == high else f"{digits(middle)} ({digits(low)} to {digits(high)})"
    return [Cell(text, middle)]


def _spread(row: Row) -> str:
    ends = (row.get("low"), row.get("high"))
    if None in ends or ends[0] == ends[1]:
        return _number(row)
    return f"{_number(row)} ({_short(row['low'])} to {_short(row['high'])})"


def _number(row: Row) -> str:
    return _short(row["value"])


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) <= 1 else digits(value)
