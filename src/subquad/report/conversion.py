"""The page of `subquad convert`: quality by stage and beside controls, attention heads, time and memory."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.report.charts import save
from subquad.report.conversion_charts import (
    BY_LENGTH,
    RECIPES,
    STAGES,
    by_length,
    conversion_charts,
    end_of,
    kept_stage,
    length_series,
    qualities,
)
from subquad.report.page import Chapter, Fold, Page, Picture, bullets, paragraph, table, write_page
from subquad.report.runs import command_of
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run
from subquad.statistics import Interval
from subquad.words import amount, between, capitalized, digits, duration, run_lengths, short

TITLE = "A trained model with another attention"
CAPTIONS = {
    "quality": "By step: lines on development texts, diamonds with 95% intervals on test texts; dashed: the original",
    "length": "Test texts by length, with 95% intervals: the model that each recipe ended with",
    "loss": "Loss, by step",
    "attention-divergence": "How far the attention is from the original's: Kullback-Leibler divergence by layer and head",
    "effective-rank": "Effective rank of the attention matrices, by layer and head",
    "seconds": "Time of one text",
    "bytes": "Memory of one text",
}
WORDS = (
    "The original is the model as it was; swapped is the same model with the new attention and nothing trained. Calibrated "
    "and distilled set or train the attention alone, layer by layer, on the original's own hidden states; chosen has exact "
    "attention again in the layers that were followed worst; tuned is trained end to end. Each stage is scored on "
    "development texts: its best model is kept if it is better than the one before it, or else the stage is undone. Test "
    "texts decide nothing. Controls are trained for the same time and judged in the same way: plain fine-tuning of the "
    "swapped model, without the stages before; the window alone, where the attention has one; the original fine-tuned, "
    "where the goal is the task's own loss."
)
FAR_WORDS = (
    "A text that fits into the window of an attention says nothing of what that attention gives up. Outside is the share of "
    "a text's pairs of tokens that one layer does not weigh exactly. Far recall and far perplexity are those of tokens that "
    "stand elsewhere in the text, but only farther away than the window reaches (32 tokens, where there is no window). Far "
    "change is what replacing eight tokens of a text changes beyond the window: the cosine of this change with the "
    "original's, and its size beside the original's. Several layers carry something farther than one: the window alone "
    "shows how much."
)
SHORT_PAIRS = 0.05  # if less of the sentence pairs is outside of the window, they do not test far tokens
COST_WORDS = (
    "One text through the model without its head, both models in turns on this machine. Where a table of positions ends "
    "earlier, it is repeated."
)

UNKNOWN = "another attention"
"""Name of an attention that run.json does not tell."""


def write_conversion_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of one or several conversions."""
    write_page(conversion_page(runs), path)


def conversion_page(runs: Sequence[Run]) -> Page:
    """Builds the page: quality by step first, then the other charts, for each conversion."""
    pictures = [picture for number, run in enumerate(runs) for picture in _pictures(run, number)]
    return Page(
        TITLE,
        " ".join(conversion_answer(run) for run in runs),
        picture=pictures[0] if pictures else None,
        chapters=[Chapter("Charts", pictures[1:])] if pictures[1:] else [],
        folds=[
            *(fold for run in runs for fold in _folds(run)),
            Fold("What the stages and controls are", [paragraph(WORDS)]),
        ],
        commands=[command_of(run, "subquad convert") for run in runs],
    )


def conversion_answer(run: Run) -> str:
    """Returns the quality before and after the conversion, and the speed-up, in one sentence."""
    rows = run.rows()
    metric = next(iter(qualities(rows)), "")
    after = find(rows, metric, "conversion", kept_stage(rows, "conversion") or "")
    before = find(rows, metric, "conversion", "original")
    if after is None:
        return f"Nothing was measured yet of {_name(run.about)}."
    beside = "" if before is None else f" and had {_number(before)} before"
    speed = next(_speed(rows), "")
    has = f"{_model_name(run.about)} has a {metric} of {_spread(after)}{beside}"
    return f"With {attention_name(run.about)} attention, {has}{speed and f'; {speed}'}."


