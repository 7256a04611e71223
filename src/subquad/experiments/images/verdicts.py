"""Verdicts on writing images: how well, and how many a second (Katharopoulos et al. 2020, section 4.2)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from subquad.experiments.base import Trial, finished_rows, part_rows
from subquad.experiments.images.grid import BASELINE, SCALES, Written
from subquad.experiments.images.throughput import CACHED, LINEAR, METHODS, RECOMPUTED
from subquad.report.training import value_on_test
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_least, at_most, geometric_ratio
from subquad.words import between

METRIC = "bits_per_dimension"
NEAR = 1.04
"""Largest ratio to softmax's bits per dimension that counts as nearly as good: the paper has .644 to .621 on MNIST."""


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on the quality of each attention and on each ratio of speeds."""
    grid = SCALES[scale]
    trials = list(grid.trials())
    rows = part_rows(folder / "throughput", "throughput") or []
    speeds = [verdict for written in grid.written for verdict in faster(rows, written)]
    return [*speeds, *as_good(finished_rows(folder, trials), trials)]


def faster(rows: Sequence[Row], written: Written) -> Iterator[Verdict]:
    """Whether linear attention writes as many times more images a second as published."""
    known = {(row["metric"], row["method"]): row for row in rows if row["values"] == written.values and "batch" not in row}
    published = {RECOMPUTED: written.published[LINEAR], CACHED: written.published[LINEAR] / written.published[CACHED]}
    for other, times in published.items():
        claim = f"linear writes images of {written.values} values {times:.0f} times as fast as {METHODS[other]}"
        row = known.get((f"times_{other}", LINEAR))
        if row is None:
            yield Verdict(claim, None, "not measured yet")
        else:
            ratio = Interval.of_row(row)
            yield Verdict(claim, at_least(ratio, times), f"{between(ratio)} times; {_rates(rows, written)}")


def _rates(rows: Sequence[Row], written: Written) -> str:
    """Images a second of each method with its best batch, in words."""
    best = best_rates(rows, written.values)
    rates = [f"{METHODS[method]} {row['value']:.3g} (batch {row['batch']})" for method, row in best.items()]
    return f"images a second: {', '.join(rates)}"


def best_rates(rows: Sequence[Row], values: int) -> dict[str, Row]:
    """The row of each method with the batch that gives the most images a second."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["metric"] == "images_per_second" and row["values"] == values:
            method = row["method"]
            best[method] = row if method not in best or row["value"] > best[method]["value"] else best[method]
    return best


def tested(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> dict[str, dict[int, float]]:
    """Bits per dimension on the test split by attention and seed, for finished trials."""
    by_name: dict[str, dict[int, float]] = {}
    for trial in trials:
        if (value := value_on_test(trained.get(trial.name, ()), METRIC)) is not None:
            by_name.setdefault(trial.variant, {})[trial.seed] = value
    return by_name


def as_good(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Iterator[Verdict]:
    """Whether each attention comes near to softmax's bits per dimension."""
    bits = {
        name: {seed: float(np.log(value)) for seed, value in seeds.items()}
        for name, seeds in tested(trained, trials).items()
    }
    for name in dict.fromkeys(trial.variant for trial in trials if trial.variant != BASELINE):
        claim = f"{name} needs at most {NEAR} times softmax's bits per dimension"
        ratio = geometric_ratio(bits.get(name, {}), bits.get(BASELINE, {}))
        wanted, done = sum(trial.variant == name for trial in trials), len(bits.get(name, {}))
        if ratio is None or done < wanted:
            yield Verdict(claim, None, f"{done} of {wanted} runs done")
        else:
            yield Verdict(claim, at_most(ratio, NEAR), f"{between(ratio, '.3f')} times, geometric mean over seeds")
