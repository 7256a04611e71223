"""Verdicts on speech: the order of the error rates, and who is faster (Katharopoulos et al. 2020, section 4.3)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.experiments.base import Trial, finished_rows, part_rows
from subquad.experiments.speech.grid import BASELINE, SCALES
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_most, is_positive, paired_difference, paired_ratio
from subquad.words import between

METRIC = "error_rate"
GOOD = 0.35
"""Largest error rate that counts as having learned to recognise speech."""
NEAR = 0.02
"""Largest difference of linear attention's error rate to softmax's that counts as near."""
ORDER = (("softmax", "linear"), ("linear", "lsh"), ("linear", "lstm"))
"""Pairs of encoders of which the paper finds that the first has fewer errors."""


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns verdicts on error rates, their order and the cost of a training step."""
    trials = list(SCALES[scale].trials())
    results = results_on_test(finished_rows(folder, trials), trials)
    rows = part_rows(folder / "costs", "costs") or []
    return [*learned(results), *near(results), *ordered(results), *faster(rows)]


class Recognition(NamedTuple):
    """Results of a training on the test recordings."""

    rate: Interval
    """An error rate, with an interval over recordings."""
    parts: Float[ndarray, "recordings 2"]
    """Edits of a greedy reading and units, for each recording; empty in runs of versions that did not store them."""


Results = Mapping[str, Mapping[int, Recognition]]
"""Results on the test recordings by encoder and seed."""


def results_on_test(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial], metric: str = METRIC) -> Results:
    """Results of the finished trials on the test recordings, with the error rate that is called `metric`."""
    results: dict[str, dict[int, Recognition]] = {}
    for trial in trials:
        rows = [row for row in trained.get(trial.name, ()) if row.get("split") == "test"]
        rates = [Interval.of_row(row) for row in rows if row["metric"] == metric]
        by_recording = {row["recording"]: (row["value"], row["units"]) for row in rows if row["metric"] == "recording_edits"}
        if rates:
            parts = np.array([by_recording[number] for number in sorted(by_recording)], float).reshape(-1, 2)
            results.setdefault(trial.variant, {})[trial.seed] = Recognition(rates[-1], parts)
    return results


def said(results: Mapping[int, Recognition]) -> str:
    """Error rates of each seed in words."""
    return ", ".join(between(each.rate, ".1%") for each in results.values()) or "not done"


def learned(results: Results) -> Iterator[Verdict]:
    """Whether softmax's error rate is low enough for a comparison to mean anything."""
    claim, values = f"softmax's error rate is below {GOOD:.0%}", results.get(BASELINE, {})
    held = [at_most(each.rate, GOOD) for each in values.values()]
    yield Verdict(claim, None if not held or None in held else all(held), said(values))


def gap(results: Results, first: str, second: str) -> Interval | None:
    """The error rate of the first encoder minus that of the second, paired over seeds; with one seed, over recordings."""
    ours, theirs = results.get(first, {}), results.get(second, {})
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) > 1:
        return paired_difference(*({seed: each[seed].rate.value for seed in seeds} for each in (ours, theirs)))
    if not seeds or not len(ours[seeds[0]].parts) or len(ours[seeds[0]].parts) != len(theirs[seeds[0]].parts):
        return None
    return paired_ratio(ours[seeds[0]].parts, theirs[seeds[0]].parts)


def near(results: Results) -> Iterator[Verdict]:
    """Whether linear attention's error rate is within two points of softmax's."""
    claim, difference = (
        f"linear's error rate is at most {100 * NEAR:.0f} points above softmax's",
        gap(results, "linear", BASELINE),
    )
    if difference is None:
        yield Verdict(claim, None, "not done")
    else:
        yield Verdict(claim, at_most(difference, NEAR), _figures(results, "linear", BASELINE, difference))


def ordered(results: Results) -> Iterator[Verdict]:
    """Whether error rates are in the order of the paper."""
    for better, worse in ORDER:
        claim, difference = f"{better} has fewer errors than {worse}", gap(results, worse, better)
        if difference is None:
            yield Verdict(claim, None, "not done")
        else:
            yield Verdict(claim, is_positive(difference), _figures(results, worse, better, difference))


def _figures(results: Results, first: str, second: str, difference: Interval) -> str:
    points = Interval(*(100 * end for end in difference))
    return f"{first} {said(results[first])}, {second} {said(results[second])}; difference {between(points, '+.1f')} points"


def faster(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Whether a training step of linear attention on the longest sound is faster than that of the others."""
    if not rows:
        return
    longest = max(row["sound_seconds"] for row in rows)
    times = {
        row["encoder"]: Interval.of_row(row)
        for row in rows
        if row["metric"] == "times_softmax" and row["work"] == "training" and row["sound_seconds"] == longest
    }
    for name in [name for name in times if name != "linear"]:
        claim = f"a training step on {longest} s of sound is faster with linear than with {name}"
        theirs, ours = times[name], times["linear"]
        held = True if ours.high < theirs.low else False if ours.low > theirs.high else None
        yield Verdict(claim, held, f"{between(ours)} and {between(theirs)} times softmax's time")
