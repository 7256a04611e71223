"""Verdicts on the conversions of a masked language model, and the perplexities after each stage."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from subquad.conversion.recipes import CONVERSION, EXACT, PLAIN
from subquad.conversion.recipes import WINDOW as CONTROL_WINDOW
from subquad.experiments.base import is_finished
from subquad.experiments.conversion.grid import (
    ADAPTED,
    CALIBRATED,
    CONVERSIONS,
    FAVOR,
    HYBRID,
    SCALES,
    SOFTMAX,
    WAYS,
    WINDOW,
    WORDS,
    Grid,
    Way,
    pretrained_name,
)
from subquad.report.training import value_on_test
from subquad.results import Row, Run
from subquad.statistics import Verdict, at_least, at_most, geometric_mean, geometric_ratio
from subquad.words import between

NEAR = 1.05
"""Largest ratio of two perplexities that counts as the same level."""
FAR = 2.0
"""Smallest ratio of two perplexities that counts as a failure."""
CONTROL = Way(SOFTMAX)


class Converted(NamedTuple):
    """A finished conversion of a model in one way."""

    way: Way
    seed: int
    run: Run
    rows: list[Row]  # rows of this way


def converted(folder: Path, grid: Grid) -> list[Converted]:
    """All ways of all finished conversions. Rows of the original are with those of softmax."""
    ways = []
    for way, seed in product(CONVERSIONS, grid.seeds):
        path = folder / way.name(seed)
        if is_finished(path):
            run = Run.open(path, "convert")
            rows: dict[Way, list[Row]] = {}
            for row in run.rows():
                if (row_way := _way_of(row, way)) is not None:
                    rows.setdefault(row_way, []).append(row)
            ways += [Converted(row_way, seed, run, way_rows) for row_way, way_rows in rows.items()]
    return sorted(ways, key=lambda conversion: (WAYS.index(conversion.way), conversion.seed))


def _way_of(row: Row, way: Way) -> Way | None:
    """The way that a row belongs to: that of the run or one of its controls. None for other rows."""
    if row["stage"] == "original":
        return CONTROL if way.attention == HYBRID else None  # the other runs measured the same model on the same text
    if row["stage"] == "distilled" and not way.is_matched:
        return None  # matching took no steps
    controls = {PLAIN: Way(way.attention), CONTROL_WINDOW: Way(WINDOW), EXACT: CONTROL, CONVERSION: way}
    return controls[row["recipe"]]


def nats(runs: Sequence[Converted], way: Way, stage: str = "tuned") -> dict[int, float]:
    """Logarithm of a way's perplexity on the test texts after a stage, by seed."""
    by_seed = {}
    for conversion in runs:
        value = value_on_test([row for row in conversion.rows if row["stage"] == stage], "perplexity")
        if conversion.way == way and value is not None:
            by_seed[conversion.seed] = math.log(value)
    return by_seed


def unigram(folder: Path, grid: Grid) -> tuple[dict[int, float], dict[int, float]]:
    """Logarithms of the test perplexities of the models before conversion and of a unigram model, each by seed."""
    paths = {seed: folder / pretrained_name(seed) for seed in grid.seeds}
    rows = {seed: Run.open(path, "train").rows() for seed, path in paths.items() if is_finished(path)}
    logarithms = []
    for metric in ("perplexity", "perplexity_of_unigram"):
        values = {seed: value_on_test(run_rows, metric) for seed, run_rows in rows.items()}
        logarithms.append({seed: math.log(value) for seed, value in values.items() if value is not None})
    return logarithms[0], logarithms[1]


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on each claim."""
    grid = SCALES[scale]
    if not any((folder / pretrained_name(seed)).exists() for seed in grid.seeds):
        grid = replace(grid, original="given")  # by the user: how it was trained is not known
    runs = converted(folder, grid)
    verdicts = [*learned(folder, grid), *fails(runs), *compatible(runs, grid), *recovers(runs, grid)]
    return [*verdicts, *matching_helps(runs), *calibrating_helps(runs), *rest_helps(runs)]


def learned(folder: Path, grid: Grid) -> Iterator[Verdict]:
    """Whether the model to be converted has learned something."""
    ours, theirs = unigram(folder, grid)
    ratio, low, high = geometric_ratio(ours, theirs), geometric_mean(ours), geometric_mean(theirs)
    if ratio is not None and low is not None and high is not None:
        claim = "the model that is converted has at most half of the unigram's perplexity"
        yield Verdict(claim, at_most(ratio, 0.5), f"{between(ratio, '.3f')} times: {low.value:.1f} against {high.value:.1f}")


def fails(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether FAVOR+ in softmax's place fails as published, with nothing trained and fine-tuned."""
    before = nats(runs, CONTROL, "original")
    for stage, beside, what in (
        ("swapped", before, "nothing trained: perplexity is at least {:g} times the original's (the published failure)"),
        ("tuned", nats(runs, CONTROL), "fine-tuned: perplexity is still at least {:g} times that of softmax fine-tuned"),
    ):
        favor = nats(runs, Way(FAVOR), stage)
        ratio, ours, theirs = geometric_ratio(favor, beside), geometric_mean(favor), geometric_mean(beside)
        if ratio is not None and ours is not None and theirs is not None:
            figures = f"{between(ratio, '.3f')} times: {ours.value:.1f} against {theirs.value:.1f}"
            yield Verdict(f"{WORDS[FAVOR]} in softmax's place, {what.format(FAR)}", at_least(ratio, FAR), figures)


