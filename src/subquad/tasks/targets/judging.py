"""Rows about predictions for test sequences: metrics beside baselines, curves and confusion."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.results import Row
from subquad.statistics import share_interval
from subquad.tasks.targets.kinds import Classes, Labels, Number
from subquad.tasks.targets.metrics import interval_of
from subquad.tasks.targets.survival import Event
from subquad.tasks.targets.target import Target

POINTS = 100
"""Largest number of points of a curve."""
BINS = 10
"""Number of bins of predictions in a calibration."""
MOST_SHOWN = 20
"""Largest number of classes in a table of confusion, the most frequent ones."""


def compared_rows(
    target: Target, truth: Float[ndarray, "n k"], ours: Float[ndarray, "n p"], others: Mapping[str, Float[ndarray, "n p"]]
) -> Iterator[Row]:
    """Yields metrics on the test clients of the model and of baselines, and by how much the model is better than each."""
    measured = target.metrics(truth, ours)
    for name, draws in measured.items():
        yield {"metric": name, "split": "test", **interval_of(draws)._asdict()}
    for baseline, predicted in others.items():
        theirs = target.metrics(truth, predicted)
        for name, draws in theirs.items():
            yield {"metric": name, "split": "baseline", "baseline": baseline, **interval_of(draws)._asdict()}
        gap = interval_of(measured[target.deciding] - theirs[target.deciding])
        about = {"metric": f"{target.deciding}_gained", "split": "baseline", "baseline": baseline}
        yield {**about, **gap._asdict()}


def trivial_rows(target: Target, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "1 p"]) -> Iterator[Row]:
    """Yields metrics of the prediction that is the same for all clients."""
    same = np.repeat(predicted, len(truth), axis=0)
    for name, draws in target.metrics(truth, same, 0).items():
        if np.isfinite(draws[0]):
            yield {"metric": name, "split": "trivial", "value": float(draws[0])}


def curve_rows(target: Target, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"]) -> Iterator[Row]:
    """Yields the points of curves and the cells of a confusion, as far as the target has them."""
    if isinstance(target, Classes) and target.is_binary:
        yield from _threshold_rows(truth[:, 0] == 1, predicted[:, 0])
        yield from _calibration_rows(truth[:, 0] == 1, predicted[:, 0])
    if isinstance(target, Labels):
        known = ~np.isnan(truth)
        yield from _calibration_rows(truth[known] == 1, predicted[known])
    if isinstance(target, Classes):
        if not target.is_binary:
            yield from _calibration_rows(predicted.argmax(1) == truth[:, 0], predicted.max(1))
        yield from _confusion_rows(target, truth[:, 0].astype(int), predicted)
    if isinstance(target, Number):
        yield from _number_rows(truth[:, 0], predicted[:, 0])
    if isinstance(target, Event):
        yield from _event_rows(target, truth, predicted)


def _threshold_rows(positive: ndarray, scores: Float[ndarray, "n"]) -> Iterator[Row]:
    """Yields points of the curves of ROC, and of precision by recall, one for each threshold of some."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)
    right = np.concatenate([[0], np.cumsum(positive[order])[ends]])
    wrong = np.concatenate([[0], np.cumsum(~positive[order])[ends]])
    some = np.unique(np.linspace(0, len(right) - 1, min(POINTS, len(right))).round().astype(int))
    for at in some:
        found = {"value": float(right[at] / max(1, right[-1])), "false_positives": float(wrong[at] / max(1, wrong[-1]))}
        yield {"metric": "roc", "unit": "share", **found}
        if at:
            precision = float(right[at] / (right[at] + wrong[at]))
            yield {"metric": "precision", "unit": "share", "value": precision, "recall": found["value"]}


def _calibration_rows(happened: ndarray, predicted: Float[ndarray, "n"]) -> Iterator[Row]:
    """Yields how often something happened among clients with similar predictions, in bins with equally many clients."""
    for chosen in np.array_split(np.argsort(predicted, kind="stable"), min(BINS, len(predicted))):
        share = share_interval(int(happened[chosen].sum()), len(chosen))
        about = {"metric": "calibration", "unit": "share", "predicted": float(predicted[chosen].mean())}
        yield {**about, "clients": len(chosen), **share._asdict()}


def _confusion_rows(target: Classes, truth: Int[ndarray, "n"], predicted: Float[ndarray, "n p"]) -> Iterator[Row]:
    answers = (predicted[:, 0] >= 0.5).astype(int) if target.is_binary else predicted.argmax(1)
    shown = np.sort(np.argsort(-np.bincount(truth, minlength=len(target.names)), kind="stable")[:MOST_SHOWN])
    for real in shown:
        for answer in shown:
            count = int(((truth == real) & (answers == answer)).sum())
            names = {"right": target.names[real], "answered": target.names[answer]}
            yield {"metric": "confusion", "unit": "clients", "value": count, **names}


def _number_rows(truth: Float[ndarray, "n"], predicted: Float[ndarray, "n"]) -> Iterator[Row]:
    """Yields the mean of the real numbers among clients with similar predictions."""
    for chosen in np.array_split(np.argsort(predicted, kind="stable"), min(BINS, len(predicted))):
        mean, error = float(truth[chosen].mean()), float(1.96 * truth[chosen].std() / np.sqrt(len(chosen)))
        about = {"metric": "calibration", "unit": "", "predicted": float(predicted[chosen].mean()), "clients": len(chosen)}
        yield {**about, "value": mean, "low": mean - error, "high": mean + error}


def _event_rows(target: Event, truth: Float[ndarray, "n 2"], predicted: Float[ndarray, "n p"]) -> Iterator[Row]:
    """Yields, for the middle edge of the intervals, how often the event had happened, among clients of whom it is known."""
    middle = len(target.edges) // 2
    edge = target.edges[middle]
    known = (truth[:, 1] > 0) | (truth[:, 0] >= edge)
    if known.any():
        yield from _calibration_rows((truth[known, 0] < edge) & (truth[known, 1] > 0), 1.0 - predicted[known, middle])
