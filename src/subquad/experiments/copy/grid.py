"""The replication of *Transformers are RNNs* (Do and Bergner 2022), done again: its three claims on the copy task.

1. Linear transformers converge stably and reach the performance of the original.
2. Their time is linear in the length.
3. They are faster.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from subquad.compare.sentences import sentence
from subquad.compare.views import BASELINE, Comparison, View
from subquad.experiments.base import Trial, last, load
from subquad.results import Row, Run
from subquad.statistics import Verdict
from subquad.words import between

CLAIM = "linear attention converges like softmax on the copy task, in linear time, and faster (Katharopoulos et al. 2020)"
ENOUGH = 0.999
"""The token accuracy that counts as having learned to copy."""
CLOSE = 1.1
"""How many times softmax's final loss still counts as its level."""


@dataclass(frozen=True)
class Grid:
    """What a scale runs."""

    attentions: tuple[str, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    arguments: tuple[str, ...]
    timing: tuple[str, ...]
    """What `subquad compare` is given to time a training step."""
    timing_budget: int
    """Seconds."""
    minutes: str
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What an attention is given beside what all are."""

    def trials(self) -> Iterator[Trial]:
        """In an order in which every attention gets its first results early."""
        for length in self.lengths:
            for seed in self.seeds:
                for attention in self.attentions:
                    more = ("copy", "--attention", attention, "--length", str(length), "--seed", str(seed), *self.arguments)
                    own = self.own.get(attention, ())
                    yield Trial(f"copy-{attention}-{length}-{seed}", attention, length, seed, (*more, *own))


TIMING = ("--what", "update", "--mechanisms", "linear", "favor", "--memory-limit", "6GiB")
"""A training step of the replication's model, 4 + 4 layers of 8 heads of 64."""
WIDEST = 1.0
"""An exponent whose range is wider than this decides nothing."""

SMALL = ("--layers", "2", "--heads", "4", "--head-dim", "32", "--batch", "32")
QUICK = Grid(
    attentions=("softmax", "linear", "favor"),
    lengths=(32,),
    seeds=(0, 1, 2, 3, 4),
    arguments=(*SMALL, "--steps", "1800", "--evaluate-every", "200", "--checkpoint-every", "600"),
    timing=(*TIMING, "--batch", "1", "--lengths", "8..2048"),
    timing_budget=180,
    minutes="under 20 minutes on two cores",
    own={"favor": ("--features", "64")},
)
SCALES: dict[str, Grid] = {
    "quick": QUICK,
    "long": replace(
        QUICK,
        lengths=(64,),
        arguments=(*SMALL, "--steps", "2700", "--evaluate-every", "300", "--checkpoint-every", "900"),
        own={"favor": ("--features", "128")},
        timing=(*TIMING, "--batch", "1", "--lengths", "8..4096"),
        timing_budget=600,
        minutes="about an hour on two cores",
    ),
    "paper": Grid(
        attentions=("softmax", "linear", "favor"),
        lengths=(8, 16, 32, 64),
        seeds=(0, 1, 2, 3, 4),
        arguments=(
            *("--form", "encoder-decoder", "--layers", "4", "--heads", "8", "--head-dim", "64", "--batch", "64"),
            *("--steps", "10000", "--schedule", "drop", "--drop-at", "3000"),
        ),
        timing=(*TIMING, "--batch", "8", "--lengths", "8..4096"),
        timing_budget=3600,
        minutes="days on two cores; can be interrupted and gone on with at any time",
    ),
}


def judge(folder: Path, scale: str) -> list[Verdict]:
    """A verdict on each claim."""
    trials = list(SCALES[scale].trials())
    trained = load(folder, trials)
    timing = Comparison(Run.open(folder / "timing", "compare").rows()) if (folder / "timing" / "run.json").exists() else None
    return [*converges(trained, trials), *([] if timing is None else [*is_linear(timing), *is_faster(timing)])]


def is_linear(timing: Comparison) -> Iterator[Verdict]:
    """Claim 2: the exponent of the longer half of the lengths is that of a line, or less where fixed costs still show."""
    for view in timing.views:
        for name in timing.measured(view):
            found = timing.growth(view, name)
            if found is None or found.exponent is None or name == BASELINE:
                continue
            exponent = found.exponent
            claim = f"the time of a training step with {name} grows linearly with the length"
            held = None if exponent.high - exponent.low > WIDEST else exponent.low <= 1.1
            yield Verdict(claim, held, f"exponent {between(exponent)}; softmax {_exponent(timing, view)}")


def _exponent(timing: Comparison, view: View) -> str:
    found = timing.growth(view, BASELINE)
    return "not known" if found is None or found.exponent is None else between(found.exponent)


def is_faster(timing: Comparison) -> Iterator[Verdict]:
    """Claim 3: from some measured length on, it is faster than softmax."""
    for view in timing.views:
        for name in timing.measured(view):
            found = None if name == BASELINE else timing.crossover(view, name)
            if found is not None:
                claim = f"a training step with {name} is faster than with softmax"
                yield Verdict(claim, found.within, sentence(timing, view, name))


def converges(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> list[Verdict]:
    """Claim 1, for each attention and length: every seed copies, and ends no higher than softmax's mean loss times 1.1."""
    found: list[Verdict] = []
    for length in dict.fromkeys(trial.length for trial in trials):
        ends = {
            name: [
                _end(trained[trial.name])
                for trial in trials
                if (trial.variant, trial.length) == (name, length) and trial.name in trained
            ]
            for name in dict.fromkeys(trial.variant for trial in trials)
        }
        wanted = {name: sum((trial.variant, trial.length) == (name, length) for trial in trials) for name in ends}
        softmax = [loss for loss, _ in ends.get("softmax", [])]
        for name, results in ends.items():
            claim = f"{name} learns to copy at length {length} in every seed and ends at softmax's loss"
            if len(results) < wanted[name] or not softmax:
                found.append(Verdict(claim, None, f"{len(results)} of {wanted[name]} runs done"))
                continue
            losses, accuracies = [loss for loss, _ in results], [accuracy for _, accuracy in results]
            right = sum(accuracy >= ENOUGH for accuracy in accuracies)
            held = right == len(results) and mean(losses) <= CLOSE * mean(softmax)
            figures = (
                f"{right} of {len(results)} seeds at {ENOUGH:.1%} or more (lowest {min(accuracies):.2%}); "
                f"final loss {mean(losses):.2e} ({min(losses):.2e} to {max(losses):.2e}), softmax {mean(softmax):.2e}"
            )
            found.append(Verdict(claim, held, figures))
    return found


def _end(rows: Sequence[Row]) -> tuple[float, float]:
    """The loss of the last twentieth of the steps, and the last token accuracy."""
    losses = [row["value"] for row in rows if row["metric"] == "loss"]
    return mean(losses[-max(1, len(losses) // 20) :]), last(rows, "token_accuracy")
