"""Intervals of qualities and advantages: other test sequences and other seeds."""

import numpy as np
import pytest

from subquad.choose.scoring import Entrant, score_draws, score_rows, typical_variance
from subquad.results import Row
from subquad.tasks.comparing import Judged, judged_means


def judged(values: np.ndarray, good: str = "high") -> Judged:
    return judged_means("accuracy", "high" if good == "high" else "low", "share", values, np.ones(len(values)))


def advantage(rows: list[Row], ours: str, theirs: str) -> Row:
    return next(row for row in rows if row["metric"] == "advantage" and (row["mechanism"], row["against"]) == (ours, theirs))


def test_pairing_removes_what_all_sequences_share() -> None:
    rng = np.random.default_rng(0)
    hard = rng.uniform(size=400)
    first = {seed: judged(hard + 0.05 + 0.001 * rng.normal(size=400)) for seed in range(3)}
    second = {seed: judged(hard + 0.001 * rng.normal(size=400)) for seed in range(3)}
    rows = score_rows([Entrant("a", "attention", first, 10.0), Entrant("b", "attention", second, 20.0)])
    qualities = {row["mechanism"]: row for row in rows if row["metric"] == "quality"}
    assert qualities["a"]["high"] - qualities["a"]["low"] > 0.05
    gain = advantage(rows, "a", "b")
    assert gain["value"] == pytest.approx(0.05, abs=0.001)
    assert 0.045 < gain["low"] < gain["high"] < 0.055
    assert (qualities["a"]["steps"], qualities["a"]["seeds"]) == (10.0, 3)


def test_scatter_of_seeds_widens_intervals() -> None:
    hard = np.random.default_rng(0).uniform(size=400)
    calm = {seed: judged(hard) for seed in range(3)}
    restless = {seed: judged(hard + 0.1 * (seed - 1)) for seed in range(3)}
    rows = score_rows([Entrant("calm", "attention", calm), Entrant("restless", "attention", restless)])
    gain = advantage(rows, "calm", "restless")
    assert gain["value"] == pytest.approx(0.0, abs=1e-9)
    typical = 0.1**2 * 2 / 1.386 / 2  # the median of chi-squared with 2 degrees; half-way between it and 0
    variance = (4 * 2 * typical + 2 * 0.1**2) / 6
    assert gain["high"] - gain["low"] == pytest.approx(2 * 2.447 * np.sqrt(variance / 3), rel=1e-3)  # Student's t, 6 degrees


def test_one_restless_attention_leaves_the_others_certain() -> None:
    """An attention that learned with one of two seeds only made the others look no better than guessing."""
    scores = {"softmax": (1.0, 1.0), "linear": (0.235, 0.231), "hybrid": (0.999, 0.230)}
    entrants = [
        Entrant(name, "attention", {seed: judged(np.full(400, score)) for seed, score in enumerate(known)})
        for name, known in scores.items()
    ]
    rows = score_rows([*entrants, Entrant("guessing", "trivial", {0: judged(np.full(400, 0.083))})])
    assert advantage(rows, "softmax", "guessing")["low"] > 0.9
    assert advantage(rows, "softmax", "linear")["low"] > 0.7
    assert advantage(rows, "softmax", "hybrid")["low"] < 0


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_typical_variance_is_not_too_small(seeds: int) -> None:
    drawn = np.random.default_rng(0).normal(scale=3.0, size=(4001, seeds, 1))
    assert typical_variance(list(map(list, drawn))) == pytest.approx(9.0, rel=0.1)
    assert typical_variance([[np.zeros(1)], []]) == 0.0


def test_intervals_of_shares_stay_between_none_and_all() -> None:
    runs = {seed: judged(np.ones(50) - 0.1 * seed) for seed in range(2)}
    high, low = (
        score_rows([Entrant("a", "attention", {s: j._replace(good=g) for s, j in runs.items()})])[0] for g in ("high", "low")
    )
    assert (high["value"], high["high"]) == (pytest.approx(0.95), 1.0)
    assert low["high"] > 1.0


def test_only_common_seeds_are_compared() -> None:
    values = np.random.default_rng(0).uniform(size=50)
    ours = Entrant("a", "attention", {0: judged(values), 1: judged(values + 1)})
    theirs = Entrant("b", "attention", {1: judged(values)})
    assert advantage(score_rows([ours, theirs]), "a", "b")["value"] == pytest.approx(1.0)
    apart = Entrant("b", "attention", {2: judged(values)})
    assert [row["metric"] for row in score_rows([ours, apart])] == ["quality", "quality"]


def test_low_is_good_turns_the_sign() -> None:
    values = np.random.default_rng(0).uniform(size=50)
    entrants = [
        Entrant("a", "attention", {0: judged(values, "low")}),
        Entrant("r", "rival", {0: judged(values + 0.5, "low")}),
    ]
    assert advantage(score_rows(entrants), "a", "r")["value"] == pytest.approx(0.5)


def test_auroc_of_labels_and_scores() -> None:
    labels, scores = np.array([0.0, 0, 1, 1]), np.array([0.1, 0.6, 0.5, 0.9])
    draws = score_draws(Judged("auroc", "high", "share", np.stack([labels, scores], axis=1), "auroc"))
    assert draws[0] == pytest.approx(0.75)
    assert len(draws) == 1001


def test_neighbouring_sequences_are_joined() -> None:
    many = judged_means("accuracy", "high", "share", np.ones(5000), np.full(5000, 2.0))
    assert many.parts.shape == (2000, 2)
    assert many.parts.sum(0).tolist() == [5000.0, 10_000.0]


def test_nothing_to_score() -> None:
    assert score_rows([]) == []
