"""Planted answers come out of made-up rows, and limits turn the question around."""

import pytest

from subquad.choose.decision import Decision, Wishes, decide, level_of, widened
from subquad.choose.standings import read_standings
from subquad.results import Row
from subquad.statistics import Interval
from tests.choose.made import advantages, costs, quality, race, seen

FAST = {"softmax": 1.0, "linear": 0.2, "hybrid": 0.4, "window": 0.3}
GIVES_UP = {"linear": "it weighs keys in a way of its own", "softmax": "nothing but time"}


def decided(rows: list[Row], wishes: Wishes = Wishes()) -> Decision:  # noqa: B008
    return decide(read_standings(rows), wishes, GIVES_UP)


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
    assert "+0.01 (-0.01 to +0.03)" in decision.sentences[1]


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
    assert "It has 4.31 (4.30 to 4.31) nats per token on the test" in decided(rows).sentences[1]


def test_wide_intervals_are_not_level() -> None:
    decision = decided(race({"softmax": 0.9, "linear": 0.9}, half=0.1, seconds=FAST))
    assert decision.chosen == "softmax"
    assert decision.levels["linear"] == "unclear"
    assert "not clearly level" in decision.sentences[1]


def test_better_than_softmax_becomes_the_standard() -> None:
    decision = decided(race({"softmax": 0.8, "hybrid": 0.9, "linear": 0.7}, seconds=FAST))
    assert (decision.chosen, decision.standard) == ("hybrid", "hybrid")
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


def test_limits_that_nothing_keeps() -> None:
    decision = decided(race({"softmax": 0.9, "linear": 0.8}, seconds=FAST), Wishes(max_seconds=0.01))
    assert (decision.kind, decision.chosen) == ("none", "")
    assert "No attention keeps --max-seconds" in decision.sentences[0]
    assert "linear: 200 ms" in decision.sentences[1]


def test_nothing_scored_yet() -> None:
    decision = decided(seen())
    assert decision.kind == "unknown"
    assert "--resume" in decision.sentences[0]


def test_costs_that_are_not_known_leave_softmax() -> None:
    decision = decided(race({"softmax": 0.9, "linear": 0.9}, seconds={}))
    assert decision.chosen == "softmax"


def test_without_softmax_the_best_is_the_standard() -> None:
    decision = decided(race({"linear": 0.9, "window": 0.5}, seconds=FAST))
    assert (decision.chosen, decision.standard) == ("linear", "linear")


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


def scores(name: str, search: tuple[int, float], final: tuple[int, float], good: str = "high") -> list[Row]:
    return [
        {"metric": "score", "mechanism": name, "stage": stage, "steps": steps, "value": value, "good": good}
        for stage, (steps, value) in (("search", search), ("search", (search[0], 0.5)), ("final", final))
    ]


def test_a_race_that_was_too_short_says_so() -> None:
    rows = race({"softmax": 0.7, "linear": 0.7}, trivial=0.5, seconds=FAST)
    assert len(decided(rows).sentences) == 3
    short = decided([*rows, *scores("softmax", (20, 0.6), (60, 0.7)), *scores("linear", (30, 0.69), (90, 0.7))])
    assert short.chosen == "linear"
    assert short.sentences[3].startswith("The attentions were still learning: softmax had 0.6 in development after 20 steps")
    learned = [*scores("softmax", (200, 0.699), (600, 0.7)), *scores("linear", (300, 0.7), (900, 0.699))]
    assert len(decided([*rows, *learned]).sentences) == 3
    equally_long = scores("softmax", (60, 0.6), (60, 0.7))
    assert len(decided([*rows, *equally_long]).sentences) == 3


def test_far_fewer_steps_than_usual_are_said() -> None:
    made = race({"softmax": 0.7, "linear": 0.7}, seconds=FAST)
    rows = [{**row, "steps": 60} if row["metric"] == "quality" else row for row in made]
    short = decide(read_standings(rows), Wishes(), GIVES_UP, usual_steps=600)
    assert "had 60 training steps at most, where `subquad train` takes 600" in short.sentences[-1]
    long = decide(read_standings(rows), Wishes(), GIVES_UP, usual_steps=240)
    assert "training steps" not in " ".join(long.sentences)


def test_low_scores_are_learned_too() -> None:
    rows = race({"softmax": 1.0, "linear": 1.001}, trivial=2.0, metric="nll", seconds=FAST)
    longer = scores("linear", (20, 0.4), (60, 0.2), "low")
    assert "linear had 0.4 in development after 20 steps and 0.2 after 60" in decided([*rows, *longer]).sentences[-1]
