"""Verdicts on the three claims of the replication of *Transformers are RNNs* (Do and Bergner 2022) on the copy task.

1. Linear transformers converge stably and reach the performance of the original.
2. Their time is linear in the length.
3. They are faster.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from subquad.compare.sentences import sentence
from subquad.compare.views import BASELINE, Comparison, View
from subquad.experiments.base import Trial, finished_rows, last_value, part_rows
from subquad.experiments.copy.grid import SCALES
from subquad.report.training import final_loss
from subquad.results import Row
from subquad.statistics import Verdict
from subquad.words import between

ENOUGH = 0.999
"""Token accuracy that counts as having learned to copy."""
CLOSE = 1.1
"""Largest ratio to softmax's final loss that counts as the same level."""
WIDEST_RANGE = 1.0
"""Width of an exponent's interval above which the verdict is open."""


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on each claim."""
    trials = list(SCALES[scale].trials())
    verdicts = converges(finished_rows(folder, trials), trials)
    if (rows := part_rows(folder / "timing", "compare")) is not None:
        timing = Comparison(rows)
        verdicts += [*is_linear(timing), *is_faster(timing)]
    return verdicts


def is_linear(timing: Comparison) -> Iterator[Verdict]:
    """Claim 2: over the longer half of the lengths, time grows linearly, or slower if fixed costs still show."""
    for view in timing.views:
        for name in timing.measured(view):
            growth = timing.growth(view, name)
            if growth is None or growth.exponent is None or name == BASELINE:
                continue
            exponent = growth.exponent
            claim = f"the time of a training step with {name} grows linearly with the length"
            held = None if exponent.high - exponent.low > WIDEST_RANGE else exponent.low <= 1.1
            yield Verdict(claim, held, f"exponent {between(exponent)}; softmax {_exponent(timing, view)}")


def _exponent(timing: Comparison, view: View) -> str:
    growth = timing.growth(view, BASELINE)
    return "not known" if growth is None or growth.exponent is None else between(growth.exponent)


def is_faster(timing: Comparison) -> Iterator[Verdict]:
    """Claim 3: from some measured length on, a training step is faster than with softmax."""
    for view in timing.views:
        for name in timing.measured(view):
            crossing = None if name == BASELINE else timing.crossover(view, name)
            if crossing is not None:
                claim = f"a training step with {name} is faster than with softmax"
                yield Verdict(claim, crossing.within, sentence(timing, view, name))


def converges(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> list[Verdict]:
    """Claim 1: for each attention and length, every seed copies and ends at no more than 1.1 times softmax's mean loss."""
    verdicts: list[Verdict] = []
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
                verdicts.append(Verdict(claim, None, f"{len(results)} of {wanted[name]} runs done"))
                continue
            losses, accuracies = [loss for loss, _ in results], [accuracy for _, accuracy in results]
            right = sum(accuracy >= ENOUGH for accuracy in accuracies)
            held = right == len(results) and mean(losses) <= CLOSE * mean(softmax)
            figures = (
                f"{right} of {len(results)} seeds at {ENOUGH:.1%} or more (lowest {min(accuracies):.2%}); "
                f"final loss {mean(losses):.2e} ({min(losses):.2e} to {max(losses):.2e}), softmax {mean(softmax):.2e}"
            )
            verdicts.append(Verdict(claim, held, figures))
    return verdicts


def _end(rows: Sequence[Row]) -> tuple[float, float]:
    """The final loss, and the last token accuracy."""
    loss = final_loss(rows)
    assert loss is not None  # a finished training has losses
    return loss, last_value(rows, "token_accuracy")
