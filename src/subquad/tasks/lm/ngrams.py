"""A simple statistical model of bytes, for comparison: n-grams with Witten-Bell smoothing."""

import math

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

MOST = 20_000_000
"""Largest number of training bytes that are counted, from the beginning."""
ORDER = 5
"""Number of bytes in the longest n-grams: each byte is predicted from the four before it."""


def ngram_bits(train: bytes, held_out: bytes, order: int = ORDER) -> float:
    """Mean number of bits per byte of held-out text under n-grams of up to `order` bytes; order 1 counts single bytes."""
    bits = byte_bits(train, held_out, order)
    return float(bits.mean()) if len(bits) else math.nan


def byte_bits(train: bytes, held_out: bytes, order: int = ORDER) -> Float[ndarray, "bytes"]:
    """Bits of each byte of held-out text under n-grams of up to `order` bytes.

    The probability of byte c after h is (N(hc) + T(h) p(c)) / (N(h) + T(h)), where N counts occurrences, T(h) is the number
    of different bytes after h, and p is the probability after h without its first byte (Witten and Bell 1991).
    """
    known, new = (np.frombuffer(text, np.uint8).astype(np.int64) for text in (train[:MOST], held_out))
    probability = np.full(len(new), 1 / 256)
    for size in range(1, min(order, len(known)) + 1):
        probability[size - 1 :] = _smoothed(_codes(known, size), _codes(new, size), probability[size - 1 :])
    return -np.log2(probability)


def _codes(text: Int[ndarray, "bytes"], size: int) -> Int[ndarray, "grams"]:
    """A number for each sequence of `size` bytes in a text."""
    grams = max(0, len(text) - size + 1)
    codes = np.zeros(grams, np.int64)
    for place in range(size):
        codes = codes * 256 + text[place : place + grams]
    return codes


def _smoothed(
    known: Int[ndarray, "grams"], new: Int[ndarray, "places"], shorter: Float[ndarray, "places"]
) -> Float[ndarray, "places"]:
    """The probability of the last byte of each new n-gram after its other bytes, given that after fewer of them."""
    grams, times = np.unique(known, return_counts=True)
    histories, first, different = np.unique(grams // 256, return_index=True, return_counts=True)
    total = np.add.reduceat(times, first)
    seen = _looked_up(grams, times, new)
    after, kinds = (_looked_up(histories, values, new // 256) for values in (total, different))
    return np.where(after > 0, (seen + kinds * shorter) / np.maximum(after + kinds, 1), shorter)


def _looked_up(
    keys: Int[ndarray, "keys"], values: Int[ndarray, "keys"], wanted: Int[ndarray, "places"]
) -> Int[ndarray, "places"]:
    """The value of each wanted key; 0 for keys that there are not."""
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
