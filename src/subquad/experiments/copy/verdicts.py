"""Verdicts on the three claims of the replication of *Transformers are RNNs* (Do and Bergner 2022) on the copy task.

1. Linear transformers converge stably and reach the performance of the original.
2. Their time is linear in the length.
3. They are faster.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from subquad.compare.sentences import sentence
from subquad.compare.views import BASELINE, Comparison, View
from subquad.experiments.base import Training, Trial, finished_rows, last_value, part_rows
from subquad.experiments.copy.grid import SCALES
from subquad.report.training import final_loss
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_most, geometric_ratio, mean_over_seeds, share_interval
from subquad.words import between

CLOSE = 1.1
"""Largest ratio to softmax's final loss that counts as the same level."""
LINEAR = (0.8, 1.2)
"""Exponents of the length between which growth counts as linear."""


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on each claim."""
    trials = list(SCALES[scale].trials())
    trained = finished_rows(folder, trials)
    verdicts = [*copies(trained, trials), *reaches_softmax(trained, trials)]
    if (rows := part_rows(folder / "timing", "compare")) is not None:
        timing = Comparison(rows)
        verdicts += [*is_linear(timing), *is_faster(timing)]
    return verdicts


def is_linear(timing: Comparison) -> Iterator[Verdict]:
    """Claim 2: beyond fixed costs, time grows with a power of the length near 1.

    It is not decided where fixed costs rule, or where growth seems slower than linear: then they still do.
    """
    for view in timing.views:
        for name in timing.measured(view):
            if name == BASELINE or len(timing.lengths(view, name)) < 3:
                continue
            claim = f"the time of a training step with {name} grows linearly with the length"
            scaling = timing.scaling(view, name)
            if scaling is None:
                longest = timing.lengths(view, name)[-1]
                yield Verdict(claim, None, f"fixed costs are more than half of the time at nearly all lengths to {longest}")
                continue
            figures = (
                f"exponent {between(scaling.exponent)} beyond fixed costs, which are at most half of the time from length "
                f"{scaling.first_length:.0f} on; softmax {_exponent(timing, view)}; lengths to {scaling.last_length:.0f}"
            )
            yield Verdict(claim, _is_near_one(scaling.exponent), figures)


def _is_near_one(exponent: Interval) -> bool | None:
    """Whether growth is linear. An exponent that may be lower is not decided: no attention can do with less."""
    if exponent.low > LINEAR[1]:
        return False
    return True if exponent.low >= LINEAR[0] and exponent.high <= LINEAR[1] else None


def _exponent(timing: Comparison, view: View) -> str:
    scaling = timing.scaling(view, BASELINE)
    return "not known" if scaling is None else between(scaling.exponent)


def is_faster(timing: Comparison) -> Iterator[Verdict]:
    """Claim 3: from some measured length on, a training step is faster than with softmax."""
    for view in timing.views:
        for name in timing.measured(view):
            crossing = None if name == BASELINE else timing.crossover(view, name)
            if crossing is not None:
                claim = f"a training step with {name} is faster than with softmax"
                yield Verdict(claim, crossing.within, sentence(timing, view, name))


def copies(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Iterator[Verdict]:
    """Claim 1, first part: every seed copies all held-out sequences of the largest length without an error."""
    for (name, length), group in groups(trials).items():
        claim = f"{name} copies {length} symbols without error in every seed"
        shares = copied_shares(trained, group)
        if len(shares) < len(group):
            yield Verdict(claim, None, f"{len(shares)} of {len(group)} runs done")
            continue
        perfect = sum(share == 1 for share in shares.values())
        figures = (
            f"{perfect} of {len(shares)} seeds (95% interval {_percent_range(share_interval(perfect, len(shares)))}); "
            f"sequences copied: {between(mean_over_seeds(list(shares.values())), '.1%')}, lowest {min(shares.values()):.1%}"
        )
        yield Verdict(claim, perfect == len(shares), figures)


def reaches_softmax(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Iterator[Verdict]:
    """Claim 1, second part: the final loss is at most 1.1 times that of softmax, trained in the same way."""
    for (name, length), group in groups(trials).items():
        baseline = _softmax_beside(group[0], trials)
        if not baseline:
            continue
        claim = f"{name} ends at softmax's loss at {length} symbols"
        ours, theirs = _log_losses(trained, group), _log_losses(trained, baseline)
        ratio = geometric_ratio(ours, theirs)
        if ratio is None or len(ours) < len(group) or len(theirs) < len(baseline):
            yield Verdict(claim, None, f"{len(ours)} of {len(group)} runs done")
        elif not any(copied_shares(trained, baseline).values()):
            yield Verdict(claim, None, "softmax trained in the same way copies no sequence in any seed: no level to reach")
        else:
            yield Verdict(claim, at_most(ratio, CLOSE), f"{between(ratio)} times softmax's loss, geometric mean over seeds")


def groups(trials: Sequence[Trial]) -> dict[tuple[str, int], list[Trial]]:
    """Trials that differ in their seed only, by recipe and length."""
    by_recipe: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        by_recipe.setdefault((trial.variant, trial.length), []).append(trial)
    return by_recipe


def copied_shares(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> dict[int, float]:
    """Share of held-out sequences that were copied without an error at the end, by seed, for finished trials."""
    return {trial.seed: last_value(trained[trial.name], "sequence_accuracy") for trial in trials if trial.name in trained}


def _softmax_beside(trial: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """The trials with softmax that differ from this one in the attention only; none if this one has softmax itself."""
    work = trial.work
    assert isinstance(work, Training)
    if work.attention.kind == BASELINE:
        return []
    alike = [other for other in trials if isinstance(other.work, Training) and other.work.attention.kind == BASELINE]
    return [other for other in alike if _without_attention(other) == _without_attention(trial)]


def _without_attention(trial: Trial) -> object:
    assert isinstance(trial.work, Training)
    return trial.work.task, trial.work.model, trial.work.options


def _log_losses(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> dict[int, float]:
    """Logarithm of the final loss by seed, for finished trials."""
    losses = {trial.seed: final_loss(trained[trial.name]) for trial in trials if trial.name in trained}
    return {seed: float(np.log(loss)) for seed, loss in losses.items() if loss}


def _percent_range(share: Interval) -> str:
    return f"{share.low:.0%} to {share.high:.0%}"
