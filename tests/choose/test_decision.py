"""Planted answers come out of made-up rows, and limits turn the question around."""

import pytest

from subquad.choose.decision import Wishes, level_of, widened
from subquad.choose.sentences import beside
from subquad.choose.standings import read_standings
from subquad.results import Row
from subquad.statistics import Interval
from tests.choose.made import FAST, LEVEL, advantages, costs, decided, quality, race, seen


def test_far_memory_a_window_loses() -> None:
    decision = decided(race({"softmax": 0.9, "linear": 0.9, "window": 0.4}, seconds=FAST))
    assert (decision.kind, decision.chosen) == ("attention", "linear")
    assert decision.levels == {"softmax": "level", "linear": "level", "window": "worse"}
    assert "level with softmax" in decision.sentences[0]
    assert "5.00 times as fast at 512 positions" in decision.sentences[0]
    assert decision.sentences[-1] == "What is given up: it weighs keys in a way of its own."
    assert decision.front == ("linear",)


def test_exact_recall_softmax_wins() -> None:
    decision = decided(race({"softmax": 0.99, "hybrid": 0.95, "linear": 0.3}, seconds=FAST))
    assert (decision.kind, decision.chosen) == ("softmax", "softmax")
    assert decision.levels["linear"] == decision.levels["hybrid"] == "worse"
    assert "nothing faster is shown to be level" in decision.sentences[0]


def test_exact_recall_a_hybrid_that_reaches_is_taken() -> None:
    decision = decided(race({"softmax": 0.99, "hybrid": 0.985, "linear": 0.3}, seconds=FAST))
    assert decision.chosen == "hybrid"


def test_short_sequences_softmax() -> None:
    rows = race({"softmax": 0.9, "linear": 0.902}, seconds={"softmax": 1.0, "linear": 0.95}, length=32)
    decision = decided(rows)
    assert (decision.kind, decision.chosen) == ("softmax", "softmax")
    assert "your sequences are short" in decision.sentences[0]
    assert "32 positions" in decision.sentences[0]


def test_aggregates_tell_everything_boosting() -> None:
    rows = race({"softmax": 0.80, "linear": 0.79}, rivals={"boosting": 0.81, "counts": 0.7}, seconds=FAST, metric="auroc")
    decision = decided(rows)
    assert (decision.kind, decision.chosen) == ("rival", "boosting")
    assert "attention adds nothing here" in decision.sentences[0]


def test_attention_that_beats_boosting_is_recommended() -> None:
    rows = race({"softmax": 0.83, "linear": 0.83}, rivals={"boosting": 0.81}, seconds=FAST, metric="auroc")
    assert decided(rows).chosen == "linear"


def test_noise_labels_nothing_can_be_told() -> None:
    rows = race({"softmax": 0.51, "linear": 0.505}, rivals={"boosting": 0.5}, trivial=0.5, half=0.02, seconds=FAST)
    decision = decided(rows)
    assert (decision.kind, decision.chosen) == ("nothing", "")
    assert decision.sentences[0].startswith("Nothing can be told")
    assert "0.010 ahead of it (0.014 behind to 0.034 ahead) if one allows for taking the best of 3." in decision.sentences[1]


def test_best_of_many_is_not_taken_for_more_than_chance() -> None:
    scores = {f"attention {number}": 0.5 for number in range(8)} | {"softmax": 0.522}
    assert decided(race(scores, trivial=0.5, half=0.02, seconds={})).kind == "nothing"


def test_low_scores_can_be_good() -> None:
    rows = race({"softmax": 1.0, "linear": 1.001, "window": 1.4}, trivial=2.0, metric="nll", seconds=FAST)
    decision = decided(rows)
    assert decision.chosen == "linear"
    assert decision.levels["window"] == "worse"


def test_nats_and_bits_are_counted() -> None:
    rows = race({"softmax": 4.31, "linear": 6.0}, trivial=7.0, metric="nats_per_token", seconds=FAST)
    assert "It has 4.3100 (4.3050 to 4.3150) nats per token on the test" in decided(rows).sentences[1]


def test_wide_intervals_are_not_level() -> None:
    decision = decided(race({"softmax": 0.9, "linear": 0.9}, half=0.1, seconds=FAST))
    assert decision.chosen == "softmax"
    assert decision.levels["linear"] == "unclear"
    assert "not clearly level" in decision.sentences[1]


