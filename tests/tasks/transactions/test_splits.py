"""Splits by client."""

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks.transactions.splits import split, split_unlabelled

NAMES = [f"c{number}" for number in range(100)]
LABELS = np.arange(100) % 2


def test_splits_are_disjoint_and_folds_cover_everybody() -> None:
    tests = []
    for fold in range(5):
        found = split(NAMES, LABELS, folds=5, fold=fold, seed=0)
        assert sorted(np.concatenate(found)) == list(range(100))
        assert [len(part) for part in found] == [72, 8, 20]
        tests.append(found.test)
    assert sorted(np.concatenate(tests)) == list(range(100))


def test_it_goes_by_names_and_seed() -> None:
    found = split(NAMES, LABELS, folds=5, fold=1, seed=0)
    turned = split(NAMES[::-1], LABELS[::-1], folds=5, fold=1, seed=0)
    assert {NAMES[at] for at in found.test} == {NAMES[::-1][at] for at in turned.test}
    assert set(split(NAMES, LABELS, folds=5, fold=1, seed=1).test) != set(found.test)


def test_clients_without_a_label_are_in_none() -> None:
    labels = np.where(np.arange(100) < 40, -1, LABELS)
    assert min(np.concatenate(split(NAMES, labels, folds=4, fold=0, seed=0))) == 40


def test_clients_without_labels_are_tested_on_others_than_those_of_development() -> None:
    for count in (6, 40, 100):
        found = split_unlabelled(NAMES[:count], 0)
        assert sorted(np.concatenate(found)) == list(range(count))
        assert min(map(len, found)) >= 2
    with pytest.raises(SubquadError, match="too few clients to learn from, 5: give at least 6"):
        split_unlabelled(NAMES[:5], 0)


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(
        SubquadError, match="--folds must be at least 2 and --fold from 0 to folds - 1, but they are 5 and 5"
    ):
        split(NAMES, LABELS, folds=5, fold=5, seed=0)
    with pytest.raises(SubquadError, match="split has clients of one class only: there are too few clients, 6 with a label"):
        split(NAMES[:6], LABELS[:6], folds=5, fold=0, seed=0)
