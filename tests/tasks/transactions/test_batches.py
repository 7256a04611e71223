"""Histories as batches."""

import numpy as np

from subquad.tasks.transactions.batches import pad


def test_histories_side_by_side() -> None:
    encoded = np.arange(12, dtype=np.float32).reshape(6, 2)
    events, keep, label = pad(encoded, np.array([0, 1, 3, 6]), np.array([0, 1, 0]), np.array([2, 1]))
    assert events.tolist() == [[[6, 7], [8, 9], [10, 11]], [[2, 3], [4, 5], [0, 0]]]
    assert keep.tolist() == [[True, True, True], [True, True, False]]
    assert label.tolist() == [0, 1]
