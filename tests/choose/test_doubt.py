"""What leaves the answer of a race open: runs that are too short, still learning, alone or not done; what to do then."""

import math

import pytest

from subquad.choose.decision import Training, Wishes, proposed_budget, to_come
from subquad.choose.sentences import said_budget
from subquad.choose.standings import Contestant, Progress, Standings, read_standings
from subquad.results import Row
from subquad.statistics import Interval
from tests.choose.made import FAST, LEVEL, decided, quality, race


def trained(rows: list[Row], steps: float) -> list[Row]:
    """The rows of a race whose final runs had so many steps."""
    return [{**row, "steps": steps} if row["metric"] == "quality" and row["role"] == "attention" else row for row in rows]


def scores(name: str, search: tuple[int, float], final: tuple[int, float], good: str = "high") -> list[Row]:
    """Rows of runs with their steps and scores in development, each step of a tenth of a second."""
    return [
        {"metric": "score", "mechanism": name, "stage": stage, "steps": steps, "seconds": 0.1 * steps}
        | {"value": value, "good": good}
        for stage, (steps, value) in (("search", search), ("search", (search[0], 0.5)), ("final", final))
    ]


def test_a_faster_attention_without_a_final_run_leaves_the_answer_open() -> None:
    rows = race({"softmax": 0.9, "window": 0.5}, seconds=FAST)
    searched: Row = {"metric": "score", "mechanism": "linear", "stage": "search", "steps": 9, "seconds": 1.0, "good": "high"}
    open_yet = decided([*rows, {**searched, "value": 0.9}])
    assert (open_yet.kind, open_yet.chosen) == ("short", "")
    assert "linear, which is at least 1.2 times as fast as softmax, has no final run yet" in open_yet.sentences[0]
    assert "go on with --resume" in open_yet.sentences[-1]
    failed = {**searched, "stage": "final", "value": None, "failure": "killed", "message": "the process ended"}
    assert decided([*rows, {**searched, "value": 0.9}, failed]).chosen == "softmax"


def test_one_seed_of_each_attention_recommends_nothing_by_quality() -> None:
    once = [row | {"seeds": 1} if row["metric"] == "quality" else row for row in LEVEL]
    decision = decided(once)
    assert (decision.kind, decision.chosen) == ("short", "")
    assert "each attention has one final run so far" in decision.sentences[0]
    short = race({"softmax": 0.7, "linear": 0.7}, trivial=0.5, seconds={"softmax": 1.0, "linear": 0.95}, length=32)
    assert decided([row | {"seeds": 1} if row["metric"] == "quality" else row for row in short]).kind == "softmax"
    alone = [row | {"seeds": 1} if row["metric"] == "quality" else row for row in race({"softmax": 0.9}, seconds=FAST)]
    searched: Row = {"metric": "score", "mechanism": "linear", "stage": "search", "steps": 9, "seconds": 1.0, "good": "high"}
    assert decided([*alone, {**searched, "value": 0.9}]).kind == "short"


def test_a_larger_budget_is_not_proposed_after_usual_training() -> None:
    rows = race({"softmax": 0.51, "linear": 0.505}, trivial=0.5, half=0.02, seconds=FAST)
    shorter, usual = (decided(trained(rows, steps), training=Training(usual_steps=300)) for steps in (299, 300))
    assert shorter.kind == usual.kind == "nothing"
    assert "a larger --budget may show something" in shorter.sentences[2]
    assert usual.sentences[2] == "More data, other columns or more --steps than the usual 300 may show something."


def test_far_fewer_steps_than_usual_recommend_nothing() -> None:
    rows = [*trained(LEVEL, 42), *scores("softmax", (14, 0.7), (42, 0.7)), *scores("linear", (14, 0.7), (42, 0.7))]
    short = decided(rows, training=Training(usual_steps=800, budget=40.0, jobs=2))
    assert (short.kind, short.chosen) == ("short", "")
    assert short.levels == {"softmax": "level", "linear": "unclear"}
    first, known, instead = short.sentences
    assert first.startswith("Nothing is recommended, as quality cannot be told yet: the final runs had 42 of the usual")
    assert "of the usual 800 training steps at most" in first
    assert "a forward pass at 512 positions: linear 200 ms, softmax 1.00 s; first on the test so far is" in known
    assert instead.startswith(
        "Start again with --budget 6m: by the step times measured here, final runs then have about 800"
    )
    assert decided(trained(LEVEL, 201), training=Training(usual_steps=800)).chosen == "linear"
    assert decided(trained(LEVEL, 42)).chosen == "linear"  # no number of steps is usual