def compatible(runs: Sequence[Converted], grid: Grid) -> Iterator[Verdict]:
    """Whether FAVOR+ reaches the original's perplexity by fine-tuning, and what share of the original's training it takes.

    Choromanski et al. 2021 call it fully compatible with trained Transformers, with minor fine-tuning.
    """
    ours, theirs = nats(runs, Way(FAVOR)), nats(runs, CONTROL, "original")
    ratio, tuned, before = geometric_ratio(ours, theirs), geometric_mean(ours), geometric_mean(theirs)
    if ratio is not None and tuned is not None and before is not None:
        claim = f"{WORDS[FAVOR]} suits a trained model: fine-tuning brings perplexity within {NEAR:g} times the original's"
        figures = f"{between(ratio, '.3f')} times: {tuned.value:.1f} against {before.value:.1f}, at the cost of {grid.cost}"
        yield Verdict(claim, at_most(ratio, NEAR), figures)


def recovers(runs: Sequence[Converted], grid: Grid) -> Iterator[Verdict]:
    """Whether a way reaches the perplexity of softmax that is fine-tuned for as many steps on the same batches."""
    for way in WAYS[1:]:
        ratio = geometric_ratio(nats(runs, way), nats(runs, CONTROL))
        swapped = geometric_mean(nats(runs, way, "swapped"))
        ours, theirs = geometric_mean(nats(runs, way)), geometric_mean(nats(runs, CONTROL))
        if ratio is not None and ours is not None and theirs is not None:
            does = "matching and fine-tuning bring" if way.is_matched else "fine-tuning alone brings"
            claim = f"{WORDS[way.attention]}: {does} perplexity within {NEAR:g} times that of softmax fine-tuned as long"
            since = f", from {swapped.value:.1f}" if swapped is not None else ""
            figures = f"{between(ratio, '.3f')} times: {ours.value:.1f} against {theirs.value:.1f}{since}"
            yield Verdict(claim, at_most(ratio, NEAR), f"{figures}, in {grid.total_steps} steps")


def matching_helps(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether matching layers first gives a lower perplexity than fine-tuning alone."""
    for way in WAYS:
        ratio = geometric_ratio(nats(runs, way), nats(runs, Way(way.attention))) if way.is_matched else None
        if ratio is not None:
            claim = f"{WORDS[way.attention]}: matched layer by layer first, perplexity ends lower than by fine-tuning alone"
            yield Verdict(claim, at_most(ratio, 1.0), f"{between(ratio, '.3f')} times, in as many steps")


def calibrating_helps(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether FAVOR+ is better with calibrated projections, before and after training."""
    before = geometric_ratio(nats(runs, Way(CALIBRATED), "calibrated"), nats(runs, Way(CALIBRATED), "swapped"))
    if before is not None:
        claim = "calibrated to the data, FAVOR+ put in softmax's place has a lower perplexity, nothing trained"
        yield Verdict(claim, at_most(before, 1.0), f"{between(before, '.3f')} times")
    for way in (Way(CALIBRATED), Way(ADAPTED), Way(ADAPTED, is_matched=True)):
        ratio = geometric_ratio(nats(runs, way), nats(runs, Way(FAVOR)))
        if ratio is not None:
            claim = f"{way.words}: perplexity ends lower than with fixed projections"
            yield Verdict(claim, at_most(ratio, 1.0), f"{between(ratio, '.3f')} times")


def rest_helps(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether the hybrid is better than its window alone."""
    for way in (Way(HYBRID), Way(HYBRID, is_matched=True)):
        ratio = geometric_ratio(nats(runs, way), nats(runs, Way(WINDOW)))
        if ratio is not None:
            claim = f"{way.words}: perplexity ends lower than with its window alone"
            yield Verdict(claim, at_most(ratio, 1.0), f"{between(ratio, '.3f')} times")
