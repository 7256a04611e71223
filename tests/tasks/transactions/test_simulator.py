"""The bank that does not exist."""

from itertools import product
from math import exp
from typing import Any

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.simulator import Simulator, along


def test_the_ratio_is_that_of_the_probabilities() -> None:
    """Every history of three events over A, B and a neutral code: p(h | 1) / p(h | 0), written out, and they sum to 1."""
    simulator = Simulator(codes=3, drift=0.4)
    names = simulator.code_names()
    assert names == ["A0", "B0", "N0"]
    places = [-2 / 3, 0.0, 2 / 3]
    total = np.zeros(2)
    for codes in product(range(3), repeat=3):
        p = np.ones(2)
        for code, u in zip(codes, places, strict=True):
            side = {0: -1, 1: 1, 2: 0}[code]
            p *= (1 / 3) * np.array([1 - 0.4 * side * u, 1 + 0.4 * side * u])
        total += p
        numbers = np.array(codes)
        one = Histories(
            ["x"], np.array([0, 3]), numbers, names, numbers, names, np.zeros(3), np.zeros(3), np.array([1]), None
        )
        assert exp(simulator.ratios(one)[0]) == pytest.approx(p[1] / p[0])
    assert total == pytest.approx([1, 1])


def test_codes_are_drawn_as_is_written() -> None:
    """In the last tenth of histories B is (1 + drift u) / (1 - drift u) times as frequent as A in class 1; totals agree."""
    simulator = Simulator(clients=4000, drift=0.8)
    found = simulator.draw()
    names = np.array([name[0] for name in found.code_names])[found.codes]
    u, of = along(found.offsets), np.repeat(found.labels, found.lengths)
    late = (u > 0.8) & (of == 1)
    a, b = ((names[late] == group).sum() for group in "AB")
    assert b / a == pytest.approx(1.72 / 0.28, rel=0.08)
    for one, zero in zip(*(np.bincount(found.codes[of == label]) for label in (1, 0)), strict=True):
        assert one / zero == pytest.approx((of == 1).sum() / (of == 0).sum(), abs=0.06)


def test_everything_else_is_the_same_for_both() -> None:
    found = Simulator().draw()
    of = np.repeat(found.labels, found.lengths)
    for values in (np.log(np.abs(found.amounts)), found.types, found.times):
        first, second = values[of == 0], values[of == 1]
        error = values.std() * np.sqrt(1 / len(first) + 1 / len(second))
        assert abs(first.mean() - second.mean()) < 4 * error
    lengths = [found.lengths[found.labels == label] for label in (0, 1)]
    assert abs(lengths[0].mean() - lengths[1].mean()) < 4 * found.lengths.std() * np.sqrt(2 / 3000)
    assert (found.lengths.min(), found.lengths.max()) == (60, 400)
    assert np.median(found.lengths) == pytest.approx(np.sqrt(60 * 400), rel=0.05)


def test_time_goes_on_and_the_seed_decides() -> None:
    found, same, other = (Simulator(clients=50, seed=seed).draw() for seed in (1, 1, 2))
    inner = np.diff(np.repeat(np.arange(50), found.lengths)) == 0
    assert (np.diff(found.times)[inner] >= 0).all()
    assert np.array_equal(found.codes, same.codes)
    assert np.array_equal(found.times, same.times)
    assert found.codes[:60].tolist() != other.codes[:60].tolist()


def test_the_best_possible() -> None:
    simulator = Simulator()
    many = simulator.best_auroc()
    assert many == pytest.approx(0.95, abs=0.015)
    assert simulator.best_auroc(simulator.draw()) == pytest.approx(many, abs=0.02)
    blind = Simulator(clients=20, drift=0.0)
    assert blind.best_auroc(blind.draw()) == 0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clients": 1}, "clients must be at least 2, but is 1"),
        ({"codes": 2}, "codes must be at least 3, one for each group, but is 2"),
        ({"shortest": 9, "longest": 8}, "histories cannot be at least 9 and at most 8 events long"),
        ({"drift": 1.0}, "drift must be below 1, but is 1.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SubquadError, match=message):
        Simulator(**values)
