"""Verdicts on card transactions (Baikalov et al.): which attention tells two classes of clients apart, at what cost?

Gradient boosting on aggregates stands beside the attentions, on the same clients, fold by fold.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from subquad.experiments.base import part_rows
from subquad.experiments.transactions.grid import BASELINE, BEST_POSSIBLE, BOOSTING, LONG, SCORE
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_most, is_positive, percentile_interval
from subquad.tasks.transactions.metrics import auroc, resampled_aurocs
from subquad.words import between

NEAR = 0.02
"""Distance from the best possible AUROC that counts as having learned the task."""
QUARTER = 0.25
"""Share of softmax's time that a training step may take at the long length."""


class Scores(NamedTuple):
    """Labels of the test clients of one fold, and a model's scores of them."""

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
    """The mean AUROC over folds, and its interval by drawing the clients of each fold again."""
    return _interval(_draws(folds))


def difference(first: Mapping[int, Scores], second: Mapping[int, Scores]) -> Interval:
    """How much higher the first's mean AUROC is, on the same clients, drawn again together."""
    return _interval(_draws(first) - _draws(second))


def _draws(folds: Mapping[int, Scores]) -> ndarray:
    """The mean AUROC over folds, followed by its bootstrap draws."""
    each = [
        np.concatenate([[auroc(scores.labels, scores.values)], resampled_aurocs(scores.labels, scores.values, seed=fold)])
        for fold, scores in sorted(folds.items())
    ]
    drawn: ndarray = np.mean(each, axis=0)
    return drawn


def _interval(draws: ndarray) -> Interval:
    return percentile_interval(float(draws[0]), draws[1:])


def best_possible(rows: Sequence[Row]) -> float | None:
    """The mean over folds of the AUROC of the best possible classifier, where it is known."""
    by_fold = {row["fold"]: row["value"] for row in rows if row["metric"] == BEST_POSSIBLE}
    return float(np.mean(list(by_fold.values()))) if by_fold else None


def judge(folder: Path) -> list[Verdict]:
    """Verdicts on quality and on cost."""
    rows = part_rows(folder / "scores", "scores") or []
    verdicts: list[Verdict] = []
    for label, by_name in gather(rows).items():
        verdicts += compared(label, by_name, best_possible(rows))
    return [*verdicts, *cheaper(rows)]


def compared(label: str, by_name: Mapping[str, Mapping[int, Scores]], best: float | None) -> Iterator[Verdict]:
    """Each attention against the best possible, softmax and boosting."""
    about = f" ({label})" if label else ""
    for name in [name for name in by_name if name != BOOSTING]:
        own = quality(by_name[name])
        if best is not None:
            claim = f"{name} comes within {NEAR} of the best possible AUROC"
            yield Verdict(claim, best - own.value <= NEAR, f"{between(own, '.3f')}, best possible {best:.3f}")
        for other in (BASELINE, BOOSTING):
            if other in by_name and other != name:
                gap = difference(by_name[name], by_name[other])
                theirs = between(quality(by_name[other]), ".3f")
                yield Verdict(
                    f"{name} has a higher AUROC than {other}{about}",
                    is_positive(gap),
                    f"{between(own, '.3f')} against {theirs}; difference {between(gap, '+.3f')}",
                )


def cheaper(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Whether a training step on many events takes at most a quarter of softmax's time."""
    for row in rows:
        long = row["metric"] == "times_softmax" and row["work"] == "training" and row["length"] == LONG
        if long and row["mechanism"] in ("linear", "favor"):
            claim = f"with {row['mechanism']} a training step on {LONG} events takes at most a quarter of softmax's time"
            share = Interval.of_row(row)
            yield Verdict(claim, at_most(share, QUARTER), f"{between(share, '.3f')} times softmax's")
