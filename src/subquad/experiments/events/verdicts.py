"""Verdicts on event sequences (Zuo et al. 2020): is FAVOR+ as good as softmax, and cheaper?

The likelihood of held-out events is compared with that of the true process on simulated sequences, and with published values
on real ones. All attentions are trained on the same sequences, seed by seed.
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
from subquad.report.event_pairs import over_sequences, standing
from subquad.report.training import value_on_test
from subquad.results import Row, Run
from subquad.statistics import (
    Interval,
    Verdict,
    at_most,
    mean_over_seeds,
    paired_difference,
)
from subquad.words import between

NEAR_TRUTH = 0.03
"""Largest distance in nats per event from the true process that counts as close."""
AS_GOOD = 0.01
"""Largest difference in nats per event between two attentions that counts as none."""
TWICE = 2.0
"""Speed-up over softmax that is required of a training step on long sequences."""


class Trained(NamedTuple):
    """A finished training: its setting, attention and seed, and its rows."""

    setting: Setting
    attention: str
    seed: int
    run: Run
    rows: list[Row]


def trained(folder: Path) -> list[Trained]:
    """All finished trainings in a folder."""
    runs = []
    for path in sorted(folder.glob("events-*")):
        if is_finished(path):
            source, times, attention, seed = path.name.removeprefix("events-").rsplit("-", 3)
            run = Run.open(path, "train")
            runs.append(Trained(Setting(source, cast(Times, times)), attention, int(seed), run, run.rows()))
    return sorted(runs, key=lambda training: (training.setting.times != SINUSOIDAL, training.setting.source))


def over_seeds(runs: Sequence[Trained], metric: str) -> Interval | None:
    """Mean of a test metric over seeds, with Student's interval."""
    values = [value for run in runs if (value := value_on_test(run.rows, metric)) is not None]
    return mean_over_seeds(values) if values else None


def pick(runs: Sequence[Trained], setting: Setting, attention: str) -> list[Trained]:
    """The trainings of one attention in one setting, one for each seed."""
    return [run for run in runs if (run.setting, run.attention) == (setting, attention)]


def difference(runs: Sequence[Trained], setting: Setting, attention: str, other: str) -> Interval | None:
    """Mean difference of the negative log-likelihoods of two attentions over seeds, with Student's interval."""
    return paired_difference(*(_likelihoods(pick(runs, setting, name)) for name in (attention, other)))


def on_sequences(runs: Sequence[Trained], setting: Setting, attention: str, other: str) -> Interval | None:
    """Mean difference of the negative log-likelihoods per event of two attentions, with an interval over test sequences."""
    ours, theirs = ({run.seed: run.rows for run in pick(runs, setting, name)} for name in (attention, other))
    return over_sequences(ours, theirs)


def _likelihoods(runs: Sequence[Trained]) -> dict[int, float]:
    """The negative log-likelihood per event on the test sequences, by seed."""
    return {run.seed: value for run in runs if (value := value_on_test(run.rows, "nll")) is not None}


def judge(folder: Path) -> list[Verdict]:
    """Returns verdicts on FAVOR+ beside softmax, on the cost of a step, then all others."""
    runs = trained(folder)
    settings = list(dict.fromkeys(run.setting for run in runs))
    verdicts = [verdict for setting in settings for verdict in against_softmax(runs, setting, CLAIMED)]
    verdicts += cheaper(part_rows(folder / "costs", "costs") or [])
    for setting in settings:
        verdicts += best_published(runs, setting)
        for attention in [name for name in ATTENTIONS if pick(runs, setting, name)]:
            verdicts += [*against_truth(runs, setting, attention), *against_published(runs, setting, attention)]
            verdicts += [*against_frequent(runs, setting, attention), *behind_baselines(runs, setting, attention)]
            if attention != CLAIMED:
                verdicts += against_softmax(runs, setting, attention)
    return verdicts


def against_truth(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether the likelihood is close to that of the true process, if it is known."""
    short = over_seeds(pick(runs, setting, attention), "nll_above_truth")
    if short is not None:
        claim = f"{setting}: {attention} comes within {NEAR_TRUTH} nats per event of the true process"
        yield Verdict(claim, at_most(short, NEAR_TRUTH), f"{between(short, '.3f')} nats short of it, mean over seeds")


def against_published(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether the likelihood is at least as good as published values for the same splits, if there are some."""
    for model, theirs in PUBLISHED.get(setting.source, {}).items():
        likelihood = over_seeds(pick(runs, setting, attention), "nll")
        if likelihood is not None:
            claim = f"{setting}: {attention} has a negative log-likelihood no higher than {model}'s as published"
            yield Verdict(
                claim, at_most(likelihood, theirs), f"{between(likelihood, '.3f')}, published {theirs:g} nats per event"
            )


def best_published(runs: Sequence[Trained], setting: Setting) -> Iterator[Verdict]:
    """Whether at least one attention is at or below the lowest published value, if there are some."""
    published, ours = PUBLISHED.get(setting.source, {}), _lowest(runs, setting)
    if published and ours is not None:
        model = min(published, key=lambda name: published[name])
        claim = f"{setting}: an attention is at or below the lowest published row, {model}'s {published[model]:g}"
        attention, likelihood = ours
        gap = likelihood.value - published[model]
        words = f"behind by {gap:.3f}" if gap > 0 else f"ahead by {-gap:.3f}"
        yield Verdict(claim, at_most(likelihood, published[model]), f"{attention} {between(likelihood, '.3f')}: {words}")


def _lowest(runs: Sequence[Trained], setting: Setting) -> tuple[str, Interval] | None:
    """The attention with the lowest mean negative log-likelihood over seeds, and its interval."""
    means = {name: mean for name in ATTENTIONS if (mean := over_seeds(pick(runs, setting, name), "nll")) is not None}
    return min(means.items(), key=lambda item: item[1].value) if means else None


def behind_baselines(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether an attention is better than every baseline that was fitted to the same sequences, seed by seed."""
    names = dict.fromkeys(
        row["baseline"] for run in pick(runs, setting, attention) for row in run.rows if row.get("baseline")
    )
    gaps = {name: over_seeds(pick(runs, setting, attention), f"nll_above_{name}") for name in names}
    known = {name: gap for name, gap in gaps.items() if gap is not None}
    if known:
        worst = max(known, key=lambda name: known[name].value)
        claim = f"{setting}: {attention} has a lower negative log-likelihood than all {len(known)} baselines"
        yield Verdict(
            claim, at_most(known[worst], 0.0), f"{between(known[worst], '+.3f')} against {worst}, the best of them"
        )


def against_frequent(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether types are predicted better than by always choosing the most frequent one."""
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
        figures = f"negative log-likelihood {between(gap, '+.3f')} against softmax's"
        if (paired := on_sequences(runs, setting, attention, BASELINE)) is not None:
            figures += f"; paired over test sequences {standing(paired)}"
        yield Verdict(claim, at_most(gap, AS_GOOD), figures)


def cheaper(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Whether a training step on long sequences takes half of softmax's time, and no more memory."""
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
