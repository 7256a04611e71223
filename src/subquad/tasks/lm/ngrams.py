"""Simple statistical models of sequences of symbols, for comparison: n-grams with Witten-Bell smoothing."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

MOST = 20_000_000
"""Largest number of training bytes that are counted, from the beginning."""
ORDER = 5
"""Number of bytes in the longest n-grams: each byte is predicted from the four before it."""
LARGEST_CODE = 2**62
"""Codes of n-grams stay below this number, so that they fit into 64 bits."""


def ngram_bits(train: bytes, held_out: bytes, order: int = ORDER) -> float:
    """Mean number of bits per byte of held-out text under n-grams of up to `order` bytes; order 1 counts single bytes."""
    bits = byte_bits(train, held_out, order)
    return float(bits.mean()) if len(bits) else math.nan


def byte_bits(train: bytes, held_out: bytes, order: int = ORDER) -> Float[ndarray, "bytes"]:
    """Bits of each byte of held-out text under n-grams of up to `order` bytes."""
    known, new = (np.frombuffer(text, np.uint8).astype(np.int64) for text in (train[:MOST], held_out))
    return -np.log2(ngram_probabilities(known, new, 256, order))


def ngram_probabilities(
    known: Int[ndarray, "train"], new: Int[ndarray, "places"], symbols: int, order: int, ignored: int | None = None
) -> Float[ndarray, "places"]:
    """Probability of each new symbol, from 0 to below `symbols`, after the `order` - 1 symbols before it.

    The probability of symbol c after h is (N(hc) + T(h) p(c)) / (N(h) + T(h)), where N counts occurrences among the known
    symbols, T(h) is the number of different symbols after h, and p is the probability after h without its first symbol
    (Witten and Bell 1991). Before any symbol is counted, all are equally probable. The symbol `ignored`, such as one that
    stands between sequences, has no probability: it is never counted, but others are counted after it.
    """
    probability = np.full(len(new), 1 / (symbols - (ignored is not None)))
    is_counted = known != (-1 if ignored is None else ignored)
    for size, (known_codes, new_codes) in enumerate(_codes(known, new, symbols, min(order, len(known))), start=1):
        counted = known_codes[is_counted[size - 1 :]]
        if len(counted):
            probability[size - 1 :] = _smoothed(counted, new_codes, symbols, probability[size - 1 :])
    return probability


def _codes(
    known: Int[ndarray, "train"], new: Int[ndarray, "places"], symbols: int, order: int
) -> Iterator[tuple[Int[ndarray, "grams"], Int[ndarray, "new_grams"]]]:
    """Yields, for each size up to `order`, a number for each n-gram in both: symbols * code of history + symbol."""
    codes, largest = (known[:0], new[:0]), 1
    for size in range(1, order + 1):
        if size == 1:
            codes = known, new
        else:
            if largest > LARGEST_CODE // symbols:  # ranks of the codes that occur are smaller
                different, ranks = np.unique(np.concatenate(codes), return_inverse=True)
                codes, largest = (ranks[: len(codes[0])], ranks[len(codes[0]) :]), len(different)
            codes = (codes[0][:-1] * symbols + known[size - 1 :], codes[1][:-1] * symbols + new[size - 1 :])
        largest *= symbols
        yield codes


def _smoothed(
    known: Int[ndarray, "grams"], new: Int[ndarray, "places"], symbols: int, shorter: Float[ndarray, "places"]
) -> Float[ndarray, "places"]:
    """The probability of the last symbol of each new n-gram after its other symbols, given that after fewer of them."""
    grams, times = np.unique(known, return_counts=True)
    histories, first, different = np.unique(grams // symbols, return_index=True, return_counts=True)
    total = np.add.reduceat(times, first)
    seen = _looked_up(grams, times, new)
    after, kinds = (_looked_up(histories, values, new // symbols) for values in (total, different))
    return np.where(after > 0, (seen + kinds * shorter) / np.maximum(after + kinds, 1), shorter)


def _looked_up(
    keys: Int[ndarray, "keys"], values: Int[ndarray, "keys"], wanted: Int[ndarray, "places"]
) -> Int[ndarray, "places"]:
    """The value of each wanted key; 0 for keys that there are not."""
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
