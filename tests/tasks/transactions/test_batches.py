"""Histories as batches."""

import numpy as np

from subquad.tasks.transactions.batches import pad


def test_histories_side_by_side() -> None:
    encoded = np.arange(12, dtype=np.float32).reshape(6, 2)
    events, keep = pad(encoded[1:], np.array([0, 3, 5]))
    assert events.tolist() == [[[2, 3], [4, 5], [6, 7]], [[8, 9], [10, 11], [0, 0]]]
    assert keep.tolist() == [[True, True, True], [True, True, False]]
