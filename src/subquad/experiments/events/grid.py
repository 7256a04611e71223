"""Event sequences (Zuo et al. 2020; Choromanski et al. 2021 in its place): is FAVOR+ as good as softmax, and for less?

The likelihood of held-out events, on simulated sequences beside that of the true process, on real ones beside what is
published. Softmax, FAVOR+, linear attention and the infinity-former are trained on the same sequences, seed by seed. Models
are told times as in the paper, by sinusoids that are added to the embeddings, and also by rotation of queries and keys,
which the paper does not have, and which is better for most of them but not equally so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

from subquad.experiments.base import Trial, at_test, finished
from subquad.measure.machine import describe, versions
from subquad.results import Row, Run
from subquad.statistics import Interval, Verdict, at_most, mean_over_seeds, paired_difference
from subquad.words import between

CLAIM = "FAVOR+ predicts the next event's time and type at least as well as softmax (after Zuo et al. 2020), for less"
ATTENTIONS = ("softmax", "favor", "linear", "infinity")
BASELINE, CLAIMED = "softmax", "favor"
SIMULATED = "simulated"
NEAR_TRUTH = 0.03
"""Nats for each event that a model may fall short of the true process."""
AS_GOOD = 0.01
"""Nats for each event that count as nothing between two attentions."""
LONG = 3319
"""Events of a sequence of the order book, which the cost of a step is measured on,"""
BATCH = 4
"""and the sequences of such a step, as many as the order book is trained with."""
TWICE = 2.0

# negative log-likelihood for each event on EasyTPP's splits (Xue et al. 2024)
PUBLISHED: dict[str, dict[str, float]] = {
    "taxi": {"THP": -0.372, "NHP": -0.514},
    "stackoverflow": {"THP": 2.338, "NHP": 2.241},
}


SINUSOIDAL, ROTARY = "sinusoidal", "rotary"


class Setting(NamedTuple):
    """What models are trained on, and how they are told the times."""

    source: str
    times: str = SINUSOIDAL

    def __str__(self) -> str:
        return f"{self.source}, {self.times} times"


@dataclass(frozen=True)
class Grid:
    """What a scale runs."""

    seeds: tuple[int, ...]
    arguments: tuple[str, ...]
    minutes: str
    by_source: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What a source is given beside what all are,"""
    others: tuple[str, ...] = ()
    """and what one is given that is not named there."""
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What an attention is given."""
    also_rotary: tuple[str, ...] = (SIMULATED, *PUBLISHED)
    """Sources on which models are told times by rotation, too."""
    data: str = ""
    """A folder of data, or of several such folders."""

    @property
    def sources(self) -> dict[str, str]:
        """Simulated sequences, and each folder of data by its name."""
        found = {SIMULATED: ""}
        if self.data:
            folder = Path(self.data)
            inner = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
            found |= {path.name.lower(): str(path) for path in inner or [folder]}
        return found

    def trials(self) -> Iterator[Trial]:
        """In an order in which every attention gets its first results early."""
        for setting, seed, attention in product(self.settings(), self.seeds, ATTENTIONS):
            source, times = setting
            path = self.sources[source]
            arguments = (
                *("events", "--attention", attention, "--seed", str(seed), "--positions", times),
                *(("--data", path) if path else ()),
                *self.arguments,
                *self.by_source.get(source, self.others),
                *self.own.get(attention, ()),
            )
            yield Trial(f"events-{source}-{times}-{attention}-{seed}", attention, 0, seed, arguments)

    def settings(self) -> Iterator[Setting]:
        """First as in the paper."""
        yield from map(Setting, self.sources)
        yield from (Setting(source, ROTARY) for source in self.sources if source in self.also_rotary)


SMALL = (
    *("--layers", "2", "--heads", "4", "--head-dim", "16", "--optimizer", "adamw"),
    *("--schedule", "cosine", "--warm-up", "50", "--evaluate-every", "100", "--checkpoint-every", "100"),
)
REAL = ("--batch", "64", "--steps", "500", "--learning-rate", "4e-3", "--dropout", "0.1")
SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2),
        arguments=SMALL,
        by_source={
            SIMULATED: ("--batch", "32", "--steps", "600", "--learning-rate", "3e-3"),
            "financial": ("--batch", str(BATCH), "--chunk", "512", "--steps", "120", "--learning-rate", "3e-3"),
        },
        others=REAL,
        own={"favor": ("--features", "64"), "infinity": ("--segment", "128", "--basis", "64")},
        minutes="under 20 minutes on two cores with simulated sequences; with --data a minute or two more for each training",
    ),
    "paper": Grid(
        seeds=(0, 1, 2, 3, 4),
        arguments=(
            "--layers",
            "4",
            "--heads",
            "4",
            "--head-dim",
            "32",
            "--dropout",
            "0.1",
            "--batch",
            "32",
            "--steps",
            "10000",
        ),
        others=(),
        own={"favor": ("--features", "128")},
        minutes="hours on two cores for each source",
    ),
}


class Trained(NamedTuple):
    """A finished training: on what, with which attention and seed, and its rows."""

    setting: Setting
    attention: str
    seed: int
    run: Run
    rows: list[Row]


def trained(folder: Path) -> list[Trained]:
    """Everything that came to its end."""
    found = []
    for path in sorted(folder.glob("events-*")):
        if finished(path):
            source, times, attention, seed = path.name.removeprefix("events-").rsplit("-", 3)
            run = Run.open(path, "train")
            found.append(Trained(Setting(source, times), attention, int(seed), run, run.rows()))
    return sorted(found, key=lambda one: (one.setting.times != SINUSOIDAL, one.setting.source))


def over_seeds(runs: Sequence[Trained], metric: str) -> Interval | None:
    """The mean over seeds, with Student's interval."""
    values = [value for one in runs if (value := at_test(one.rows, metric)) is not None]
    return mean_over_seeds(values) if values else None


