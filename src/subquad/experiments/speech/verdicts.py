"""Verdicts on speech: the order of the error rates, and who is faster (Katharopoulos et al. 2020, section 4.3)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import Trial, finished_rows, part_rows
from subquad.experiments.speech.grid import BASELINE, SCALES
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_most, is_positive, paired_difference
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
    rates = rates_on_test(finished_rows(folder, trials), trials)
    rows = part_rows(folder / "costs", "costs") or []
    return [*learned(rates), *near(rates), *ordered(rates), *faster(rows)]


Rates = Mapping[str, Mapping[int, Interval]]
"""Error rates on the test split, with their intervals over recordings, by encoder and seed."""


def rates_on_test(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial], metric: str = METRIC) -> Rates:
    """Error rates of the finished trials on the test split."""
    rates: dict[str, dict[int, Interval]] = {}
    for trial in trials:
        rows = [row for row in trained.get(trial.name, ()) if row["metric"] == metric and row.get("split") == "test"]
        if rows:
            rates.setdefault(trial.variant, {})[trial.seed] = Interval.of_row(rows[-1])
    return rates


def said(rates: Mapping[int, Interval]) -> str:
    """Error rates of each seed in words."""
    return ", ".join(between(rate, ".1%") for rate in rates.values()) or "not done"


def learned(rates: Rates) -> Iterator[Verdict]:
    """Whether softmax's error rate is low enough for a comparison to mean anything."""
    claim, values = f"softmax's error rate is below {GOOD:.0%}", rates.get(BASELINE, {})
    held = [at_most(rate, GOOD) for rate in values.values()]
    yield Verdict(claim, None if not held or None in held else all(held), said(values))


def gap(rates: Rates, first: str, second: str) -> Interval | None:
    """The error rate of the first encoder minus that of the second, over seeds; with one seed, over recordings.

    With one seed the interval joins those of both rates as if the recordings were different ones, which makes it wide.
    """
    ours, theirs = rates.get(first, {}), rates.get(second, {})
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) > 1:
        return paired_difference({seed: ours[seed].value for seed in seeds}, {seed: theirs[seed].value for seed in seeds})
    if not seeds:
        return None
    one, other = ours[seeds[0]], theirs[seeds[0]]
    middle = one.value - other.value
    below = ((one.value - one.low) ** 2 + (other.high - other.value) ** 2) ** 0.5
    above = ((one.high - one.value) ** 2 + (other.value - other.low) ** 2) ** 0.5
    return Interval(middle, middle - below, middle + above)


def near(rates: Rates) -> Iterator[Verdict]:
    """Whether linear attention's error rate is within two points of softmax's."""
    claim, difference = (
        f"linear's error rate is at most {100 * NEAR:.0f} points above softmax's",
        gap(rates, "linear", BASELINE),
    )
    if difference is None:
        yield Verdict(claim, None, "not done")
    else:
        yield Verdict(claim, at_most(difference, NEAR), _figures(rates, "linear", BASELINE, difference))


def ordered(rates: Rates) -> Iterator[Verdict]:
    """Whether error rates are in the order of the paper."""
    for better, worse in ORDER:
        claim, difference = f"{better} has fewer errors than {worse}", gap(rates, worse, better)
        if difference is None:
            yield Verdict(claim, None, "not done")
        else:
            yield Verdict(claim, is_positive(difference), _figures(rates, worse, better, difference))


def _figures(rates: Rates, first: str, second: str, difference: Interval) -> str:
    points = Interval(*(100 * end for end in difference))
    return f"{first} {said(rates[first])}, {second} {said(rates[second])}; difference {between(points, '+.1f')} points"


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
