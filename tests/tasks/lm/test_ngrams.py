"""N-grams, beside a slow form of the same equation."""

import math
from collections import Counter

import numpy as np
import pytest

from subquad.tasks.lm.ngrams import ngram_bits


def slow_probability(train: bytes, history: bytes, byte: int) -> float:
    """The equation as written, with one history after the other."""
    after = Counter(train[at + len(history)] for at in range(len(train) - len(history)) if train[at:].startswith(history))
    shorter = slow_probability(train, history[1:], byte) if history else 1 / 256
    total, kinds = sum(after.values()), len(after)
    return (after[byte] + kinds * shorter) / (total + kinds) if total else shorter


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_bits_are_those_of_the_equation(order: int) -> None:
    rng = np.random.default_rng(0)
    train, held_out = (bytes(rng.choice(list(b"abc d"), size=size).tolist()) for size in (300, 40))
    held_out += b"xa\xff"
    probabilities = [
        slow_probability(train, held_out[max(0, at - order + 1) : at], byte) for at, byte in enumerate(held_out)
    ]
    assert ngram_bits(train, held_out, order) == pytest.approx(-np.mean(np.log2(probabilities)))


def test_probabilities_add_up_to_one() -> None:
    train = b"the cat sat on the mat"
    total = sum(
        2 ** -(3 * ngram_bits(train, b"th" + bytes([byte]), 3) - 2 * ngram_bits(train, b"th", 3)) for byte in range(256)
    )
    assert total == pytest.approx(1)


def test_longer_grams_know_more() -> None:
    train = b"the cat sat on the mat and the dog sat on the floor. " * 30
    bits = [ngram_bits(train, b"the dog sat on the floor. ", order) for order in (1, 2, 3, 5)]
    assert bits == sorted(bits, reverse=True)
    assert ngram_bits(b"", b"abc", 1) == pytest.approx(8)
    assert math.isnan(ngram_bits(b"abc", b"", 2))