def pick(runs: Sequence[Trained], setting: Setting, attention: str) -> list[Trained]:
    """The seeds of one attention in one setting."""
    return [one for one in runs if (one.setting, one.attention) == (setting, attention)]


def difference(runs: Sequence[Trained], setting: Setting, attention: str, other: str) -> Interval | None:
    """How much more -log-likelihood an attention has than another, seed by seed: the mean, with Student's interval."""
    return paired_difference(*(_likelihoods(pick(runs, setting, name)) for name in (attention, other)))


def _likelihoods(runs: Sequence[Trained]) -> dict[int, float]:
    """The negative log-likelihood per event on the test sequences, by seed."""
    return {run.seed: value for run in runs if (value := at_test(run.rows, "nll")) is not None}


def measure(folder: Path, scale: str) -> None:
    """What a training step costs on a long sequence."""
    from subquad.experiments.events.costs import costs

    own = folder / "costs"
    about = {"versions": versions(), "machine": describe(), "command": f"subquad reproduce events --scale {scale}"}
    run = Run.open(own, "costs") if (own / "run.json").exists() else Run.create(own, "costs", about)
    first = {one.attention: one.run.about["options"] for one in trained(folder) if one.setting == Setting(SIMULATED)}
    done = {row["mechanism"] for row in run.rows() if row["metric"] == "times_the_peak"}  # the last of what is measured
    if not first.keys() <= done:
        run.keep_first_rows(0)
        run.append(costs(first))


def judge(folder: Path, scale: str) -> list[Verdict]:
    """The claim itself in each setting, what a step costs, then all others."""
    runs = trained(folder)
    settings = list(dict.fromkeys(one.setting for one in runs))
    found = [verdict for setting in settings for verdict in against_softmax(runs, setting, CLAIMED)]
    own = folder / "costs"
    if (own / "run.json").exists():
        found += cheaper(Run.open(own, "costs").rows())
    for setting in settings:
        for attention in [name for name in ATTENTIONS if pick(runs, setting, name)]:
            found += [*against_truth(runs, setting, attention), *against_published(runs, setting, attention)]
            found += against_frequent(runs, setting, attention)
            if attention != CLAIMED:
                found += against_softmax(runs, setting, attention)
    return found


def against_truth(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Where the true process is known: how far the likelihood falls short of it on the same events."""
    short = over_seeds(pick(runs, setting, attention), "nll_above_truth")
    if short is not None:
        claim = f"{setting}: {attention} comes within {NEAR_TRUTH} nats per event of the true process"
        yield Verdict(claim, at_most(short, NEAR_TRUTH), f"{between(short, '.3f')} nats short of it, mean over seeds")


def against_published(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Where there are published figures for the same splits."""
    for model, theirs in PUBLISHED.get(setting.source, {}).items():
        found = over_seeds(pick(runs, setting, attention), "nll")
        if found is not None:
            claim = f"{setting}: {attention} has a negative log-likelihood no higher than {model}'s as published"
            yield Verdict(claim, at_most(found, theirs), f"{between(found, '.3f')}, published {theirs:g} nats per event")


def against_frequent(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """Whether types are told at all."""
    own = pick(runs, setting, attention)
    found, always = over_seeds(own, "accuracy"), over_seeds(own, "accuracy_of_most_frequent")
    if found is not None and always is not None:
        claim = f"{setting}: {attention} tells the next type better than always the most frequent one"
        held = True if found.low > always.value else False if found.value <= always.value else None
        yield Verdict(claim, held, f"accuracy {between(found, '.3f')}, it {always.value:.3f}")


def against_softmax(runs: Sequence[Trained], setting: Setting, attention: str) -> Iterator[Verdict]:
    """The claim itself, seed by seed."""
    gap = None if attention == BASELINE else difference(runs, setting, attention, BASELINE)
    if gap is not None:
        claim = f"{setting}: {attention} is at least as good as softmax, within {AS_GOOD} nats per event"
        yield Verdict(claim, at_most(gap, AS_GOOD), f"negative log-likelihood {between(gap, '+.3f')} against softmax's")


def cheaper(rows: Sequence[Row]) -> Iterator[Verdict]:
    """On a long sequence, whether a training step takes half of softmax's time, in no more memory."""
    found = {(row["mechanism"], row["metric"]): Interval.of_row(row) for row in rows}
    for name in (name for name in ("favor", "linear") if (name, "times_as_fast") in found):
        step = f"with {name} a training step on {BATCH} sequences of {LONG} events"
        times, more = found[name, "times_as_fast"], found[name, "times_the_peak"]
        slower = Interval(1 / times.value, 1 / times.high, 1 / times.low)
        spread = f"{between(times, '.2f')} times as fast"
        yield Verdict(f"{step} is {TWICE:g} times as fast as with softmax", at_most(slower, 1 / TWICE), spread)
        ours, theirs = (found[one, "peak_bytes"].value / 1e6 for one in (name, BASELINE))
        figures = f"peak {ours:.1f} MB, softmax {theirs:.1f} MB: {between(more, '.3f')} times"
        yield Verdict(f"{step} takes no more memory than with softmax", at_most(more, 1.0), figures)