def _pictures(run: Run, number: int) -> list[Picture]:
    drawn = conversion_charts(run.rows(), attention=attention_name(run.about))
    model = _name(run.about)
    return [Picture(f"{name}-{number}", f"{model}. {CAPTIONS[name]}", drawn[name]) for name in CAPTIONS if name in drawn]


def _folds(run: Run) -> Iterator[Fold]:
    rows, model = run.rows(), _name(run.about)
    if sentences := answers(rows):
        yield Fold(f"In words: {model}", [bullets(sentences)])
    if qualities(rows):
        yield Fold(f"Quality after each stage: {model}", [table(stage_table(rows))])
    if length_views := length_tables(rows):
        yield Fold(f"Quality by length: {model}", [paragraph(FAR_WORDS), *map(table, length_views)])
    if by_length(rows):
        yield Fold(f"Time and memory: {model}", [paragraph(COST_WORDS), table(cost_table(rows))])


def write_conversion_figures(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Writes each chart as PNG and SVG."""
    drawn = {
        name if len(runs) == 1 else f"{name}-{number}": chart
        for number, run in enumerate(runs, start=1)
        for name, chart in conversion_charts(run.rows(), interactive=False, attention=attention_name(run.about)).items()
    }
    return save(drawn, folder)


def _name(about: Mapping[str, Any]) -> str:
    return f"{_model_name(about)}: {attention_name(about)}"


def _model_name(about: Mapping[str, Any]) -> str:
    return Path(str(about.get("options", {}).get("model", "a model"))).name


def attention_name(about: Mapping[str, Any]) -> str:
    """Returns the name of the attention that a model was converted to, with its feature map."""
    mechanism = about.get("options", {}).get("mechanism")
    if not isinstance(mechanism, Mapping):
        return UNKNOWN
    if isinstance(mechanism.get("mechanisms"), list):  # one for each layer
        return run_lengths([str(each.get("kind")) for each in mechanism["mechanisms"] if isinstance(each, Mapping)])
    inner = mechanism.get("feature_map") or mechanism.get("rest")
    kind = inner.get("kind") if isinstance(inner, Mapping) else inner
    return f"{mechanism.get('kind', UNKNOWN)}" + (f" ({kind})" if kind else "")


def answers(rows: Sequence[Row]) -> list[str]:
    """Returns the results in sentences."""
    return [
        *_quality(rows),
        *_kept(rows),
        *_by_length(rows),
        *_far(rows),
        *_costs(rows),
        *_left_out(rows),
        *_durations(rows),
    ]


def _quality(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a sentence on the deciding metric of each recipe's final model."""
    metric = next(iter(qualities(rows)), "")
    stage = kept_stage(rows, "conversion")
    after = find(rows, metric, "conversion", stage or "")
    if after is not None:
        before = [
            f"{name} {_number(row)}" for name in ("original", "swapped") if (row := find(rows, metric, "conversion", name))
        ]
        others = _controls(rows, metric)
        yield f"{metric.capitalize()}: {stage} {_spread(after)}, {', '.join(before)}{others}."


def _controls(rows: Sequence[Row], metric: str) -> str:
    control_rows = {name: find(rows, metric, name, kept_stage(rows, name) or "") for name in RECIPES[1:]}
    control_words = [f"{name} {_number(row)}" for name, row in control_rows.items() if row is not None]
    return f"; controls: {', '.join(control_words)}" if control_words else ""


def _kept(rows: Sequence[Row]) -> Iterator[str]:
    """Yields sentences on the effect of each stage of the conversion, and on undone stages of controls."""
    for row in rows:
        if row["metric"] == "kept" and "message" in row and (row["recipe"] == "conversion" or not row["value"]):
            yield f"{row['recipe'].capitalize()}, by development texts: {row['message']}."


def _by_length(rows: Sequence[Row]) -> Iterator[str]:
    """Yields sentences on quality for the longest texts, with the share of token pairs not weighed exactly."""
    for metric in BY_LENGTH:
        series = length_series(rows, metric)
        if "conversion" in series:
            longest = max(series["conversion"])
            name = f"{metric.removesuffix(' by length')} at {longest} tokens"
            row = series["conversion"][longest]
            other_rows = {
                other: rows_by_length[longest]
                for other, rows_by_length in series.items()
                if other != "conversion" and longest in rows_by_length
            }
            others = ", ".join(f"{other} {_number(other_row)}" for other, other_row in other_rows.items())
            outside = f"{row['outside']:.0%} of a text outside of what a layer weighs exactly"
            yield f"{name.capitalize()}, {outside}: {_spread(row)}{others and f'; {others}'}."
            if not row["outside"]:
                yield "No text was longer than the exact window: nothing is known of what lies beyond it."


def _far(rows: Sequence[Row]) -> Iterator[str]:
    """Yields sentences on quality for tokens that the attention does not weigh exactly."""
    kept = kept_stage(rows, "conversion") or ""
    for metric in ("far recall", "far perplexity", "far change", "far change, size"):
        after, before = (find(rows, metric, "conversion", stage) for stage in (kept, "original"))
        if after is not None and before is not None:
            yield f"{metric.capitalize()}: {_spread(after)}, original {_number(before)}{_controls(rows, metric)}."
    compared = find(rows, "spearman", "conversion", kept)
    if compared is not None and compared.get("outside", 1.0) < SHORT_PAIRS:
        yield (
            f"The pairs that people compared lie within the exact window ({compared['outside']:.0%} outside): Spearman's "
            "correlation says nothing of what lies beyond it."
        )


def _speed(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the speed-up at the longest text for which both models were timed, if any."""
    lengths = {
        at: costs for at, costs in by_length(rows).items() if {("seconds", "before"), ("seconds", "after")} <= costs.keys()
    }
    if lengths:
        longest = max(lengths)
        yield f"at {longest} tokens it is {_ratio(lengths[longest], 'seconds')[0].text} times as fast as before"


def _costs(rows: Sequence[Row]) -> Iterator[str]:
    yield from (f"{capitalized(words)}." for words in _speed(rows))
    for length, costs in by_length(rows).items():
        for (metric, model), row in costs.items():
            if metric == "failure":
                yield f"At {length} tokens the model {model} gave no figures: {row['failure']} ({row['message']})."


def _left_out(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row["metric"] == "left out":
            yield f"Left out {row['message']}." if row["message"].startswith("to ") else f"{row['message'].capitalize()}."


def _durations(rows: Sequence[Row]) -> Iterator[str]:
    spent = {row["what"]: row["value"] for row in rows if row["metric"] == "duration"}
    if {"all", "training", "measuring"} <= spent.keys():
        share = spent["measuring"] / max(spent["all"], 1e-9)
        parts = f"{duration(spent['training'])} of training, {duration(spent['measuring'])} ({share:.0%}) of measuring"
        yield f"It took {duration(spent['all'])} in all: {parts}."


def stages(rows: Sequence[Row], recipe: str) -> list[str]:
    """Returns the stages of a recipe after which quality was measured on test texts."""
    known = {row.get("stage") for row in rows if row.get("recipe") == recipe and row.get("split") == "test"}
    return [stage for stage in STAGES if stage in known and any(find(rows, at, recipe, stage) for at in qualities(rows))]


def find(rows: Sequence[Row], metric: str, recipe: str, stage: str) -> Row | None:
    """Returns the last row of a metric on test texts after a stage, or None."""
    candidates = [row for row in rows if (row["metric"], row.get("recipe"), row.get("stage")) == (metric, recipe, stage)]
    return next((row for row in reversed(candidates) if row.get("split") == "test"), None)


def stage_table(rows: Sequence[Row]) -> Table:
    """Returns the table of all quality metrics by recipe and stage."""
    metrics, lines = qualities(rows), []
    for recipe in RECIPES:
        for stage in stages(rows, recipe):
            stage_rows = [find(rows, metric, recipe, stage) for metric in metrics]
            first_row = next(row for row in stage_rows if row is not None)
            name = "the original" if stage == "original" else recipe
            steps, elapsed = first_row.get("step") or 0, first_row.get("elapsed") or 0.0
            cells = [NOTHING if row is None else Cell(_spread(row), row["value"]) for row in stage_rows]
            taken = [Cell(str(steps), steps), Cell(duration(elapsed) if elapsed else "0 s", elapsed)]
            lines.append([Cell(name), Cell(stage), *taken, *_decision(rows, metrics[0], recipe, stage), *cells])
    caption = "Test texts, with 95% intervals; the figure on development texts decides which stage is kept"
    return Table(caption, ["recipe", "stage", "steps", "training", "kept", "development", *metrics], lines)


def _decision(rows: Sequence[Row], metric: str, recipe: str, stage: str) -> list[Cell]:
    """Returns two cells: whether the stage was kept, and its figure on development texts."""
    stage_rows = [row for row in rows if (row.get("recipe"), row.get("stage")) == (recipe, stage)]
    looks = [row["value"] for row in stage_rows if row["metric"] == metric and row.get("split") == "development"]
    helped = any(row["value"] for row in stage_rows if row["metric"] == "kept")
    ended = stage == kept_stage(rows, recipe)
    kept = "" if stage == "original" else "kept" if ended else "built on" if helped else "undone"
    if not looks:
        return [Cell("kept" if ended else ""), NOTHING]
    value = (min(looks) if metric == "perplexity" else max(looks)) if helped else looks[-1]
    return [Cell(kept), Cell(short(value), value)]


def length_tables(rows: Sequence[Row]) -> list[Table]:
    """Returns a table of each metric by length, with the share of token pairs not weighed exactly."""
    tables = []
    for metric in BY_LENGTH:
        series = length_series(rows, metric)
        lines = []
        for length in sorted({at for rows_by_length in series.values() for at in rows_by_length}):
            length_rows = [rows_by_length.get(length) for rows_by_length in series.values()]
            outside = max(row["outside"] for row in length_rows if row is not None)
            cells = [NOTHING if row is None else Cell(_spread(row), row["value"]) for row in length_rows]
            lines.append([Cell(str(length), length), Cell(f"{outside:.0%}", outside), *cells])
        if lines:
            caption = f"{metric.capitalize()}: test texts, with 95% intervals"
            tables.append(Table(caption, ["tokens", "outside", *series], lines))
    return tables


def cost_table(rows: Sequence[Row]) -> Table:
    """Returns the table of time and memory before and after the conversion, with their ratios, by length."""
    lines = []
    for length, costs in by_length(rows).items():
        cells = [Cell(str(length), length)]
        for metric, words in (("seconds", duration), ("bytes", amount)):
            for model in ("before", "after"):
                row = costs.get((metric, model))
                failed = costs.get(("failure", model))
                cells.append(
                    Cell(words(row["value"]), row["value"]) if row else Cell(failed["failure"]) if failed else NOTHING
                )
            cells += _ratio(costs, metric)
        lines.append(cells)
    columns = ["tokens", "time before", "after", "times as fast", "memory before", "after", "times less"]
    return Table("One text: medians; ranges are of the worst and the best quotient of both intervals", columns, lines)


def _ratio(costs: Mapping[tuple[str, str], Row], metric: str) -> list[Cell]:
    before, after = (costs.get((metric, model)) for model in ("before", "after"))
    if before is None or after is None or not after["value"]:
        return [NOTHING]
    middle = before["value"] / after["value"]
    low, high = (
        end_of(before, upper_end) / end_of(after, lower_end) for upper_end, lower_end in (("low", "high"), ("high", "low"))
    )
    text = digits(middle) if metric == "bytes" or low == high else between(Interval(middle, low, high))
    return [Cell(text, middle)]


def _spread(row: Row) -> str:
    ends = (row.get("low"), row.get("high"))
    if None in ends or ends[0] == ends[1]:
        return _number(row)
    return f"{_number(row)} ({short(row['low'])} to {short(row['high'])})"


def _number(row: Row) -> str:
    return short(row["value"])
