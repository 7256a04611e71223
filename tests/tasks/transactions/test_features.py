"""What is learned before training."""

import json

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks.transactions.features import FIELDS, Features, learn
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.simulator import Simulator


def history(codes: list[str], amounts: list[float], times: list[float]) -> Histories:
    names = sorted(set(codes))
    numbers = np.array([names.index(code) for code in codes])
    zeros = np.zeros(len(codes), int)
    offsets = np.array([0, len(codes)])
    return Histories(
        ["x"], offsets, numbers, names, zeros, [""], np.array(amounts), np.array(times), np.array([1]), ("0", "1")
    )


TRAINED = history(["b", "a", "b", "a"], [1.0, 2.0, 3.0, 4.0], [0.0, 10.0, 20.0, 40.0])


@pytest.mark.parametrize("amounts", ["quantile", "log"])
def test_it_comes_back_from_json(amounts: str) -> None:
    drawn = Simulator(clients=20).draw()
    learned = learn(drawn, amounts, drawn)  # type: ignore[arg-type]
    again = Features.from_json(json.loads(json.dumps(learned.as_json())))
    assert again == learned
    assert np.array_equal(again.encode(drawn), learned.encode(drawn))


def test_what_was_not_trained_on_is_unknown() -> None:
    learned = learn(TRAINED, "quantile", TRAINED)
    assert learned.codes == ("a", "b")
    new = learned.encode(history(["a", "b", "c"], [0.0, 2.5, 9.0], [0.0, 0.0, 0.0]))
    assert new[:, 0].tolist() == [1, 2, 0]
    assert new[0, 2] == 1
    assert new[2, 2] == learned.sizes[2] - 1
    assert all(new[:, field].max() < size for field, size in enumerate(learned.sizes))


def test_numbers() -> None:
    day = 86400.0
    learned = learn(TRAINED, "log", TRAINED)
    assert learned.edges == ()
    found = learned.encode(history(["a", "a"], [-9.0, 9.0], [3 * day + day / 4, 10 * day]))
    by = dict(zip(FIELDS, found.T.tolist(), strict=True))
    assert by["weekday"] == [3, 3]
    assert by["amount bin"] == [0, 0]
    assert by["sine of the time of day"] == pytest.approx([1, 0], abs=1e-6)
    assert by["cosine of it"] == pytest.approx([0, 1], abs=1e-6)
    logs = np.log([2.0, 3.0, 4.0, 5.0])
    assert by["log amount"] == pytest.approx((np.log(10) * np.array([-1, 1]) - logs.mean()) / logs.std(), rel=1e-5)
    gaps = np.log([1.0, 11.0, 11.0, 21.0])
    assert by["log gap"] == pytest.approx((np.log([1.0, 6.75 * day + 1]) - gaps.mean()) / gaps.std(), rel=1e-5)
    assert by["time since the first event"] == pytest.approx([-17.5 / np.std([0, 10, 20, 40]), 4.0])


def test_quantiles_hold_as_many_events_each() -> None:
    drawn = Simulator(clients=200).draw()
    bins = learn(drawn, "quantile", drawn).encode(drawn)[:, FIELDS.index("amount bin")].astype(int)
    counts = np.bincount(bins)[1:]
    assert len(counts) == 32
    assert counts.min() > 0.9 * counts.max()


def test_a_field_that_was_trained_with_must_be_there() -> None:
    learned = learn(TRAINED, "log", TRAINED)
    with pytest.raises(SubquadError, match="trained with each event's amount, but the data have none: add the column"):
        learned.require_fields(TRAINED._replace(fields=("code", "type")))
