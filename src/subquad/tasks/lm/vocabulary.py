"""Tokens from which a text can be restored byte by byte: its bytes, or frequent sequences of bytes."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, Required

import numpy as np
from jaxtyping import Int
from numpy import ndarray
from typing_extensions import TypedDict

from subquad.checking import STRICT, read_as
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.mlm.vocabulary import import_tokenizers

BEGIN, FIRST = range(2)  # the token before the beginning of each text, and the first token of text
LEAST = FIRST + 256  # smallest size of a vocabulary, because a text can hold every byte

LosslessKind = Literal["bytes", "bpe"]


class VocabularyFields(TypedDict, total=False):
    """Types of the fields that `as_json` returns. Merges are those of the kind bpe."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    kind: Required[LosslessKind]
    merges: list[tuple[str, str]]


class Lossless(Protocol):
    """Maps texts to token ids such that the bytes of the tokens, one after the other, are the text again."""

    @property
    def byte_strings(self) -> list[bytes]:
        """The bytes of each token; none for the token before a text."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        """The token ids of each text."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Returns the fields from which `lossless_from` restores the vocabulary."""
        ...


class SingleBytes:
    """The 256 bytes that UTF-8 text consists of."""

    byte_strings: list[bytes] = [b"", *(bytes([byte]) for byte in range(256))]  # noqa: RUF012

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        return [np.frombuffer(text.encode(errors="replace"), np.uint8).astype(np.int64) + FIRST for text in texts]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class ByteBpe:
    """Frequent sequences of bytes within words, merged pair by pair (Radford et al. 2019). Uses the package tokenizers."""

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        """`merges` are the pairs of pieces in the order in which they are merged, with a letter for each byte."""
        self.merges = list(merges)
        self.pieces = list(dict.fromkeys(["", *LETTERS, *(first + second for first, second in self.merges)]))

    @classmethod
    def learn(cls, texts: Sequence[str], most: int) -> "ByteBpe":
        """Learns the merges that occur most often, `most` tokens at most."""
        tokenizer = cls([])._tokenizer
        trainer = import_tokenizers().trainers.BpeTrainer(
            vocab_size=most - FIRST, initial_alphabet=list(LETTERS), show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls([(first, second) for first, second in json.loads(tokenizer.to_str())["model"]["merges"]])

    @cached_property
    def byte_strings(self) -> list[bytes]:
        byte_of = {letter: byte for byte, letter in LETTERS_OF_BYTES.items()}
        return [bytes(byte_of[letter] for letter in piece) for piece in self.pieces]

    @cached_property
    def _tokenizer(self) -> Any:
        package = import_tokenizers()
        numbers = {piece: number for number, piece in enumerate(self.pieces) if number}
        tokenizer = package.Tokenizer(package.models.BPE(numbers, self.merges))
        tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        return tokenizer

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        whole = [text.encode(errors="replace").decode() for text in texts]
        return [np.array(encoding.ids, dtype=np.int64) for encoding in self._tokenizer.encode_batch(whole)]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "bpe", "merges": self.merges}


def _letters() -> dict[int, str]:
    """The letter that stands for each byte in the package tokenizers: printable ones for themselves (as in GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


LETTERS_OF_BYTES = _letters()
LETTERS = tuple(sorted(LETTERS_OF_BYTES.values()))


def learn_lossless(kind: LosslessKind, texts: Sequence[str], *, most: int) -> Lossless:
    """Returns a vocabulary of bytes, or learns one with at most `most` tokens from training texts."""
    return SingleBytes() if kind == "bytes" else ByteBpe.learn(texts, most)


def lossless_from(values: Mapping[str, Any]) -> Lossless:
    """Restores a vocabulary from the fields that a run stored."""
    place = f"{place_of(values)}: learned: vocabulary"
    fields = read_as(VocabularyFields, values, place)
    if fields["kind"] == "bytes":
        return SingleBytes()
    known = set(LETTERS)
    for pair in fields.get("merges", []):
        if not known.issuperset(pair):
            raise SubquadError(f"{place}: merges join pieces that there are not: the file is damaged")
        known.add("".join(pair))
    if "merges" not in fields:
        raise SubquadError(f"{place} lacks merges: the file is damaged")
    return ByteBpe(fields["merges"])


def spell(vocabulary: Lossless, tokens: Sequence[int]) -> str:
    """The text of a sequence of tokens. Bytes that are no whole character become a replacement character."""
    strings = vocabulary.byte_strings
    return b"".join(strings[token] for token in tokens).decode(errors="replace")
