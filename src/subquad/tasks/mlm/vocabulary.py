"""Conversion between text and tokens: bytes, characters, or learned pieces of words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, Required

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray
from typing_extensions import TypedDict

from subquad.checking import STRICT, read_as
from subquad.errors import SubquadError
from subquad.results import place_of

PAD, MASK, UNKNOWN, FIRST = range(4)  # padding, token to be predicted, unknown token, and the first token of text
BLANK = "[MASK]"
"""How a user writes a token to be predicted."""

VocabularyKind = Literal["bytes", "characters", "wordpiece"]


class VocabularyFields(TypedDict, total=False):
    """Types of the fields that `as_json` returns. Which fields there are depends on the kind."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    kind: Required[VocabularyKind]
    characters: str
    pieces: list[str]
    lowercase: bool


class Vocabulary(Protocol):
    """Maps texts to token ids and back. The first ids are special tokens."""

    @property
    def size(self) -> int:
        """Number of tokens, including the special ones."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        """The token ids of each text."""
        ...

    def starts(self, tokens: Int[ndarray, "n"]) -> Bool[ndarray, "n"]:
        """Marks the tokens at which words begin. Each token between words counts as a word."""
        ...

    def spell(self, tokens: Sequence[int]) -> str:
        """The text of a sequence of tokens."""
        ...

    def name(self, token: int) -> str:
        """A printable name of one token."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Returns the fields from which `vocabulary_from` restores the vocabulary."""
        ...


UNSEEN = (PAD, UNKNOWN)


