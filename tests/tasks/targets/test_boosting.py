"""Gradient boosting on aggregates, for every kind of target."""

import sys
from typing import Any

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks.targets import boosting
from subquad.tasks.targets.boosting import MOST_TREES, boosted, effort
from subquad.tasks.targets.kinds import Classes, Labels, Number
from subquad.tasks.targets.metrics import auroc
from subquad.tasks.targets.survival import Event

RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 3))
TRAIN, TEST = X[:300], X[300:]


def test_classes() -> None:
    pytest.importorskip("sklearn")
    truth = (X[:, :1] > 0).astype(float)
    predicted = boosted(Classes(("a", "b")), TRAIN, truth[:300], TEST)
    assert predicted.shape == (100, 1)
    assert auroc(truth[300:, 0].astype(int), predicted[:, 0]) > 0.95
    three = np.digitize(X[:, :1], [-0.5, 0.5]).astype(float)
    shares = boosted(Classes(("a", "b", "c", "never")), TRAIN, three[:300], TEST)
    assert (shares[:, 3] == 0).all()
    assert (shares.argmax(1) == three[300:, 0]).mean() > 0.9


def test_a_class_with_one_member_in_a_large_table() -> None:
    pytest.importorskip("sklearn")
    many = np.random.default_rng(0).standard_normal((10_100, 1))
    truth = (many > 0).astype(float)
    truth[0] = 2.0
    assert boosted(Classes(("a", "b", "rare")), many, truth, TEST[:, :1]).shape == (100, 3)


def test_labels_numbers_and_times() -> None:
    pytest.importorskip("sklearn")
    truth = (X[:, :2] > 0).astype(float)
    truth[::7, 1] = np.nan
    predicted = boosted(Labels(("a", "b")), TRAIN, truth[:300], TEST)
    assert auroc((X[300:, 1] > 0).astype(int), predicted[:, 1]) > 0.9
    number = boosted(Number(0.0, 1.0), TRAIN, 5 * X[:300, :1], TEST)
    assert np.corrcoef(number[:, 0], X[300:, 0])[0, 1] > 0.9
    times = np.stack([np.exp(X[:, 0] + 0.1 * RNG.standard_normal(400)), np.ones(400)], axis=1)
    target = Event.learned(times[:300])
    alive = boosted(target, TRAIN, times[:300], TEST)
    assert (np.diff(alive, axis=1) <= 0).all()
    assert target.metrics(times[300:], alive, 0)["concordance"][0] > 0.85


def test_without_scikit_learn_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)  # as if it were not installed
    with pytest.raises(SubquadError, match=r"gradient boosting needs scikit-learn: pip install 'subquad\[data\]'"):
        boosted(Number(0.0, 1.0), TRAIN, X[:300, :1], TEST)


@pytest.mark.parametrize(
    ("classes", "expected"), [(1, (100, 0.1)), (40, (100, 0.1)), (80, (50, 0.2)), (100, (40, 0.25)), (200, (20, 0.3))]
)
def test_many_classes_get_fewer_rounds(classes: int, expected: tuple[int, float]) -> None:
    assert effort(classes) == pytest.approx(expected)
    assert effort(classes)[0] * classes <= 2 * MOST_TREES


def test_boosting_with_many_classes_fits_few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble", reason="boosting is scikit-learn's")
    fitted: list[Any] = []
    fit = ensemble.HistGradientBoostingClassifier.fit

    def remembered(model: Any, x: Any, y: Any) -> Any:
        fitted.append(fit(model, x, y))
        return fitted[-1]

    monkeypatch.setattr(ensemble.HistGradientBoostingClassifier, "fit", remembered)
    monkeypatch.setattr(boosting, "MOST_TREES", 1000)
    truth = (np.arange(300) % 25)[:, None].astype(float)
    shares = boosted(Classes(tuple(map(str, range(25)))), TRAIN, truth, TEST)
    assert shares.sum(1) == pytest.approx(1.0)
    assert fitted[0].n_iter_ * 25 <= 1000
