"""AUROC and its intervals."""

import numpy as np
import pytest

from subquad import statistics
from subquad.tasks.targets.metrics import (
    accuracy,
    accuracy_interval,
    auroc,
    auroc_interval,
    resampled_aurocs,
)
from tests.test_statistics import resampled_counts


def brute_force(labels: np.ndarray, scores: np.ndarray) -> float:
    ones, zeros = scores[labels == 1], scores[labels == 0]
    return float(np.mean([[1.0 if one > zero else 0.5 if one == zero else 0.0 for zero in zeros] for one in ones]))


def drawn(size: int, shift: float, seed: int, levels: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores with ties."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=size)
    return labels, np.round(levels * (rng.normal(size=size) + shift * labels)) / levels


@pytest.mark.parametrize("seed", range(5))
def test_auroc_is_the_share_of_pairs(seed: int) -> None:
    labels, scores = drawn(41, 0.7, seed)
    assert auroc(labels, scores) == pytest.approx(brute_force(labels, scores))


def test_one_class_has_no_auroc() -> None:
    assert np.isnan(auroc(np.ones(3, int), np.arange(3.0)))


@pytest.mark.parametrize("room", [4_000_000, 100])
def test_resamples_are_those_of_clients(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each resampled AUROC is that of the clients drawn, as often as they were."""
    monkeypatch.setattr(statistics, "BATCH_NUMBERS", room)
    labels, scores = drawn(30, 0.7, 0)
    counts = resampled_counts(30, 5)
    assert counts.shape == (1000, 30)
    assert (counts.sum(1) == 30).all()
    found = resampled_aurocs(labels, scores, 5)
    for row in range(3):
        again = np.repeat(np.arange(30), counts[row].astype(int))
        assert found[row] == pytest.approx(brute_force(labels[again], scores[again]))


def test_intervals_hold_the_truth() -> None:
    """Of 100 samples about 95 intervals hold it; fewer than 88 do once in 200 times, and the seeds are fixed."""
    many = drawn(100_000, 1.0, 999)
    truth, right = auroc(*many), accuracy(*many)
    held = [auroc_interval(*drawn(200, 1.0, seed)) for seed in range(100)]
    assert 88 <= sum(found.low <= truth <= found.high for found in held) <= 99
    held = [accuracy_interval(*drawn(200, 1.0, seed)) for seed in range(100)]
    assert 88 <= sum(found.low <= right <= found.high for found in held) <= 99