def test_better_than_softmax_becomes_the_standard() -> None:
    decision = decided(race({"softmax": 0.8, "hybrid": 0.9, "linear": 0.7}, seconds=FAST))
    assert (decision.chosen, decision.standard) == ("hybrid", "hybrid")
    assert decision.sentences[0].startswith("Hybrid: it is better than softmax, and nothing faster is shown to be level")
    assert decision.levels["softmax"] == "worse"


def test_conversions_stand_beside_the_original_only() -> None:
    scores = {"softmax": 0.80, "hybrid": 0.90, "window": 0.85}
    rows = race(scores, seconds=FAST)
    candidates: list[Row] = [{"metric": "candidate", "value": 1, "mechanism": "window", "gives_up": "far tokens"}]
    decision = decided([*rows, *candidates])
    assert (decision.standard, decision.chosen) == ("softmax", "window")
    assert set(decision.levels.values()) == {"level", "better"}
    assert decided(rows).standard == "hybrid"


@pytest.mark.parametrize(
    ("wishes", "chosen"),
    [
        (Wishes(quality_loss=0.2), "linear"),
        (Wishes(quality_loss=0.001), "softmax"),
        (Wishes(max_seconds=0.5), "hybrid"),
        (Wishes(max_seconds=0.25), "linear"),
        (Wishes(max_memory=50.0), "linear"),
    ],
)
def test_wishes_turn_it_around(wishes: Wishes, chosen: str) -> None:
    rows = race({"softmax": 0.9, "hybrid": 0.85, "linear": 0.8}, seconds=FAST)
    rows += costs({}, {"softmax": 1000.0, "hybrid": 100.0, "linear": 10.0})
    assert decided(rows, wishes).chosen == chosen


def test_a_limit_that_softmax_does_not_keep_says_what_is_lost() -> None:
    rows = race({"softmax": 0.9, "hybrid": 0.85, "linear": 0.8}, seconds=FAST)
    decision = decided(rows, Wishes(max_seconds=0.5))
    assert decision.sentences[0].startswith("Hybrid: it is the best one that keeps your limits, and nothing faster")
    assert "on the test, 0.0500 behind softmax (0.0450 to 0.0550). Faster ones: linear" in decision.sentences[1]


def test_limits_that_nothing_keeps() -> None:
    decision = decided(race({"softmax": 0.9, "linear": 0.8}, seconds=FAST), Wishes(max_seconds=0.01))
    assert (decision.kind, decision.chosen) == ("none", "")
    assert "No attention keeps --max-seconds" in decision.sentences[0]
    assert "linear: 200 ms" in decision.sentences[1]


def test_nothing_scored_yet() -> None:
    decision = decided(seen())
    assert decision.kind == "unknown"
    assert "--resume" in decision.sentences[0]
    failure = {"failure": "out of memory", "message": "it needs 9 GB", "value": None}
    failed: list[Row] = [{"metric": "score", "mechanism": "linear", "stage": "search", **failure}]
    searched = {**failed[0], "value": 0.9, "steps": 9, "seconds": 1.0, "good": "high"}
    assert "--resume" in decided([*seen(), *failed, searched]).sentences[0]
    decision = decided([*seen(), *failed, *failed])
    assert decision.sentences == (
        "No attention was scored on the test: 2 runs failed, the first by out of memory (it needs 9 GB). Change that, and "
        "start a new race.",
    )


def test_costs_that_are_not_known_leave_softmax() -> None:
    for seconds in ({}, {"softmax": 1.0}):
        decision = decided(race({"softmax": 0.9, "linear": 0.9}, seconds=seconds))
        assert decision.chosen == "softmax"
        assert decision.sentences[0].startswith("Softmax: not all costs were measured")


def test_costs_are_compared_at_a_length_that_all_were_measured_at() -> None:
    """Softmax has no time at the length of nine of ten sequences: that at a shorter one is not held against others."""
    rows = race({"softmax": 0.9, "linear": 0.9}, seconds={"softmax": 1.0, "linear": 0.5}, length=128)
    rows = [row for row in rows if row["metric"] != "seen"]
    rows += [*seen(512), *costs({"linear": 3.0}, length=512)]
    decision = decided(rows)
    assert decision.chosen == "linear"
    assert "2.00 times as fast at 128 positions" in decision.sentences[0]
    shorter = race({"softmax": 0.9, "linear": 0.9}, seconds={"softmax": 1.0, "linear": 0.95}, length=128)
    said = decided([*(row for row in shorter if row["metric"] != "seen"), *seen(512)]).sentences[0]
    assert said == "Softmax: at 128 positions, where costs were measured, nothing is 1.2 times as fast."


