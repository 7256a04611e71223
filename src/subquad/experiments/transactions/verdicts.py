"""Verdicts on card transactions (Baikalov et al.): which attention separates two classes of clients best, at what cost?

The attentions are also compared with a linear model of counts and with gradient boosting on aggregates, on the same clients,
fold by fold.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from subquad.experiments.base import part_rows
from subquad.experiments.transactions.grid import BASELINE, BEST_POSSIBLE, BOOSTING, COUNTS, LONG, SCORE
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_most, is_positive, percentile_interval
from subquad.tasks.targets.metrics import auroc, resampled_aurocs
from subquad.words import between

NEAR = 0.02
"""Largest distance from the best possible AUROC that counts as having learned the task."""
QUARTER = 0.25
"""Largest share of softmax's time for a training step on long histories that counts as cheap."""


class Scores(NamedTuple):
    """Labels of the test clients of one fold, and their scores by a model."""

    labels: ndarray
    values: ndarray


def gather(rows: Sequence[Row]) -> dict[str, dict[str, dict[int, Scores]]]:
    """Scores by label, mechanism and fold."""
    by_label: dict[str, dict[str, dict[int, list[Row]]]] = {}
    for row in rows:
        if row["metric"] == SCORE:
            by_label.setdefault(row["label"], {}).setdefault(row["mechanism"], {}).setdefault(row["fold"], []).append(row)
    return {
        label: {
            name: {
                fold: Scores(np.array([row["class"] for row in fold_rows]), np.array([row["value"] for row in fold_rows]))
                for fold, fold_rows in folds.items()
            }
            for name, folds in by_name.items()
        }
        for label, by_name in by_label.items()
    }


def quality(folds: Mapping[int, Scores]) -> Interval:
    """Mean AUROC over folds, with its bootstrap interval over the clients of each fold."""
    return _interval(_draws(folds))


def difference(first: Mapping[int, Scores], second: Mapping[int, Scores]) -> Interval:
    """Difference of two mean AUROCs, with its bootstrap interval over the same clients."""
    return _interval(_draws(first) - _draws(second))


def _draws(folds: Mapping[int, Scores]) -> ndarray:
    """Mean AUROC over folds, followed by its bootstrap draws."""
    by_fold = [
        np.concatenate([[auroc(scores.labels, scores.values)], resampled_aurocs(scores.labels, scores.values, seed=fold)])
        for fold, scores in sorted(folds.items())
    ]
    drawn: ndarray = np.mean(by_fold, axis=0)
    return drawn


def _interval(draws: ndarray) -> Interval:
    return percentile_interval(float(draws[0]), draws[1:])


def best_possible(rows: Sequence[Row]) -> float | None:
    """Mean over folds of the AUROC of the optimal classifier; None if it is not known."""
    by_fold = {row["fold"]: row["value"] for row in rows if row["metric"] == BEST_POSSIBLE}
    return float(np.mean(list(by_fold.values()))) if by_fold else None


def judge(folder: Path) -> list[Verdict]:
    """Returns verdicts on quality and on cost."""
    rows = part_rows(folder / "scores", "scores") or []
    verdicts: list[Verdict] = []
    for label, by_name in gather(rows).items():
        verdicts += compared(label, by_name, best_possible(rows))
    return [*verdicts, *cheaper(rows)]


def compared(label: str, by_name: Mapping[str, Mapping[int, Scores]], best: float | None) -> Iterator[Verdict]:
    """Yields verdicts on each attention against the optimum, softmax and boosting."""
    about = f" ({label})" if label else ""
    for name in [name for name in by_name if name not in (BOOSTING, COUNTS)]:
        ours = quality(by_name[name])
        if best is not None:
            claim = f"{name} comes within {NEAR} of the best possible AUROC"
            yield Verdict(claim, best - ours.value <= NEAR, f"{between(ours, '.3f')}, best possible {best:.3f}")
        for other in (BASELINE, COUNTS, BOOSTING):
            if other in by_name and other != name:
                gap = difference(by_name[name], by_name[other])
                theirs = between(quality(by_name[other]), ".3f")
                yield Verdict(
                    f"{name} has a higher AUROC than {other}{about}",
                    is_positive(gap),
                    f"{between(ours, '.3f')} against {theirs}; difference {between(gap, '+.3f')}",
                )


def cheaper(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Whether a training step on long histories takes at most a quarter of softmax's time."""
    for row in rows:
        long = row["metric"] == "times_softmax" and row["work"] == "training" and row["length"] == LONG
        if long and row["mechanism"] in ("linear", "favor"):
            claim = f"with {row['mechanism']} a training step on {LONG} events takes at most a quarter of softmax's time"
            share = Interval.of_row(row)
            yield Verdict(claim, at_most(share, QUARTER), f"{between(share, '.3f')} times softmax's")