def test_costs_alone_recommend_softmax_if_nothing_is_faster() -> None:
    rows = race({"softmax": 0.7, "linear": 0.7}, trivial=0.5, seconds={"softmax": 1.0, "linear": 0.95}, length=32)
    decision = decided(trained(rows, 42), training=Training(usual_steps=800))
    assert (decision.kind, decision.chosen) == ("softmax", "softmax")
    assert decision.sentences[1].startswith("That is by the cost alone: the final runs had 42 of the usual 800")
    unknown = race({"softmax": 0.7, "linear": 0.7}, trivial=0.5, seconds={"softmax": 1.0}, length=32)
    assert decided(trained(unknown, 42), training=Training(usual_steps=800)).kind == "short"


def test_attention_is_said_to_add_nothing_only_after_half_of_a_usual_training() -> None:
    rows = race({"softmax": 0.3, "linear": 0.3}, rivals={"most frequent": 0.3}, seconds=FAST)
    training = Training(usual_steps=1200)
    assert decided(trained(rows, 400), training=training).kind == "short"
    assert "first on the test so far is most frequent" in decided(trained(rows, 400), training=training).sentences[1]
    assert decided(trained(rows, 700), training=training).kind == "rival"
    ahead = race({"softmax": 0.301, "linear": 0.3}, rivals={"most frequent": 0.3}, seconds=FAST)
    assert "first on the test so far is softmax" in decided(trained(ahead, 400), training=training).sentences[1]


def test_an_attention_that_is_still_learning_recommends_nothing() -> None:
    """The margin is 3% of 0.2: softmax gains 0.1 while its steps double, and they would have to double again."""
    rows = trained([*LEVEL, *scores("softmax", (150, 0.6), (300, 0.7)), *scores("linear", (300, 0.7), (600, 0.7))], 600)
    short = decided(rows, training=Training(usual_steps=600))
    assert (short.kind, short.chosen) == ("short", "")
    assert "softmax was still learning, with 0.6 in development after 150 steps and 0.7 after 300" in short.sentences[0]
    assert "the usual 600 steps add 0.1, and linear is level with it" in short.sentences[0]
    assert decided(rows, training=Training(usual_steps=300)).chosen == "linear"  # as long as usual
    assert decided(rows).kind == "short"  # nothing is usual: twice as many steps are looked at
    slowly = [*LEVEL, *scores("softmax", (150, 0.696), (300, 0.7))]
    assert decided(trained(slowly, 300), training=Training(usual_steps=600)).chosen == "linear"
    equally_long = [*LEVEL, *scores("softmax", (300, 0.6), (300, 0.7))]
    assert decided(trained(equally_long, 300), training=Training(usual_steps=600)).chosen == "linear"


def test_what_an_attention_may_still_gain_is_held_against_its_distance() -> None:
    far = race({"softmax": 0.9, "linear": 0.5}, trivial=0.1, seconds=FAST)
    near = race({"softmax": 0.9, "linear": 0.83}, trivial=0.1, seconds=FAST)
    learning = scores("linear", (150, 0.6), (300, 0.7))  # 0.1 for each doubling
    training = Training(usual_steps=600)
    assert decided(trained([*far, *learning], 300), training=training).chosen == "softmax"
    doubtful = decided(trained([*near, *learning], 300), training=training)
    assert doubtful.kind == "short"
    assert "and softmax is 0.07 ahead of it" in doubtful.sentences[0]


@pytest.mark.parametrize(
    ("unit", "good", "few", "more", "gain"),
    [
        ("share", "high", 0.6, 0.7, 0.1),
        ("share", "high", 0.6, 0.98, 0.02),
        ("share", "low", 0.4, 0.1, 0.1),
        ("nats", "low", 0.4, 0.1, 0.3),
        ("nats", "low", 0.1, 0.4, 0.0),
    ],
)
def test_gains_to_come_of_a_doubling_and_at_most_to_the_best_share(
    unit: str, good: str, few: float, more: float, gain: float
) -> None:
    contestant = Contestant("linear", "attention", Interval(0.0, 0.0, 0.0), progress=Progress(150, few, 300, more))
    standings = Standings("score", good, unit, {"linear": contestant}, {}, {})
    assert to_come(standings, contestant, usual_steps=600) == pytest.approx(gain)
    assert to_come(standings, contestant, usual_steps=300) == 0.0


