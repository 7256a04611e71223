"""Faults of the public code of Zuo et al. 2020, put back in: what each does to the figures that the code reports.

Dmitriev et al. 2020 found a bug in that code, without which its results were better, but do not say which one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from subquad.attention import Softmax
from subquad.experiments.base import Training, Trial, is_finished
from subquad.experiments.events.grid import SIMULATED, SMALL, SMALL_TRAINING, Grid, Source
from subquad.report.training import value_on_test
from subquad.results import Row, Run
from subquad.statistics import Verdict, at_most, is_positive, paired_difference
from subquad.tasks import Events
from subquad.tasks.events.faults import BATCHES, Fault
from subquad.words import between

NAME = "faults"
"""Name of the scale, and the beginning of the names of its trials."""
NONE = "none"
ARMS: dict[str, tuple[Fault, ...]] = {
    NONE: (),
    "sees-itself": ("sees-itself",),
    "observed-type": ("observed-type",),
    "padding-loss": ("padding-loss",),
    "figures": ("padding-rmse", "test-picks"),  # these do not change the loss: one changes the RMSE, one the weights picked
}
"""Faults of each training, by name."""
SEEN = ("sees-itself", "observed-type")
"""Arms whose likelihood is another one."""


@dataclass(frozen=True, kw_only=True)
class FaultGrid(Grid):
    """Softmax with every arm, on every source, with every seed."""

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every arm gets its first results early."""
        for (source, path), seed, arm in product(self.sources.items(), self.seeds, ARMS):
            options = self.by_source.get(source, self.usual)
            task = replace(options.task, data=path, faults=ARMS[arm])
            work = Training(task, self.attentions["softmax"], options.model, options.training)
            yield Trial(f"{NAME}-{source}-{arm}-{seed}", arm, 0, seed, work)


TASK = Events(head="hawkes", chunk=0, time_weight=0.01)
TRAINING = replace(SMALL_TRAINING, batch=16, steps=240, evaluate_every=40, checkpoint_every=240)
FAULT_SCALES: dict[str, Grid] = {
    NAME: FaultGrid(
        seeds=(0, 1, 2),
        attentions={"softmax": Softmax()},
        usual=Source(replace(SMALL, dropout=0.1), TRAINING, TASK),
        by_source={SIMULATED: Source(SMALL, TRAINING, replace(TASK, sequences=300))},
        minutes="under 10 minutes on two cores with simulated sequences",
    ),
}


class Trained(NamedTuple):
    """A finished training with some faults, or none."""

    source: str
    arm: str
    seed: int
    rows: list[Row]


def trained(folder: Path) -> list[Trained]:
    """All finished trainings with faults in a folder, in the order of the arms."""
    runs = []
    for path in sorted(folder.glob(f"{NAME}-*")):
        arm = next((name for name in ARMS if path.name.rpartition("-")[0].endswith(f"-{name}")), None)
        if arm is not None and is_finished(path):
            source, seed = path.name.removeprefix(f"{NAME}-").rsplit(f"-{arm}-", 1)
            runs.append(Trained(source, arm, int(seed), Run.open(path, "train").rows()))
    return sorted(runs, key=lambda run: (run.source != SIMULATED, run.source, list(ARMS).index(run.arm), run.seed))


def values(runs: Sequence[Trained], source: str, arm: str, metric: str) -> dict[int, float]:
    """A test metric of an arm, by seed."""
    chosen = [run for run in runs if (run.source, run.arm) == (source, arm)]
    return {run.seed: value for run in chosen if (value := value_on_test(run.rows, metric)) is not None}


def by_batch(run: Trained) -> dict[int, float]:
    """The reported RMSE by the number of sequences in a batch."""
    return {row["batch"]: row["value"] for row in run.rows if row["metric"] == "reported_rmse"}


def judge(folder: Path) -> list[Verdict]:
    """Returns verdicts on what each fault does, on every source."""
    runs = trained(folder)
    sources = dict.fromkeys(run.source for run in runs)
    return [verdict for source in sources for verdict in _of_source(runs, source)]


def _of_source(runs: Sequence[Trained], source: str) -> Iterator[Verdict]:
    for arm in SEEN:
        yield from too_good(runs, source, arm)
    yield from worse(runs, source, "padding-loss", "rmse_by_head", "the error of predicted gaps")
    yield from depends_on_batch(runs, source)
    gap = paired_difference(values(runs, source, "figures", "nll"), values(runs, source, NONE, "nll"))
    if gap is not None:
        claim = f"{source}, test-picks: weights picked on the test have a lower negative log-likelihood there"
        yield Verdict(claim, at_most(gap, 0.0), f"{between(gap, '+.4f')} nats per event")


def too_good(runs: Sequence[Trained], source: str, arm: str) -> Iterator[Verdict]:
    """Whether the reported likelihood is better than possible, and the weights worse than without the fault."""
    metric, best = ("nll_of_truth", "the true process") if source == SIMULATED else ("nll", "the model without the fault")
    gap = paired_difference(values(runs, source, arm, "reported_nll"), values(runs, source, NONE, metric))
    if gap is not None:
        claim = f"{source}, {arm}: the reported negative log-likelihood is lower than that of {best}"
        yield Verdict(claim, at_most(gap, 0.0), f"{between(gap, '+.3f')} nats per event")
    yield from worse(runs, source, arm, "nll", "the likelihood")


def worse(runs: Sequence[Trained], source: str, arm: str, metric: str, words: str) -> Iterator[Verdict]:
    """Whether weights trained with a fault, judged without it, are worse than those trained without it."""
    gap = paired_difference(values(runs, source, arm, metric), values(runs, source, NONE, metric))
    if gap is not None:
        claim = f"{source}, {arm}: judged without the fault, {words} is worse than if trained without it"
        yield Verdict(claim, is_positive(gap), f"{metric.replace('_', ' ')} {between(gap, '+.3f')}")


def depends_on_batch(runs: Sequence[Trained], source: str) -> Iterator[Verdict]:
    """Whether the reported RMSE of the same weights is higher in large batches than one sequence at a time."""
    small, large = min(BATCHES), max(BATCHES)
    errors = {run.seed: by_batch(run) for run in runs if (run.source, run.arm) == (source, "figures")}
    ends = [{seed: by_size[size] for seed, by_size in errors.items() if size in by_size} for size in (small, large)]
    gap = paired_difference(ends[1], ends[0])
    if gap is not None:
        claim = f"{source}, padding-rmse: the same weights have a higher reported RMSE in batches of {large} than of {small}"
        means = [sum(end.values()) / len(end) for end in ends]
        yield Verdict(claim, is_positive(gap), f"{means[1]:.3g} against {means[0]:.3g}: {between(gap, '+.3g')}")
