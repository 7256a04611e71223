"""The symbols that a model knows, learned from training sequences. All other symbols are one unknown token."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.checking import Checked, Several, read
from subquad.errors import SubquadError
from subquad.tasks.lm.vocabulary import BEGIN
from subquad.tasks.tokens.forms import UNKNOWN_NAME, Form
from subquad.tasks.tokens.loading import SymbolSequences

UNKNOWN, FIRST = BEGIN + 1, BEGIN + 2  # the token of unknown symbols, and that of the first known one


@dataclass(frozen=True)
class Vocabulary(Checked):
    """Symbols in the order of their tokens, the first of which is `FIRST`, and how sequences are written."""

    symbols: Several[str]
    form: Form

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Vocabulary":
        """Reads what `as_json` returned."""
        form = read(Form, values.get("form"), f"{where}: form")
        vocabulary = read(cls, {**values, "form": form}, where)
        if len(set(vocabulary.symbols)) < len(vocabulary.symbols):
            raise SubquadError(f"{where}: symbols has one of them twice: the file is damaged")
        return vocabulary

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON types."""
        return {"symbols": list(self.symbols), "form": asdict(self.form)}

    @property
    def size(self) -> int:
        """Number of tokens, with that before a sequence and the unknown one."""
        return FIRST + len(self.symbols)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The token of each symbol."""
        return {symbol: number for number, symbol in enumerate(self.symbols, start=FIRST)}

    def encode(self, sequences: SymbolSequences) -> list[Int[ndarray, "n"]]:
        """The tokens of each sequence."""
        token_of = np.array([self.numbers.get(symbol, UNKNOWN) for symbol in sequences.alphabet], np.int64)
        return [token_of[sequence] for sequence in sequences.sequences]

    def encode_symbols(self, symbols: Sequence[str]) -> Int[ndarray, "n"]:
        """The tokens of some symbols."""
        return np.array([self.numbers.get(symbol, UNKNOWN) for symbol in symbols], np.int64)

    def spell(self, tokens: Sequence[int]) -> str:
        """Tokens as they would be written, without those that begin sequences."""
        named = [self.symbols[token - FIRST] if token >= FIRST else UNKNOWN_NAME for token in tokens if token != BEGIN]
        return self.form.join(named)


def learn_vocabulary(sequences: SymbolSequences, *, rare: int, most: int) -> Vocabulary:
    """The symbols that occur at least `rare` times in the sequences, the most frequent first, and `most` of them at most."""
    counts = np.zeros(len(sequences.alphabet), np.int64)
    for sequence in sequences.sequences:
        counts += np.bincount(sequence, minlength=len(counts))
    order = sorted(np.flatnonzero(counts >= rare).tolist(), key=lambda at: (-counts[at], sequences.alphabet[at]))
    if not order:
        raise SubquadError(
            f"every symbol to learn from occurs fewer than {rare} times, so that all would be unknown: give a smaller "
            "--rare, or --characters if sequences have no separators"
        )
    return Vocabulary(tuple(sequences.alphabet[at] for at in order[:most]), sequences.form)