def test_a_rival_is_doubted_by_an_attention_that_comes_near() -> None:
    rows = race({"softmax": 0.78}, rivals={"boosting": 0.81}, seconds=FAST, metric="auroc")
    rows = trained([*rows, *scores("softmax", (150, 0.7), (300, 0.78))], 300)
    assert decided(rows, training=Training(usual_steps=600)).kind == "short"
    assert decided(rows, training=Training(usual_steps=300)).kind == "rival"


def test_low_scores_are_learned_too() -> None:
    rows = race({"softmax": 1.0, "linear": 1.001}, trivial=2.0, metric="nll", seconds=FAST)
    longer = scores("softmax", (20, 0.4), (60, 0.2), "low")
    assert "softmax was still learning, with 0.4 in development after 20" in decided([*rows, *longer]).sentences[0]
    worse = scores("softmax", (20, 0.2), (60, 0.4), "low")
    assert decided([*rows, *worse]).chosen == "linear"


def test_scores_in_development_are_converted_to_the_metric_of_the_test() -> None:
    """A perplexity that falls from 102 to 84.5 is a gain of 0.19 nats, not of 17.5; a log loss says nothing of an AUROC."""
    nats = race({"softmax": 3.8, "linear": 3.8}, trivial=6.0, metric="nats_per_token", seconds=FAST)
    learned = [{**row, "of": "perplexity"} for row in scores("softmax", (150, 102.0), (300, 84.5), "low")[::2]]
    progress = read_standings([*nats, *learned]).contestants["softmax"].progress
    assert progress == pytest.approx((150, math.log(102), 300, math.log(84.5)))
    shares = race({"softmax": 0.8, "linear": 0.8}, trivial=0.5, metric="auroc", seconds=FAST)
    losses = [{**row, "of": "log_loss"} for row in scores("softmax", (150, 0.6), (300, 0.4), "low")]
    assert read_standings([*shares, *losses]).contestants["softmax"].progress is None
    assert decided(trained([*shares, *losses], 300), training=Training(usual_steps=600)).chosen == "linear"


def test_limits_that_nothing_keeps_need_no_long_runs() -> None:
    training = Training(usual_steps=800)
    assert decided(trained(LEVEL, 10), Wishes(max_seconds=0.01), training).kind == "none"


def test_a_larger_budget_is_worked_out_from_measured_steps() -> None:
    def budget(pace: float, jobs: int, budget: float = 60.0) -> float:
        rows = [{**row, "seconds": pace * row["steps"]} for row in scores("linear", (50, 0.5), (100, 0.6))]
        standings = read_standings([quality("linear", 0.6), *rows])
        return proposed_budget(standings, Training(usual_steps=1000, budget=budget, jobs=jobs)) or 0.0

    assert 200 < budget(0.1, 2) < 500  # two final runs of 100 s side by side, and the search before them
    assert budget(0.1, 1) == pytest.approx(2 * budget(0.1, 2), rel=0.25)
    assert budget(0.2, 2) == pytest.approx(2 * budget(0.1, 2), rel=0.25)
    assert budget(0.1, 2, budget=3600.0) == 7200.0
    assert proposed_budget(read_standings([quality("linear", 0.6)]), Training(1000, 60.0, 2)) is None


def test_attention_is_not_denied_while_one_seed_is_far_better() -> None:
    rows = race({"softmax": 0.62}, rivals={"counts": 0.236}, seconds={"softmax": 1.0})
    wide = [row | {"low": row["value"] - 0.44, "high": row["value"] + 0.44} for row in rows if row["metric"] == "advantage"]
    rows = [*(row for row in rows if row["metric"] != "advantage"), *wide]
    assert decided(rows).chosen == "counts"
    seeds: list[Row] = [
        {"metric": "test_score", "value": value, "mechanism": "softmax", "seed": seed, "of": "accuracy"}
        for seed, value in enumerate((1.0, 0.24))
    ]
    decision = decided([*rows, *seeds])
    assert (decision.kind, decision.chosen) == ("short", "")
    assert "the final runs of softmax differ by their seeds, with 0.24 to 1.00 on the test" in decision.sentences[0]
    assert "first on the test so far is softmax" in decision.sentences[1]


def test_budgets_are_rounded_up() -> None:
    assert [said_budget(seconds) for seconds in (61, 600, 601, 3000, 5401)] == ["2m", "10m", "15m", "50m", "2h"]
