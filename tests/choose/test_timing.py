"""What the time of a race was spent on, by its rows."""

import pytest

from subquad.choose.timing import early_sentence, time_sentence, time_spent
from subquad.results import Row


def phase(what: str, seconds: float) -> Row:
    return {"metric": "phase", "what": what, "value": seconds, "unit": "s"}


def run(seconds: float, **others: float) -> Row:
    return {"metric": "score", "value": 0.5, "seconds": seconds, **others}


ROWS = [
    phase("start", 2.0),
    phase("search", 30.0),
    phase("cost", 5.0),
    phase("final", 50.0),
    phase("final", 10.0),  # after a resume
    phase("conclude", 3.0),
    run(40.0, probing=2.0, evaluating=3.0, judging=1.0),
    run(100.0, probing=0.0, evaluating=4.0, judging=2.0),
    {"metric": "rival", "value": 2, "names": "boosting; counts", "seconds": 6.0},
    phase("page", 2.0),
    {"metric": "score", "value": None, "failure": "killed", "message": ""},
]


def test_seconds_of_all_workers_are_shared_out() -> None:
    spent = {each.what: each for each in time_spent(ROWS, 2)}
    assert sum(each.seconds for each in spent.values()) == pytest.approx(2 * 102.0)
    assert sum(each.share for each in spent.values()) == pytest.approx(1.0)
    assert spent["training"].share == pytest.approx(140 / 204)
    assert spent["evaluations during training"].seconds == pytest.approx(7.0)
    assert spent["measuring costs"].seconds == pytest.approx(10.0)
    waiting = spent["building models, writing files and waiting for other runs"]
    assert waiting.seconds == pytest.approx(180.0 - 140.0 - 12.0 - 6.0)


def test_the_sentence_names_the_share_of_training() -> None:
    assert time_sentence(ROWS, 2).startswith("Of the workers' time, 69% was training; building models")


def test_races_of_earlier_versions_tell_nothing() -> None:
    assert time_spent([run(1.0)], 2) == []
    assert time_sentence([run(1.0)], 2) == ""


def test_a_race_says_why_it_ended_before_its_budget() -> None:
    """The phases take 102 seconds in all."""

    def said(steps: int, budget: float = 300.0, usual: int = 600) -> str:
        finals: list[Row] = [{**run(9.0), "stage": "final", "steps": many} for many in (600, steps)]
        return early_sentence([*(row for row in ROWS if row["metric"] == "phase"), *finals], budget, usual)

    assert said(600) == (
        "It took 102 s of 300 s: the final runs have all of the 600 steps of `subquad train`, and --steps allows more."
    )
    assert said(599) == said(600, budget=110.0) == said(600, usual=0) == early_sentence([], 300.0, 600) == ""