def test_memory_counts_at_the_largest_length_only() -> None:
    rows = [*race({"softmax": 0.9, "linear": 0.9}, seconds=FAST), *costs({}, {"softmax": 10.0, "linear": 9.0}, length=64)]
    assert decided(rows, Wishes(max_memory=100.0)).kind == "none"
    rows += costs({}, {"linear": 50.0}, length=512)
    assert decided(rows, Wishes(max_memory=100.0)).chosen == "linear"


def test_models_without_attention_that_were_not_judged_are_said() -> None:
    failed: Row = {
        "metric": "rival",
        "value": None,
        "names": "",
        "failure": "timeout",
        "message": "it took longer than 30 s",
    }
    said = decided([*LEVEL, failed]).sentences
    assert said[-1] == "Models without attention were not judged (timeout: it took longer than 30 s): they may be as good."
    judged: Row = {"metric": "rival", "value": 1, "unit": "models", "names": "guessing"}
    assert decided([*LEVEL, failed, judged]).sentences == decided(LEVEL).sentences


def test_without_softmax_the_best_is_the_standard() -> None:
    decision = decided(race({"linear": 0.9, "window": 0.5}, seconds=FAST))
    assert (decision.chosen, decision.standard) == ("linear", "linear")
    assert decision.sentences[0].startswith("Linear: it is the best of those that were raced, and nothing that was raced is")


def test_without_a_common_seed_nothing_is_level() -> None:
    rows = [quality("softmax", 0.9), quality("linear", 0.9), *costs(FAST), *seen()]
    assert level_of(read_standings(rows), "linear", "softmax", 0.1) == "unclear"
    assert decided(rows).chosen == "softmax"


def test_advantages_are_read_in_both_directions() -> None:
    rows = [quality("softmax", 0.9), quality("linear", 0.8), *advantages({"softmax": 0.9, "linear": 0.8}, 0.01)]
    gain = read_standings(rows).advantage("linear", "softmax")
    assert gain is not None
    assert gain == pytest.approx((-0.1, -0.11, -0.09))


def test_widened_intervals_hold_for_several_comparisons() -> None:
    plain = Interval(0.0, -1.0, 1.0)
    assert widened(plain, 1) == pytest.approx(plain)
    assert widened(plain, 10).low == pytest.approx(-2.807 / 1.96, rel=1e-3)


def test_level_attentions_of_the_same_speed_are_named() -> None:
    rows = race({"softmax": 0.9, "linear": 0.9, "hybrid": 0.9}, seconds={"softmax": 1.0, "linear": 0.2, "hybrid": 0.22})
    decision = decided(rows)
    assert decision.chosen == "linear"
    assert decision.sentences[1].endswith("About as fast and level too: hybrid; another run may recommend it.")
    assert "About as fast" not in " ".join(decided(race({"softmax": 0.9, "linear": 0.9}, seconds=FAST)).sentences)


@pytest.mark.parametrize(
    ("linear", "chosen", "said"),
    [
        (0.85, "softmax", "Level and nearly 1.2 times as fast: linear; another run may recommend it."),
        (0.80, "linear", "It is hardly 1.2 times as fast as softmax, which another run may recommend."),
        (0.95, "softmax", ""),
        (0.50, "linear", ""),
    ],
)
def test_a_speed_up_that_decides_by_a_hair_is_said(linear: float, chosen: str, said: str) -> None:
    decision = decided(race({"softmax": 0.9, "linear": 0.9}, seconds={"softmax": 1.0, "linear": linear}))
    assert decision.chosen == chosen
    assert said in decision.sentences[1]
    assert ("another run" in decision.sentences[1]) == bool(said)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Interval(-0.0182, -0.03, 0.002), "0.018 behind softmax (0.030 behind to 0.002 ahead)"),
        (Interval(-0.0182, -0.03, -0.01), "0.018 behind softmax (0.010 to 0.030)"),
        (Interval(0.5, 0.4, 0.6), "0.50 ahead of softmax (0.40 to 0.60)"),
        (Interval(-0.0, -0.0, 0.0), "level with softmax"),
        (Interval(-6.2e-10, -0.00698, 0.00698), "level with softmax (0.0070 behind to 0.0070 ahead)"),
        (Interval(0.2, float("nan"), float("nan")), "0.2 ahead of softmax (one seed)"),
    ],
)
def test_advantages_are_said_as_ahead_and_behind(gain: Interval, words: str) -> None:
    assert beside(gain, "softmax") == words
