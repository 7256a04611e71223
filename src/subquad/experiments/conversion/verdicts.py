"""What came out of the conversions of a masked language model: perplexities stage by stage, and a verdict on each claim."""

import math
from collections.abc import Iterator, Sequence
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
"""Largest multiple of another's perplexity that counts as its level."""
FAR = 2.0
"""Smallest multiple of another's perplexity that counts as a failure."""
CONTROL = Way(SOFTMAX)


class Converted(NamedTuple):
    """A finished way of converting a model."""

    way: Way
    seed: int
    run: Run
    rows: list[Row]  # rows of this way


def converted(folder: Path, grid: Grid) -> list[Converted]:
    """Every way of every finished conversion. Rows of the original are among softmax's."""
    found = []
    for way, seed in product(CONVERSIONS, grid.seeds):
        path = folder / way.name(seed)
        if is_finished(path):
            run = Run.open(path, "convert")
            rows: dict[Way, list[Row]] = {}
            for row in run.rows():
                if (own := _way_of(row, way)) is not None:
                    rows.setdefault(own, []).append(row)
            found += [Converted(own, seed, run, some) for own, some in rows.items()]
    return sorted(found, key=lambda one: (WAYS.index(one.way), one.seed))


def _way_of(row: Row, way: Way) -> Way | None:
    """The way that a row belongs to: that of the run, or one of its controls. None for other rows."""
    if row["stage"] == "original":
        return CONTROL if way.attention == HYBRID else None  # the other runs measured the same model on the same text
    if row["stage"] == "distilled" and not way.is_matched:
        return None  # which took no steps
    controls = {PLAIN: Way(way.attention), CONTROL_WINDOW: Way(WINDOW), EXACT: CONTROL, CONVERSION: way}
    return controls[row["recipe"]]


def nats(runs: Sequence[Converted], way: Way, stage: str = "tuned") -> dict[int, float]:
    """The logarithm of a way's perplexity on the test after a stage, by seed."""
    found = {}
    for one in runs:
        value = value_on_test([row for row in one.rows if row["stage"] == stage], "perplexity")
        if one.way == way and value is not None:
            found[one.seed] = math.log(value)
    return found


def unigram(folder: Path, grid: Grid) -> tuple[dict[int, float], dict[int, float]]:
    """Logarithms of the test perplexity of the models before conversion, and of the unigram's, each by seed."""
    paths = {seed: folder / pretrained_name(seed) for seed in grid.seeds}
    rows = {seed: Run.open(path, "train").rows() for seed, path in paths.items() if is_finished(path)}
    each = []
    for metric in ("perplexity", "perplexity_of_unigram"):
        found = {seed: value_on_test(own, metric) for seed, own in rows.items()}
        each.append({seed: math.log(value) for seed, value in found.items() if value is not None})
    return each[0], each[1]


def judge(folder: Path, scale: str) -> list[Verdict]:
    """A verdict on each claim."""
    grid = SCALES[scale]
    runs = converted(folder, grid)
    found = [*learned(folder, grid), *fails(runs), *recovers(runs, grid)]
    return [*found, *matching_helps(runs), *calibrating_helps(runs), *rest_helps(runs)]


def learned(folder: Path, grid: Grid) -> Iterator[Verdict]:
    """Whether the model that is converted has learned something."""
    ours, theirs = unigram(folder, grid)
    found, low, high = geometric_ratio(ours, theirs), geometric_mean(ours), geometric_mean(theirs)
    if found is not None and low is not None and high is not None:
        claim = "the model that is converted has at most half of the unigram's perplexity"
        yield Verdict(claim, at_most(found, 0.5), f"{between(found, '.3f')} times: {low.value:.1f} against {high.value:.1f}")


def fails(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether FAVOR+ in softmax's place fails as published, with nothing trained and fine-tuned."""
    before = nats(runs, CONTROL, "original")
    for stage, beside, what in (
        ("swapped", before, "nothing trained: perplexity is at least {:g} times the original's (the published failure)"),
        ("tuned", nats(runs, CONTROL), "fine-tuned: perplexity is still at least {:g} times that of softmax fine-tuned"),
    ):
        own = nats(runs, Way(FAVOR), stage)
        found, ours, theirs = geometric_ratio(own, beside), geometric_mean(own), geometric_mean(beside)
        if found is not None and ours is not None and theirs is not None:
            figures = f"{between(found, '.3f')} times: {ours.value:.1f} against {theirs.value:.1f}"
            yield Verdict(f"{WORDS[FAVOR]} in softmax's place, {what.format(FAR)}", at_least(found, FAR), figures)


def recovers(runs: Sequence[Converted], grid: Grid) -> Iterator[Verdict]:
    """Whether a way reaches the perplexity of softmax that is fine-tuned for as many steps on the same batches."""
    for way in WAYS[1:]:
        found = geometric_ratio(nats(runs, way), nats(runs, CONTROL))
        swapped = geometric_mean(nats(runs, way, "swapped"))
        ours, theirs = geometric_mean(nats(runs, way)), geometric_mean(nats(runs, CONTROL))
        if found is not None and ours is not None and theirs is not None:
            does = "matching and fine-tuning bring" if way.is_matched else "fine-tuning alone brings"
            claim = f"{WORDS[way.attention]}: {does} perplexity within {NEAR:g} times that of softmax fine-tuned as long"
            since = f", from {swapped.value:.1f}" if swapped is not None else ""
            figures = f"{between(found, '.3f')} times: {ours.value:.1f} against {theirs.value:.1f}{since}"
            yield Verdict(claim, at_most(found, NEAR), f"{figures}, in {grid.total_steps} steps")


def matching_helps(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether matching layers first gives a lower perplexity than fine-tuning alone."""
    for way in WAYS:
        found = geometric_ratio(nats(runs, way), nats(runs, Way(way.attention))) if way.is_matched else None
        if found is not None:
            claim = f"{WORDS[way.attention]}: matched layer by layer first, perplexity ends lower than by fine-tuning alone"
            yield Verdict(claim, at_most(found, 1.0), f"{between(found, '.3f')} times, in as many steps")


def calibrating_helps(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether FAVOR+ is better with calibrated projections, before and after training."""
    before = geometric_ratio(nats(runs, Way(CALIBRATED), "calibrated"), nats(runs, Way(CALIBRATED), "swapped"))
    if before is not None:
        claim = "calibrated to the data, FAVOR+ put in softmax's place has a lower perplexity, nothing trained"
        yield Verdict(claim, at_most(before, 1.0), f"{between(before, '.3f')} times")
    for way in (Way(CALIBRATED), Way(ADAPTED), Way(ADAPTED, is_matched=True)):
        found = geometric_ratio(nats(runs, way), nats(runs, Way(FAVOR)))
        if found is not None:
            claim = f"{way.words}: perplexity ends lower than with fixed projections"
            yield Verdict(claim, at_most(found, 1.0), f"{between(found, '.3f')} times")


def rest_helps(runs: Sequence[Converted]) -> Iterator[Verdict]:
    """Whether the hybrid is better than its window alone."""
    for way in (Way(HYBRID), Way(HYBRID, is_matched=True)):
        found = geometric_ratio(nats(runs, way), nats(runs, Way(WINDOW)))
        if found is not None:
            claim = f"{way.words}: perplexity ends lower than with its window alone"
            yield Verdict(claim, at_most(found, 1.0), f"{between(found, '.3f')} times")
