"""The page of the conversions of a masked language model: perplexity against steps, and by way and stage."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import altair as alt

from subquad.experiments.conversion.grid import FAVOR, SCALES, WAYS, WINDOW, Grid, Way
from subquad.experiments.conversion.verdicts import CONTROL, Converted, converted, judge, nats
from subquad.report.curves import curves
from subquad.report.page import Chapter, Fold, Page, Picture, paragraph, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row
from subquad.statistics import Interval, geometric_mean, geometric_ratio
from subquad.words import between, duration

TITLE = "Another attention in a trained masked language model"
STAGES = {"swapped": "at first", "calibrated": "calibrated", "distilled": "matched", "tuned": "fine-tuned"}
CHARTS: Mapping[str, tuple[Way, ...]] = {
    "alone": tuple(way for way in WAYS if not way.is_matched and way.attention != WINDOW),
    "matched": tuple(way for way in WAYS if way.is_matched or way.attention == WINDOW or way == CONTROL),
}
CAPTIONS = {
    "alone": "Fine-tuning alone, by step",
    "matched": "Matched layer by layer first, by step; beside them the window alone and softmax, which are only fine-tuned",
}


DEVELOPMENT_NOTE = "On development texts, by which the best model of each stage is chosen; the table has test texts."


PUBLISHED_NOTE = (
    "Dmitriev et al. 2020 compare the perplexity of DistilBERT with FAVOR+, as it is fine-tuned, with that of the original. "
    "They print no figures. The first chart has the same two curves from the runs of this folder."
)
PUBLISHED = {
    Way(FAVOR): '"much higher in comparison with the original model"',
    CONTROL: "the level that FAVOR+ does not reach",
}
"""What is published of each curve."""


def conversion_page(folder: Path, scale: str) -> Page:
    """Returns the page: perplexity by step of all ways, those that are only fine-tuned first."""
    grid = SCALES[scale]
    runs, verdicts = converted(folder, grid), judge(folder, scale)
    pictures = [Picture(name, CAPTIONS[name], chart) for name, chart in way_charts(runs).items()]
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}; after Dmitriev et al. 2020, who put FAVOR+ into DistilBERT. Every training and every "
        "conversion is a run in the same folder; subquad report makes a page of it.",
        picture=pictures[0] if pictures else None,
        chapters=[Chapter("Perplexity by step", pictures[1:], DEVELOPMENT_NOTE)] if pictures[1:] else [],
        folds=[
            verdict_fold(verdicts),
            Fold("Beside the published curves", [paragraph(PUBLISHED_NOTE), table(published_table(runs))]),
            Fold("Perplexity after each stage", [paragraph(_words(grid)), table(way_table(runs))]),
        ],
    )


def _words(grid: Grid) -> str:
    return (
        "Perplexity of tokens that were taken out of test texts: geometric means over seeds with their 95% intervals. "
        "At first: the attention is put in the place of softmax, nothing trained. Calibrated: FAVOR+'s directions are set "
        "by the means and covariances of queries and keys. Matched: each layer's attention has learned, by itself, what "
        f"softmax does, in {grid.match_steps} steps. Fine-tuned: all but the embeddings has learned the task itself, in "
        f"{grid.tune_steps} steps after matching, in {grid.total_steps} without; softmax, too, on the same batches."
    )


def way_table(runs: Sequence[Converted]) -> Table:
    """Perplexity of each way after each stage, and its final ratio to softmax."""
    rows = []
    original = nats(runs, CONTROL, "original")
    if original:
        rows.append([Cell("the original"), _count(original), _cell(geometric_mean(original), ".1f"), *[NOTHING] * 5])
    for way in WAYS:
        if last := nats(runs, way):
            stages = [_cell(geometric_mean(nats(runs, way, stage)), ".1f") for stage in STAGES]
            beside = NOTHING if way == CONTROL else _cell(geometric_ratio(last, nats(runs, CONTROL)), ".3f")
            rows.append([Cell(way.words), _count(last), *stages, beside, _seconds(runs, way)])
    columns = ["recipe", "seeds", *STAGES.values(), "times softmax fine-tuned", "training"]
    return Table("Perplexity after each stage", columns, rows)


def published_table(runs: Sequence[Converted]) -> Table:
    """The two published curves in words, beside where the same curves begin and end here, and the cost of a step."""
    rows = []
    for way, words in PUBLISHED.items():
        start = geometric_mean(nats(runs, way, "swapped"))
        ends = [_cell(interval, ".1f") for interval in (start, geometric_mean(nats(runs, way)))]
        rows.append([Cell(way.words), Cell(words), *ends, _step_seconds(runs, way)])
    columns = ["curve", "published", "here, before the first step", "here, after the last", "seconds per step"]
    return Table("Perplexity on test texts", columns, rows)


def _step_seconds(runs: Sequence[Converted], way: Way) -> Cell:
    """Mean duration of a training step over all runs of a way."""
    last = [max(conversion.rows, key=lambda row: row["step"]) for conversion in runs if conversion.way == way]
    steps, seconds = sum(row["step"] for row in last), sum(row["elapsed"] for row in last)
    return NOTHING if not steps else Cell(f"{seconds / steps:.2g}", seconds / steps)


def _count(seeds: Mapping[int, float]) -> Cell:
    return Cell(str(len(seeds)), len(seeds))


def _cell(interval: Interval | None, form: str) -> Cell:
    return NOTHING if interval is None else Cell(between(interval, form), interval.value)


def _seconds(runs: Sequence[Converted], way: Way) -> Cell:
    """Mean duration over seeds."""
    durations = [max(row["elapsed"] for row in conversion.rows) for conversion in runs if conversion.way == way]
    return Cell(duration(sum(durations) / len(durations)), sum(durations) / len(durations))


def way_charts(runs: Sequence[Converted]) -> dict[str, alt.LayerChart]:
    """Perplexity by step, with as many ways in a chart as there are colours."""
    by_chart = {name: [row for way in ways for row in points(runs, way)] for name, ways in CHARTS.items()}
    return {name: curves(rows, "perplexity", log=True) for name, rows in by_chart.items() if rows}


def points(runs: Sequence[Converted], way: Way) -> Iterator[Row]:
    """Perplexity on development texts by step, from the swapped model on."""
    for conversion in runs:
        if conversion.way == way:
            for row in conversion.rows:
                is_watched = row["metric"] == "perplexity" and row["split"] == "development"
                if is_watched and row["stage"] != "original":
                    about = {"label": way.words, "run": f"{way.words}, {conversion.seed}"}
                    yield {**about, "step": row["step"], "value": row["value"]}
