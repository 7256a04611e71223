"""Batches of about one length."""

import numpy as np
import pytest
import torch

from subquad.data.buckets import Buckets, bounded, bucket_edges


def test_less_than_a_tenth_is_padding() -> None:
    """With lengths from 1 to 100,000."""
    lengths = np.unique(np.geomspace(1, 100_000, 5000).astype(int))
    buckets = Buckets(np.arange(len(lengths)), lengths)
    assert sum(map(len, buckets.members.values())) == len(lengths)
    for members in buckets.members.values():
        assert 1 - lengths[members].min() / lengths[members].max() < 0.1
    for seed in range(200):
        some = lengths[buckets.draw(32, torch.Generator().manual_seed(seed))]
        assert 1 - some.sum() / (32 * some.max()) < 0.1
    assert bucket_edges(100_000)[-1] > 100_000


def test_a_sequence_comes_again_only_after_all_others() -> None:
    lengths = np.array([100] * 5 + [300] * 20)
    buckets = Buckets(np.arange(50, 75), lengths)
    chosen = [buckets.draw(12, torch.Generator().manual_seed(seed)) for seed in range(400)]
    short = [some for some in chosen if some[0] < 55]
    assert len(short) == pytest.approx(400 / 5, rel=0.3)  # in proportion to how many it has
    for some in chosen:
        counts = np.unique(some, return_counts=True)[1]
        assert counts.tolist() in ([3, 3, 2, 2, 2], [1] * 12) or sorted(counts) == [2, 2, 2, 3, 3]
        assert len(set(some < 55)) == 1
    assert {client for some in chosen for client in some} == set(range(50, 75))


def test_bounded_batches_hold_everybody_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 300)
    lengths[7] = 5000
    parts = list(bounded(lengths, 1000))
    assert sorted(np.concatenate(parts)) == list(range(300))
    for part in parts:
        assert len(part) * lengths[part].max() <= 1000 or part.tolist() == [7]
    assert len(parts) < 60
