"""A baseline: gradient boosting on aggregates of each client's events, for every kind of target."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.errors import SubquadError
from subquad.tasks.targets.kinds import Classes, Labels, Number
from subquad.tasks.targets.survival import Event
from subquad.tasks.targets.target import Target

Fit = Callable[[ndarray, ndarray], Any]

ROUNDS, RATE = 100, 0.1
"""Rounds and learning rate of boosting, scikit-learn's defaults."""
LEAST_ROUNDS, LARGEST_RATE = 10, 0.3
"""Smallest number of rounds, and largest learning rate, for many classes."""
MOST_TREES = 4000
"""Number of trees of all classes or labels together above which there are fewer rounds with a larger learning rate."""


def effort(trees: int) -> tuple[int, float]:
    """Number of rounds and learning rate of boosting that fits so many trees in each round: one for each class."""
    rounds = min(ROUNDS, max(LEAST_ROUNDS, MOST_TREES // max(1, trees)))
    return rounds, min(LARGEST_RATE, RATE * ROUNDS / rounds)


def boosted(
    target: Target,
    train: Float[ndarray, "train numbers"],
    truth: Float[ndarray, "train k"],
    test: Float[ndarray, "test numbers"],
    seed: int = 0,
) -> Float[ndarray, "test p"]:
    """Predictions for the test clients by gradient boosting, trained on the aggregates of the training clients."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    except ImportError:
        raise SubquadError("gradient boosting needs scikit-learn: pip install 'subquad[data]'") from None

    rounds, rate = effort(len(target.names) if isinstance(target, Classes | Labels) else 1)

    def classifier(x: ndarray, y: ndarray) -> Any:
        # scikit-learn holds out a part of each class in large tables, which it cannot of a class with one member
        early = "auto" if np.unique(y, return_counts=True)[1].min() > 1 else False
        model = HistGradientBoostingClassifier(max_iter=rounds, learning_rate=rate, random_state=seed, early_stopping=early)
        return model.fit(x, y)

    if isinstance(target, Classes):
        return _classes(target, classifier(train, truth[:, 0].astype(int)), test)
    if isinstance(target, Labels):
        return np.stack([_label(classifier, train, truth[:, at], test) for at in range(len(target.names))], axis=1)
    if isinstance(target, Number):
        fitted = HistGradientBoostingRegressor(random_state=seed).fit(train, truth[:, 0])
        return np.asarray(fitted.predict(test))[:, None]
    assert isinstance(target, Event)
    return _event(target, classifier, train, truth, test)


def _classes(target: Classes, fitted: Any, test: ndarray) -> Float[ndarray, "test p"]:
    shares = np.zeros((len(test), len(target.names)))
    shares[:, fitted.classes_] = fitted.predict_proba(test)  # a class without training clients has no column
    return shares[:, 1:] if target.is_binary else shares


def _label(classifier: Fit, train: ndarray, truth: ndarray, test: ndarray) -> Float[ndarray, "test"]:
    known = ~np.isnan(truth)
    if len(np.unique(truth[known])) < 2:
        return np.full(len(test), truth[known].mean() if known.any() else 0.5)
    shares: ndarray = classifier(train[known], truth[known].astype(int)).predict_proba(test)[:, 1]
    return shares


def _event(target: Event, classifier: Fit, train: ndarray, truth: ndarray, test: ndarray) -> Float[ndarray, "test p"]:
    """Boosts the hazard of each interval: every training client is a row for each interval that it was observed in."""
    reached, places = target.reached(truth), np.arange(target.outputs)
    happened = (reached[:, None] == places) & (truth[:, 1:] > 0)
    at_risk = (reached[:, None] > places) | happened
    client, interval = np.nonzero(at_risk)
    rows = np.concatenate([train[client], interval[:, None]], axis=1)
    fitted = classifier(rows, happened[client, interval].astype(int))
    alive = np.ones((len(test), target.outputs))
    for place in places:
        asked = np.concatenate([test, np.full((len(test), 1), place)], axis=1)
        alive[:, place] = 1.0 - fitted.predict_proba(asked)[:, -1]
    return np.cumprod(alive, axis=1)
