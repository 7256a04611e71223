"""Verdicts on recall: who recalls everything, whom a larger state helps, and who comes up to softmax."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from subquad.experiments.recall.grid import CAUSAL, INDUCTION, RECALL, SCALES, Grid
from subquad.experiments.recall.runs import Remembered, remembered
from subquad.statistics import Verdict, at_least, is_positive, paired_difference
from subquad.words import amount, between

ALL = 0.99
"""Share of answers from which on everything counts as recalled."""
NEAR = 0.01
"""Largest distance from softmax's accuracy that counts as none."""
BASELINE = "softmax"


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on each claim."""
    grid = SCALES[scale]
    measured = remembered(folder, grid)
    return [*solved(measured, grid), *grows(measured, grid), *reaches(measured, grid)]


def solved(measured: Sequence[Remembered], grid: Grid) -> Iterator[Verdict]:
    """Whether softmax recalls everything, with every size, and which mechanisms have induction heads."""
    for result in measured:
        if result.mechanism == BASELINE and result.task == RECALL:
            claim = f"softmax recalls at least {ALL:.0%} of the values with heads of {result.head_dim}"
            yield _at_least(claim, result)
    for result in measured:
        if result.task == INDUCTION:
            yield _at_least(f"{result.mechanism} answers at least {ALL:.0%} of induction's questions", result)


def _at_least(claim: str, result: Remembered) -> Verdict:
    if not result.is_complete:
        return Verdict(claim, None, _done(result))
    return Verdict(claim, at_least(result.accuracy, ALL), _said(result))


def grows(measured: Sequence[Remembered], grid: Grid) -> Iterator[Verdict]:
    """Whether a mechanism recalls more with the largest state than with the smallest."""
    for name in CAUSAL:
        few, many = (_find(measured, name, size.head_dim) for size in (grid.sizes[0], grid.sizes[-1]))
        if name == BASELINE or few is None or many is None:
            continue
        claim = f"{name} recalls more with a state of {amount(many.state_bytes)} than with {amount(few.state_bytes)}"
        if not (few.is_complete and many.is_complete):
            yield Verdict(claim, None, f"{_done(few)}, {_done(many)}")
            continue
        gap = paired_difference(many.accuracies, few.accuracies)
        assert gap is not None  # both have all seeds
        yield Verdict(claim, is_positive(gap), f"{between(gap, '+.1%')}: {_said(few)}, then {_said(many)}")


def reaches(measured: Sequence[Remembered], grid: Grid) -> Iterator[Verdict]:
    """Whether a mechanism recalls as much as softmax with the largest heads."""
    largest = grid.sizes[-1].head_dim
    theirs = _find(measured, BASELINE, largest)
    for name in CAUSAL:
        ours = _find(measured, name, largest)
        if name == BASELINE or ours is None or theirs is None:
            continue
        claim = f"{name} recalls at most {NEAR:.0%} less than softmax with heads of {largest}"
        if not (ours.is_complete and theirs.is_complete):
            yield Verdict(claim, None, _done(ours))
            continue
        gap = paired_difference(ours.accuracies, theirs.accuracies)
        assert gap is not None  # both have all seeds
        share = f"{amount(ours.state_bytes)} of state, softmax {amount(theirs.state_bytes)}"
        yield Verdict(claim, at_least(gap, -NEAR), f"{between(gap, '+.1%')}: {_said(ours)}; {share}")


def _find(measured: Sequence[Remembered], name: str, head_dim: int) -> Remembered | None:
    wanted = (RECALL, name, head_dim)
    return next((result for result in measured if (result.task, result.mechanism, result.head_dim) == wanted), None)


def _done(result: Remembered) -> str:
    return f"{len(result.accuracies)} of {result.planned} runs done"


def _said(result: Remembered) -> str:
    return f"{between(result.accuracy.as_share, '.1%')} recalled"
