"""Decoding beside the enumeration of all alignments, and the distance of texts beside known ones."""

import itertools
import math

import numpy as np
import pytest

from subquad.tasks.speech.decoding import BLANK, beam_search, edits, greedy


def joined(alignment: tuple[int, ...]) -> tuple[int, ...]:
    """What an alignment says: repetitions joined, then blanks left out."""
    return tuple(unit for unit, _ in itertools.groupby(alignment) if unit != BLANK)


def log_probabilities(positions: int, units: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(positions, units)) * 2
    return values - np.log(np.exp(values).sum(1, keepdims=True))


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_the_likeliest_text(seed: int) -> None:
    table = log_probabilities(5, 3, seed)
    totals: dict[tuple[int, ...], float] = {}
    for alignment in itertools.product(range(3), repeat=5):
        chance = math.exp(sum(table[at, unit] for at, unit in enumerate(alignment)))
        totals[joined(alignment)] = totals.get(joined(alignment), 0) + chance
    assert tuple(beam_search(table, 1000)) == max(totals, key=lambda text: totals[text])


def test_greedy_joins_repetitions_and_leaves_out_blanks() -> None:
    best = [0, 1, 1, 0, 1, 2, 2, 0]
    table = np.log(np.where(np.arange(3) == np.array(best)[:, None], 0.8, 0.1))
    assert greedy(table) == [1, 1, 2]
    assert beam_search(table, 4) == [1, 1, 2]
    assert greedy(np.zeros((0, 3))) == beam_search(np.zeros((0, 3)), 4) == []


def test_a_beam_finds_what_greedy_misses() -> None:
    """The blank is likeliest at both positions, but most alignments say 1."""
    table = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert greedy(table) == []
    assert beam_search(table, 4) == [1]


@pytest.mark.parametrize(
    ("first", "second", "expected"), [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "abc", 0), ("ab", "ba", 2)]
)
def test_edits_are_counted(first: str, second: str, expected: int) -> None:
    assert edits(first, second) == edits(second, first) == expected
