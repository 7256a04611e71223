"""The smallest number of slots with a given error or perplexity, by length, and how it grows with the length."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from subquad.experiments.linformer.errors import BEST, FITTED, OUTPUT_ERROR
from subquad.experiments.linformer.grid import USUAL, Grid
from subquad.experiments.linformer.runs import Pretrained, nats
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_most, geometric_mean, mean_over_seeds, paired_gaps
from subquad.words import between

ERRORS = (0.5, 0.25)
"""Relative errors of a layer's output for which slots are counted."""
TIMES = 1.5
"""Ratio to softmax's perplexity for which slots are counted. Closer ones take more slots than were tried."""
FEWEST_LENGTHS = 3
"""Smallest number of lengths for a law of growth."""
FLAT = 0.1
"""Largest exponent of the growth of slots with the length that counts as none: a tenth of that in proportion."""
BEYOND = 2.0
"""Largest ratio of Linformer's error to the best one of the same rank that counts as close to it."""

Needed = Mapping[int, Mapping[int, float]]
"""Number of slots by seed, then by length."""


class Law(NamedTuple):
    """Growth of the number of slots k with the length n: fits by seed, their means over seeds with intervals."""

    lengths: tuple[int, ...]
    per_doubling: Interval
    """Slope b of k = a + b log2 n: slots that each doubling of the length adds."""
    per_token: Interval
    """Slope b of k = a + b n: slots that each token adds."""
    exponent: Interval
    """Exponent b of k = a n^b: 0 if k does not depend on n, 1 if it is proportional."""
    misfit_ratio: Interval
    """Distance of the slots from the line in log n, as a multiple of their distance from the line in n."""


def smallest(by_slots: Mapping[int, float], limit: float) -> float | None:
    """The number of slots at which a value falls to a limit, interpolated in log k. None if not within those tried."""
    tried = sorted(by_slots)
    if tried[0] == 1 and by_slots[1] <= limit:
        return 1.0
    for k, more in pairwise(tried):
        above, below = by_slots[k], by_slots[more]
        if above > limit >= below:
            return float(k * (more / k) ** ((above - limit) / (above - below)))
    return None


def error_slots(rows: Sequence[Row], way: str, limit: float) -> dict[int, dict[int, float]]:
    """Slots with which the output's error, the mean over layers, is at most `limit`, by seed and length."""
    errors: dict[tuple[int, int], dict[int, list[float]]] = {}
    for row in rows:
        if row["metric"] == OUTPUT_ERROR and row["way"] == way:
            errors.setdefault((row["seed"], row["length"]), {}).setdefault(row["k"], []).append(row["value"])
    return _by_seed({key: {k: float(np.mean(layers)) for k, layers in by_k.items()} for key, by_k in errors.items()}, limit)


def perplexity_slots(runs: Sequence[Pretrained], grid: Grid, limit: float = TIMES) -> dict[int, dict[int, float]]:
    """Slots with which Linformer's perplexity is at most `limit` times softmax's, by seed and length."""
    ratios: dict[tuple[int, int], dict[int, float]] = {}
    for variant in grid.variants:
        if variant.k and variant.sharing == USUAL:
            for seed, gap in paired_gaps(nats(runs, variant), nats(runs, variant.baseline)).items():
                ratios.setdefault((seed, variant.length), {})[variant.k] = math.exp(gap)
    return _by_seed(ratios, limit)


def _by_seed(values: Mapping[tuple[int, int], Mapping[int, float]], limit: float) -> dict[int, dict[int, float]]:
    needed: dict[int, dict[int, float]] = {}
    for (seed, length), by_slots in sorted(values.items()):
        slots = smallest(by_slots, limit)
        needed.setdefault(seed, {}).update({} if slots is None else {length: slots})
    return needed


def over_seeds(needed: Needed) -> dict[int, Interval]:
    """Geometric mean over seeds of the slots at each length that all seeds have."""
    lengths = sorted(set.intersection(*(set(by_length) for by_length in needed.values()))) if needed else []
    means = {
        length: geometric_mean({seed: math.log(by_length[length]) for seed, by_length in needed.items()})
        for length in lengths
    }
    return {length: mean for length, mean in means.items() if mean is not None}


