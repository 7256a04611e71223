"""How numbers are said."""

import math

import pytest

from subquad.statistics import Interval
from subquad.words import (
    amount,
    between,
    capitalized,
    compact,
    digits,
    duration,
    memory_ratio,
    share_of_memory,
    short,
    times_as_fast,
    to_precision,
)


def test_figures_in_words() -> None:
    assert (amount(2.5e9), amount(38_400_000), amount(1500), amount(12)) == ("2.50 GB", "38.4 MB", "1.50 kB", "12 B")
    assert (duration(2.5), duration(0.0421), duration(1.5e-4)) == ("2.50 s", "42.1 ms", "150 µs")
    assert (digits(123.4), digits(12.34), digits(1.234)) == ("123", "12.3", "1.23")
    assert (short(0.12345), short(1.0), short(12.34)) == ("0.123", "1.000", "12.3")
    assert (compact(0.00012345), compact(0.5), compact(12.34)) == ("0.000123", "0.5", "12.3")
    assert times_as_fast(2.1) == "2.10 times as fast"


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (24_000_000_000, "24 GB"), (10**18, "1 EB"), (10**30, "1.0e+12 EB")],
)
def test_amounts_are_said_in_units(count: int, words: str) -> None:
    assert amount(count, brief=True) == words


def test_ranges() -> None:
    found = Interval(2.0, 1.0, 12.345)
    assert between(found) == "2.00 (1.00 to 12.3)"
    assert between(found, "+.3f") == "+2.000 (+1.000 to +12.345)"
    assert between(Interval(2.0, -math.inf, math.inf), ".1f") == "2.0 (one seed)"


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (1000.0, "about the same memory"),
        (2100.0, "2.10 times the memory"),
        (330.0, "a third of the memory"),
        (700.0, "70% of the memory"),
        (2.0, "1/500 of the memory"),
        (0.0, "1/1000 of the memory"),
    ],
)
def test_memory_beside_another(ours: float, words: str) -> None:
    assert share_of_memory(ours, 1000.0) == words


def test_memory_in_tables() -> None:
    assert [memory_ratio(ours, 1000.0) for ours in (2100.0, 450.0, 80.0, 0.0)] == ["2.10x", "0.45x", "1/12", "1/1000"]


def test_only_the_first_letter_is_made_large() -> None:
    assert capitalized("a KL divergence") == "A KL divergence"
    assert capitalized("linear: half") == "Linear: half"
    assert capitalized("mypackage.attention:Mine is faster") == "mypackage.attention:Mine is faster"
    assert capitalized("linear*3,softmax is faster") == "linear*3,softmax is faster"
    assert capitalized("linear,softmax is faster") == "linear,softmax is faster"
    assert capitalized("linear, which is faster") == "Linear, which is faster"


@pytest.mark.parametrize(
    ("value", "spread", "said"),
    [
        (2.0746, 0.065, "+2.075"),
        (-0.000272, 0.0077, "-0.0003"),
        (-6.17e-10, 0.007, "+0.0000"),
        (0.5, 0.09999999999999998, "+0.50"),
        (1234.5, 220.0, "+1234"),
        (0.2, float("nan"), "+0.2"),
        (0.2, 0.0, "+0.2"),
        (1 / 6, 1e-17, "+0.167"),
    ],
)
def test_numbers_have_the_precision_of_their_interval(value: float, spread: float, said: str) -> None:
    assert to_precision(value, spread, signed=True) == said
    assert to_precision(value, spread) == said.removeprefix("+")
