"""Rows about predictions for test clients: metrics beside baselines, curves, confusion, and which columns matter."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.ragged import places_of
from subquad.results import Row
from subquad.statistics import share_interval
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.metrics import interval_of
from subquad.tasks.transactions.survival import Event
from subquad.tasks.transactions.target import Target
from subquad.tasks.transactions.targets import Classes, Labels, Number

POINTS = 100
"""Largest number of points of a curve."""
BINS = 10
"""Number of bins of predictions in a calibration."""
MOST_SHOWN = 20
"""Largest number of classes in a table of confusion, the most frequent ones."""
MOST_PERMUTED = 1000
"""Largest number of test clients by which it is measured which columns matter."""
ORDER = "order of events"

Predict = Callable[[Histories], Float[ndarray, "n p"]]


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


def importance_rows(target: Target, test: Histories, predict: Predict, fields: tuple[str, ...]) -> Iterator[Row]:
    """Yields by how much the deciding metric falls when a column's values are exchanged between test clients.

    The values of a column of events are exchanged between all events of all clients. For the order of events, those of each
    client are shuffled and its times stay. Intervals are by drawing clients again.
    """
    test = test.select(np.arange(min(len(test.clients), MOST_PERMUTED)))
    rng = np.random.default_rng(0)
    before = target.metrics(test.targets, predict(test))[target.deciding]
    for column, permuted in _permuted(test, fields, rng):
        after = target.metrics(test.targets, predict(permuted))[target.deciding]
        yield {"metric": "importance", "column": column, "of": target.deciding, **interval_of(before - after)._asdict()}


def _permuted(test: Histories, fields: tuple[str, ...], rng: np.random.Generator) -> Iterator[tuple[str, Histories]]:
    """Yields the histories with one column after the other exchanged."""
    events, clients = rng.permutation(len(test.times)), rng.permutation(len(test.clients))
    for name, part in (("code", "codes"), ("type", "types"), ("amount", "amounts")):
        if name in fields:
            yield name, test._replace(**{part: getattr(test, part)[events]})
    for at, column in enumerate(test.columns):
        columns = (*test.columns[:at], column.take(events), *test.columns[at + 1 :])
        yield column.column.name, test._replace(columns=columns)
    for at, column in enumerate(test.static):
        columns = (*test.static[:at], column.take(clients), *test.static[at + 1 :])
        yield column.column.name, test._replace(static=columns)
    mixed = _shuffled_within(test, rng)
    yield (
        ORDER,
        test._replace(
            codes=test.codes[mixed],
            types=test.types[mixed],
            amounts=test.amounts[mixed],
            columns=tuple(column.take(mixed) for column in test.columns),
        ),
    )


def _shuffled_within(test: Histories, rng: np.random.Generator) -> Int[ndarray, "events"]:
    """The places of the events, in a random order within each client."""
    client = np.repeat(np.arange(len(test.clients)), test.lengths)
    return places_of(test.offsets[:1], test.offsets[-1:])[np.lexsort((rng.random(len(client)), client))]