def law(needed: Needed) -> Law | None:
    """Fits the growth of slots with the length for each seed. None for fewer than three lengths that all seeds have."""
    lengths = tuple(over_seeds(needed))
    if len(lengths) < FEWEST_LENGTHS:
        return None
    n = np.array(lengths, dtype=float)
    slopes, ratios = [], {}
    for seed, by_length in needed.items():
        k = np.array([by_length[length] for length in lengths])
        (log_slope, off_log), (slope, off_n) = (_line(x, k) for x in (np.log2(n), n))
        slopes.append((log_slope, slope, _line(np.log(n), np.log(k))[0]))
        ratios[seed] = math.log(max(off_log, np.finfo(float).tiny)) - math.log(max(off_n, np.finfo(float).tiny))
    ratio = geometric_mean(ratios)
    assert ratio is not None  # lengths are common to some seeds
    in_log, in_n, exponent = (mean_over_seeds(values) for values in zip(*slopes, strict=True))
    return Law(lengths, in_log, in_n, exponent, ratio)


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope of the least-squares line, and the root mean square of its residuals."""
    coefficients = np.polyfit(x, y, 1)
    return float(coefficients[0]), float(np.sqrt(np.mean((y - np.polyval(coefficients, x)) ** 2)))


def aims(rows: Sequence[Row], runs: Sequence[Pretrained], grid: Grid) -> Mapping[str, Needed]:
    """Slots by seed and length for each aim: an error by the best matrix or by Linformer, and a perplexity."""
    ways = {"softmax, best rank k": BEST, "linformer, fitted": FITTED}
    by_error = {f"{name}: error {error:g}": error_slots(rows, way, error) for name, way in ways.items() for error in ERRORS}
    return by_error | {f"linformer, trained: {TIMES:g} times softmax's perplexity": perplexity_slots(runs, grid)}


def judge_slots(rows: Sequence[Row], runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Yields verdicts on the growth of slots with the length, by error and by perplexity."""
    for aim, needed in aims(rows, runs, grid).items():
        yield from grows(aim, needed)
    yield from reference(rows)


def grows(aim: str, needed: Needed) -> Iterator[Verdict]:
    """Whether as many slots do at any length, and whether they grow with log n rather than with n."""
    slots = over_seeds(needed)
    if not slots:
        return
    counts = ", ".join(f"{between(interval)} at n={length}" for length, interval in slots.items())
    same, in_log = (f"{aim}: {claim}" for claim in ("as many slots at any length", "slots grow with log n rather than n"))
    growth = law(needed)
    if growth is None:
        yield Verdict(same, None, f"k = {counts}; other lengths were not measured, or need more slots than were tried")
        return
    yield Verdict(same, at_most(growth.exponent, FLAT), f"k = {counts}: as n to the power of {between(growth.exponent)}")
    lines = (
        f"{between(growth.per_doubling, '.1f')} more for each doubling, or {between(growth.per_token, '.3f')} for each token"
    )
    misfit = f"the line in log n is {between(growth.misfit_ratio)} times as far off as the line in n"
    yield Verdict(in_log, at_most(growth.misfit_ratio, 1.0), f"{lines}; {misfit}")


def reference(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Whether Linformer, fitted, comes close to the best matrix of the same rank, a quarter of the longest length."""
    lengths = [row["length"] for row in rows if row["metric"] == OUTPUT_ERROR]
    if not lengths:
        return
    length = max(lengths)
    ours, best = (mean_errors(rows, way, length, length // 4) for way in (FITTED, BEST))
    ratio = geometric_mean({seed: math.log(ours[seed] / best[seed]) for seed in ours.keys() & best.keys() if best[seed]})
    if ratio is not None:
        claim = (
            f"n={length}, k={length // 4}: Linformer's error, fitted, is at most {BEYOND:g} times that of the best rank k"
        )
        pair = ", ".join(between(mean_over_seeds(list(by_seed.values())), ".3f") for by_seed in (ours, best))
        yield Verdict(claim, at_most(ratio, BEYOND), f"{between(ratio)} times: {pair}")


def mean_errors(rows: Sequence[Row], way: str, length: int, k: int) -> dict[int, float]:
    """Error of the output with k slots by seed: the mean over layers."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if row["metric"] == OUTPUT_ERROR and (row["way"], row["length"], row["k"]) == (way, length, k):
            by_seed.setdefault(row["seed"], []).append(row["value"])
    return {seed: float(np.mean(values)) for seed, values in by_seed.items()}
