"""Faults of the public code: each does what it says, and none is there unless it is named."""

import json
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from subquad import ModelOptions, Softmax, SubquadError
from subquad.tasks import Events
from subquad.tasks.events.batches import Piece, pieces
from subquad.tasks.events.faults import BATCHES, FAULTS, Fault, FaultyEventModel, reported, reported_rows
from subquad.tasks.events.model import EventModel, HeadOptions, Outcome
from subquad.tasks.events.scales import learn
from subquad.tasks.events.scoring import encode, score
from tests.tasks.events.sequences import random_sequences

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)
HEADS = HeadOptions(head="hawkes", inner=8, time_weight=0.5)
SEQUENCES = random_sequences([9, 14, 2, 30, 1])
SCALES = learn(SEQUENCES)
TASK = Events(sequences=20, head="hawkes", inner=8, chunk=0, time_weight=0.5)


def model(*faults: Fault) -> FaultyEventModel:
    generator = torch.Generator().manual_seed(0)
    return FaultyEventModel(SCALES, Softmax(), SMALL, HEADS, faults, generator).eval()


def right_model() -> EventModel:
    return EventModel(SCALES, Softmax(), SMALL, HEADS, torch.Generator().manual_seed(0)).eval()


def piece(which: Collection[int] = (0, 1, 3)) -> Piece:
    return next(pieces(encode(SCALES, SEQUENCES).pad(np.array(which)), 0))


@torch.no_grad()
def outcome(made: EventModel, given: Piece) -> Outcome:
    result: Outcome = made(given)
    return result


def test_all_faults_are_described() -> None:
    assert tuple(FAULTS) == get_args(Fault)


@pytest.mark.parametrize("faults", [(), ("padding-rmse", "test-picks")])
def test_the_loss_is_right_without_faults_of_the_loss(faults: tuple[Fault, ...]) -> None:
    ours, right = outcome(model(*faults), piece()), outcome(right_model(), piece())
    assert_close((ours.terms, ours.extra), (right.terms, right.extra))


def test_sees_itself_gives_the_state_after_the_event() -> None:
    """The term of an event changes with its own gap through the state, which the right one does not see."""
    made, given = model("sees-itself"), piece([1])
    whole = encode(SCALES, SEQUENCES).pad(np.array([1]))
    with torch.no_grad():
        after = made.encode(whole)[0][0, 1:]
        expected = made.head.terms(after, whole.gaps[0, 1:], whole.types[0, 1:])
    assert_close(outcome(made, given).terms, expected)
    assert (outcome(right_model(), given).terms.time - expected.time).abs().min() > 1e-5
    assert_close(outcome(made, given).extra, outcome(right_model(), given).extra)  # the other heads look back only


def test_observed_type_leaves_out_the_other_types() -> None:
    """The integral is that of the observed type's intensity, which the trapezoid rule gives by hand."""
    made, given = model("observed-type"), piece()
    counted = given.counted
    gaps, types = given.following.gaps[counted], given.following.types[counted]
    with torch.no_grad():
        assert made.head.terms is not None
        intensity = made.head.intensity(made.encode(given.given)[0][counted])  # type: ignore[attr-defined]
        at = torch.linspace(0.0, 1.0, 32) ** 3
        observed = intensity(gaps[:, None] * at)[torch.arange(len(gaps)), :, types]
        integral = torch.trapezoid(observed, gaps[:, None] * at, dim=1)
        end = intensity(gaps[:, None])[torch.arange(len(gaps)), 0, types].log()
    terms = outcome(made, given).terms
    assert_close(terms.time + terms.type, end - integral, rtol=1e-4, atol=1e-4)
    right = outcome(right_model(), given).terms
    assert (terms.time >= right.time).all()
    assert_close(terms.type, right.type)


def test_padding_counts_in_the_loss_only_where_there_is_some() -> None:
    made, right = model("padding-loss"), right_model()
    assert_close(outcome(made, piece([3])).extra, outcome(right, piece([3])).extra)  # one sequence is not padded
    given = piece([0, 3])
    more = (outcome(made, given).extra - outcome(right, given).extra).sum()
    with torch.no_grad():
        assert made.time_head is not None
        predicted = made.time_head(made.encode(given.given)[0])[0, 8:, 0]  # after the 9 events of the first sequence
    wanted = torch.zeros(len(predicted))
    wanted[0] = -given.given.times[0, 8]  # the gap to a padded time of 0
    assert_close(more, HEADS.time_weight * (predicted - wanted).square().sum(), rtol=1e-4, atol=1e-3)


def test_padding_counts_in_the_error_of_a_batch() -> None:
    """One sequence at a time there is no padding; without the fault the batch does not matter."""
    faulty, right = model("padding-rmse"), model("test-picks")
    scored = score(right, SEQUENCES, tokens=64)
    honest = float(np.sqrt(np.square(scored.headed_gaps - scored.gaps).mean()))
    assert [reported(right, SEQUENCES, size).rmse for size in BATCHES] == pytest.approx([honest] * 4, rel=1e-4)
    errors = [reported(faulty, SEQUENCES, size).rmse for size in BATCHES]
    assert errors[0] == pytest.approx(honest, rel=1e-4)
    assert errors[-1] > 1.5 * honest


def test_what_is_reported_without_faults_of_the_loss_is_the_likelihood() -> None:
    scored = score(right_model(), SEQUENCES, tokens=64)
    assert reported(model("test-picks"), SEQUENCES).nll == pytest.approx(-(scored.time + scored.type).mean(), rel=1e-4)


def test_metrics_of_a_model_with_faults_are_right() -> None:
    """What is not called reported is the same with and without faults."""
    ours, right = (score(made, SEQUENCES, tokens=64) for made in (model("sees-itself", "observed-type"), right_model()))
    assert_close(ours.time, right.time)
    assert_close(ours.type, right.type)
    last = [row for row in reported_rows(model("padding-rmse"), SEQUENCES) if row["metric"] == "reported_rmse"]
    assert [row["batch"] for row in last] == [1, 4, 64, 16]


def test_weights_are_picked_on_the_test_only_with_that_fault() -> None:
    development, test = (replace(TASK, faults=faults).prepare() for faults in ((), ("test-picks",)))
    made = development.build(Softmax(), SMALL, torch.Generator().manual_seed(0))
    faulty = test.build(Softmax(), SMALL, torch.Generator().manual_seed(0))
    assert type(made) is EventModel
    assert isinstance(faulty, FaultyEventModel)
    on_test = reported(faulty, test.data.test).nll
    assert test.evaluate(faulty, torch.Generator())["nll"] == on_test
    assert development.evaluate(made, torch.Generator())["nll"] != pytest.approx(on_test, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head": "mixture", "faults": ("sees-itself",)}, "--head hawkes"),
        ({"chunk": 8, "faults": ("sees-itself",)}, "--chunk 0"),
        ({"time_weight": 0.0, "faults": ("padding-loss",)}, "--time-weight"),
        ({"faults": ("typo",)}, "faults"),
    ],
)
def test_faults_that_cannot_be_put_in_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SubquadError, match=words):
        replace(TASK, **options)


def test_a_run_with_faults_says_so_and_forecasts_nothing() -> None:
    options = replace(TASK, faults=("sees-itself",))
    assert json.loads(json.dumps(asdict(options)))["faults"] == ["sees-itself"]
    task = options.prepare()
    made = task.build(Softmax(), SMALL)
    assert any("sees-itself" in line for line in task.complaints)
    for ask in (lambda: task.predict(made, Path("events.csv")), lambda: task.follow(made, 5)):
        with pytest.raises(SubquadError, match="trained with faults"):
            ask()
