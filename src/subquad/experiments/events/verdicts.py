"""Verdicts on event sequences (Zuo et al. 2020): is FAVOR+ as good as softmax, and for less?

The likelihood of held-out events is judged on simulated sequences beside that of the true process, on real ones beside
what is published. All attentions are trained on the same sequences, seed by seed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from subquad.experiments.base import is_finished, part_rows
from subquad.experiments.events.grid import (
    ATTENTIONS,
    BASELINE,
    BATCH,
    CLAIMED,
    LONG,
    PUBLISHED,
    SINUSOIDAL,
    Setting,
    Times,
)
from subquad.report.training import value_on_test
from subquad.results import Row, Run
from subquad.statistics import Interval, Verdict, at_most, mean_over_seeds, paired_difference
from subquad.words import between

NEAR_TRUTH = 0.03
"""Nats for each event that a model may fall short of the true process."""
AS_GOOD = 0.01
"""Nats for each event that count as nothing between two attentions."""
TWICE = 2.0


class Trained(NamedTuple):
    """A finished training: on what, with which attention and seed, and its rows."""

    setting: Setting
    attention: str
    seed: int
    run: Run
    rows: list[Row]


def trained(folder: Path) -> list[Trained]:
    """All finished trainings."""
    runs = []
    for path in sorted(folder.glob("events-*")):
        if is_finished(path):
            source, times, attention, seed = path.name.removeprefix("events-").rsplit("-", 3)
            run = Run.open(path, "train")
            runs.append(Trained(Setting(source, cast(Times, times)), attention, int(seed), run, run.rows()))
    return sorted(runs, key=lambda each: (each.setting.times != SINUSOIDAL, each.setting.source))


def over_seeds(runs: Sequence[Trained], metric: str) -> Interval | None:
    """The mean over seeds, with Student's interval."""
    values = [value for each in runs if (value := value_on_test(each.rows, metric)) is not None]
    return mean_over_seeds(values) if values else None


def pick(runs: Sequence[Trained], setting: Setting, attention: str) -> list[Trained]:
    """The seeds of one attention in one setting."""
    return [each for each in runs if (each.setting, each.attention) == (setting, attention)]


def difference(runs: Sequence[Trained], setting: Setting, attention: str, other: str) -> Interval | None:
    """How much more -log-likelihood an attention has than another, seed by seed: the mean, with Student's interval."""
    return paired_difference(*(_likelihoods(pick(runs, setting, name)) for name in (attention, other)))


def _likelihoods(runs: Sequence[Trained]) -> dict[int, float]:
    """The negative log-likelihood per event on the test sequences, by seed."""
    return {run.seed: value for run in runs if (value := value_on_test(run.rows, "nll")) is not None}


def judge(folder: Path) -> list[Verdict]:
    """FAVOR+ beside softmax in each setting, the cost of a step, then all other verdicts."""
    runs = trained(folder)
    settings = list(dict.fromkeys(each.setting for each in runs))
    verdicts = [verdict for setting in settings for verdict in against_softmax(runs, setting, CLAIMED)]
    verdicts += cheaper(part_rows(folder / "costs", "costs") or [])
    for setting in settings:
        for attention in [name for name in ATTENTIONS if pick(runs, setting, name)]:
            verdicts += [*against_truth(runs, setting, attention), *against_published(runs, setting, attention)]
            verdicts += against_frequent(runs, setting, attention)
            if attention != CLAIMED:
                verdicts += against_softmax(runs, setting, attention)
    return verdicts


def against_truth(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether the likelihood comes close to that of the true process, where that is known."""
    short = over_seeds(pick(runs, setting, attention), "nll_above_truth")
    if short is not None:
        claim = f"{setting}: {attention} comes within {NEAR_TRUTH} nats per event of the true process"
        yield Verdict(claim, at_most(short, NEAR_TRUTH), f"{between(short, '.3f')} nats short of it, mean over seeds")


def against_published(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether the likelihood is as good as published figures for the same splits, where there are some."""
    for model, theirs in PUBLISHED.get(setting.source, {}).items():
        likelihood = over_seeds(pick(runs, setting, attention), "nll")
        if likelihood is not None:
            claim = f"{setting}: {attention} has a negative log-likelihood no higher than {model}'s as published"
            yield Verdict(
                claim, at_most(likelihood, theirs), f"{between(likelihood, '.3f')}, published {theirs:g} nats per event"
            )


def against_frequent(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether types are predicted better than by the most frequent one."""
    seeds = pick(runs, setting, attention)
    accuracy, always = over_seeds(seeds, "accuracy"), over_seeds(seeds, "accuracy_of_most_frequent")
    if accuracy is not None and always is not None:
        claim = f"{setting}: {attention} tells the next type better than always the most frequent one"
        held = True if accuracy.low > always.value else False if accuracy.value <= always.value else None
        yield Verdict(claim, held, f"accuracy {between(accuracy, '.3f')}, it {always.value:.3f}")


def against_softmax(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether an attention is as good as softmax, seed by seed."""
    gap = None if attention == BASELINE else difference(runs, setting, attention, BASELINE)
    if gap is not None:
        claim = f"{setting}: {attention} is at least as good as softmax, within {AS_GOOD} nats per event"
        yield Verdict(claim, at_most(gap, AS_GOOD), f"negative log-likelihood {between(gap, '+.3f')} against softmax's")


def cheaper(rows: Sequence[Row]) -> Iterator[Verdict]:
    """On a long sequence, whether a training step takes half of softmax's time, in no more memory."""
    intervals = {(row["mechanism"], row["metric"]): Interval.of_row(row) for row in rows}
    for name in (name for name in ("favor", "linear") if (name, "times_as_fast") in intervals):
        step = f"with {name} a training step on {BATCH} sequences of {LONG} events"
        times, more = intervals[name, "times_as_fast"], intervals[name, "times_the_peak"]
        slower = Interval(1 / times.value, 1 / times.high, 1 / times.low)
        spread = f"{between(times, '.2f')} times as fast"
        yield Verdict(f"{step} is {TWICE:g} times as fast as with softmax", at_most(slower, 1 / TWICE), spread)
        ours, theirs = (intervals[mechanism, "peak_bytes"].value / 1e6 for mechanism in (name, BASELINE))
        figures = f"peak {ours:.1f} MB, softmax {theirs:.1f} MB: {between(more, '.3f')} times"
        yield Verdict(f"{step} takes no more memory than with softmax", at_most(more, 1.0), figures)