class Bytes:
    """The 256 bytes that UTF-8 text consists of."""

    size = FIRST + 256

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        return [np.frombuffer(text.encode(errors="replace"), np.uint8).astype(np.int64) + FIRST for text in texts]

    def starts(self, tokens: Int[ndarray, "n"]) -> Bool[ndarray, "n"]:
        bytes_ = tokens - FIRST
        inside = (bytes_ >= 128) | np.isin(bytes_, [byte for byte in range(128) if _in_word(chr(byte))])
        return _begin(inside)

    def spell(self, tokens: Sequence[int]) -> str:
        parts = [BLANK.encode() if token == MASK else bytes([token - FIRST]) for token in tokens if token not in UNSEEN]
        return b"".join(parts).decode(errors="replace")

    def name(self, token: int) -> str:
        byte = token - FIRST
        return _seen(chr(byte)) if 0 <= byte < 128 else _special(token) if byte < 0 else f"\\x{byte:02x}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class Characters:
    """The characters that occur in training texts."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.size = FIRST + len(characters)

    @classmethod
    def learn(cls, texts: Sequence[str], most: int) -> "Characters":
        """Learns the most frequent characters, `most` tokens at most."""
        return cls("".join(sorted(_frequent(texts, most - FIRST))))

    @cached_property
    def _codes(self) -> Int[ndarray, "codes"]:
        """The code points of the characters in ascending order, for binary search."""
        return np.array([ord(character) for character in self.characters], dtype=np.int64)

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        encoded = []
        for text in texts:
            codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32).astype(np.int64)
            at = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
            encoded.append(np.where(self._codes[at] == codes, at + FIRST, UNKNOWN))
        return encoded

    def starts(self, tokens: Int[ndarray, "n"]) -> Bool[ndarray, "n"]:
        inside = np.array([False, False, True, *map(_in_word, self.characters)])
        return _begin(inside[tokens])

    def spell(self, tokens: Sequence[int]) -> str:
        shown = {PAD: "", MASK: BLANK, UNKNOWN: "\ufffd"}
        return "".join(shown.get(token) or (self.characters[token - FIRST] if token >= FIRST else "") for token in tokens)

    def name(self, token: int) -> str:
        return _special(token) if token < FIRST else _seen(self.characters[token - FIRST])

    def as_json(self) -> dict[str, Any]:
        return {"kind": "characters", "characters": self.characters}


CONTINUES = "##"
"""Prefix of a piece that continues a word, as in BERT."""


class Wordpiece:
    """Frequent words as a whole, others in pieces (Schuster and Nakajima 2012). Uses the package tokenizers."""

    def __init__(self, pieces: Sequence[str], *, lowercase: bool) -> None:
        """`pieces` are in the order of their ids, special tokens first."""
        self.pieces, self.lowercase, self.size = list(pieces), lowercase, len(pieces)

    @classmethod
    def learn(cls, texts: Sequence[str], most: int, *, lowercase: bool) -> "Wordpiece":
        """Learns the pieces that occur most often, `most` tokens at most."""
        tokenizer = cls(SPECIAL, lowercase=lowercase)._tokenizer
        alphabet = _frequent(texts, most // 4)
        letters = sorted(filter(str.isalnum, {*tokenizer.normalizer.normalize_str(" ".join(alphabet))}))
        # Which of two equally frequent pairs is merged first depends on their ids. Listing the letters within words here, in
        # sorted order, makes the result the same every time.
        trainer = import_tokenizers().trainers.WordPieceTrainer(
            vocab_size=most,
            special_tokens=[*SPECIAL, *(CONTINUES + letter for letter in letters)],
            limit_alphabet=max(1, most // 4),  # letters at the start of and inside words
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls([*SPECIAL, *sorted(tokenizer.get_vocab().keys() - set(SPECIAL))], lowercase=lowercase)

    @cached_property
    def _tokenizer(self) -> Any:
        package = import_tokenizers()
        numbers = {piece: number for number, piece in enumerate(self.pieces)}
        tokenizer = package.Tokenizer(package.models.WordPiece(numbers, unk_token=SPECIAL[UNKNOWN]))
        tokenizer.normalizer = package.normalizers.BertNormalizer(lowercase=self.lowercase)
        tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
        return tokenizer

    @cached_property
    def _continues(self) -> Bool[ndarray, "v"]:
        return np.array([piece.startswith(CONTINUES) for piece in self.pieces])

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def starts(self, tokens: Int[ndarray, "n"]) -> Bool[ndarray, "n"]:
        return _first(~self._continues[tokens])

    def spell(self, tokens: Sequence[int]) -> str:
        pieces = [self.pieces[token] for token in tokens if token != PAD]
        spelt: str = import_tokenizers().decoders.WordPiece(prefix=CONTINUES).decode(pieces)
        return spelt

    def name(self, token: int) -> str:
        return self.pieces[token]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "wordpiece", "pieces": self.pieces, "lowercase": self.lowercase}


SPECIAL = ("[PAD]", BLANK, "[UNK]")


def learn_vocabulary(kind: VocabularyKind, texts: Sequence[str], *, most: int, lowercase: bool) -> Vocabulary:
    """Learns a vocabulary with at most `most` tokens from training texts."""
    if kind == "bytes":
        return Bytes()
    if most <= FIRST:
        raise SubquadError(f"--vocabulary-size must be above {FIRST}, the number of special tokens, but is {most}")
    return Characters.learn(texts, most) if kind == "characters" else Wordpiece.learn(texts, most, lowercase=lowercase)


def vocabulary_from(values: Mapping[str, Any]) -> Vocabulary:
    """Restores a vocabulary from the fields that a run stored."""
    place = f"{place_of(values)}: learned: vocabulary"
    fields = read_as(VocabularyFields, values, place)
    if fields["kind"] == "bytes":
        return Bytes()
    if fields["kind"] == "characters":
        known: list[str] = list(_required(fields, "characters", place))
        if known != sorted(set(known)) or not known:
            raise SubquadError(f"{place}: characters must be some that are in order, each once: the file is damaged")
        return Characters("".join(known))
    pieces: list[str] = _required(fields, "pieces", place)
    if tuple(pieces[:FIRST]) != SPECIAL or len(set(pieces)) < len(pieces):
        raise SubquadError(f"{place}: pieces must begin with {', '.join(SPECIAL)}, each once: the file is damaged")
    return Wordpiece(pieces, lowercase=_required(fields, "lowercase", place))


def _required(fields: Mapping[str, Any], name: str, place: str) -> Any:
    if name not in fields:
        raise SubquadError(f"{place} lacks {name}: the file is damaged")
    return fields[name]


def encode_blanks(vocabulary: Vocabulary, text: str) -> Int[ndarray, "n"]:
    """Encodes a user's text in which [MASK] stands for a token to be predicted."""
    parts = vocabulary.encode(text.split(BLANK))
    tokens = [parts[0]]
    for part in parts[1:]:
        tokens += [np.array([MASK]), part]
    return np.concatenate(tokens)


def import_tokenizers() -> Any:
    """Returns the package tokenizers, which is needed only for vocabularies that are learned by it."""
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.trainers
    except ImportError:
        raise SubquadError(
            "a vocabulary of pieces of words needs the package tokenizers, which is not installed: "
            "pip install 'subquad[hub]', or give --vocabulary bytes"
        ) from None
    return tokenizers


def _frequent(texts: Sequence[str], most: int) -> list[str]:
    """The most frequent characters of texts. Equally frequent ones are in the order of Unicode."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return sorted(counts, key=lambda character: (-counts[character], character))[:most]


def _in_word(character: str) -> bool:
    return character.isalnum() or character in "'_"


def _begin(inside: Bool[ndarray, "n"]) -> Bool[ndarray, "n"]:
    """Marks word starts: every token that does not continue a word."""
    before = np.concatenate([[False], inside[:-1]])[: len(inside)]
    return ~(inside & before)


def _first(starts: Bool[ndarray, "n"]) -> Bool[ndarray, "n"]:
    """Marks the first token as a start, as it begins a window even inside a word."""
    if len(starts):
        starts[0] = True
    return starts


def _special(token: int) -> str:
    return SPECIAL[token]


def _seen(character: str) -> str:
    return {" ": "␣", "\n": "⏎", "\t": "⇥"}.get(character, character if character.isprintable() else ascii(character)[1:-1])
