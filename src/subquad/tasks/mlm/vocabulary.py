"""From text to tokens and back: bytes, characters, or pieces of words that were learned."""

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

PAD, MASK, UNKNOWN, FIRST = range(4)  # behind a text, what is to be found, what was never seen, the first of the others
BLANK = "[MASK]"
"""How a user writes the token that is to be found."""

VocabularyKind = Literal["bytes", "characters", "wordpiece"]


class VocabularyFields(TypedDict, total=False):
    """What `as_json` gives. Which of the fields are there depends on the kind."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    kind: Required[VocabularyKind]
    characters: str
    pieces: list[str]
    lowercase: bool


class Vocabulary(Protocol):
    """Tokens are numbers; the first ones are special."""

    @property
    def size(self) -> int:
        """How many tokens there are, the special ones included."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        """The tokens of each text."""
        ...

    def starts(self, tokens: Int[ndarray, "n"]) -> Bool[ndarray, "n"]:
        """Where words begin. What stands between words is a word of its own."""
        ...

    def spell(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        ...

    def name(self, token: int) -> str:
        """One token, so that it can be seen."""
        ...

    def as_json(self) -> dict[str, Any]:
        """What `vocabulary_from` makes it of again."""
        ...


UNSEEN = (PAD, UNKNOWN)


class Bytes:
    """All that UTF-8 can be made of."""

    size = FIRST + 256

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        return [np.frombuffer(text.encode(errors="replace"), np.uint8).astype(np.int64) + FIRST for text in texts]

    def starts(self, tokens: Int[ndarray, "n"]) -> Bool[ndarray, "n"]:
        found = tokens - FIRST
        inside = (found >= 128) | np.isin(found, [byte for byte in range(128) if _in_word(chr(byte))])
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
    """The characters that training texts hold."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.size = FIRST + len(characters)

    @classmethod
    def learn(cls, texts: Sequence[str], most: int) -> "Characters":
        """The most frequent ones."""
        return cls("".join(sorted(_frequent(texts, most - FIRST))))

    @cached_property
    def _codes(self) -> Int[ndarray, "codes"]:
        """Sorted, so that a search finds each."""
        return np.array([ord(character) for character in self.characters], dtype=np.int64)

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        found = []
        for text in texts:
            codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32).astype(np.int64)
            at = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
            found.append(np.where(self._codes[at] == codes, at + FIRST, UNKNOWN))
        return found

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
"""In front of a piece that goes on with a word, as in BERT."""


class Wordpiece:
    """Frequent words whole, others in pieces (Schuster and Nakajima 2012), by the package tokenizers."""

    def __init__(self, pieces: Sequence[str], *, lowercase: bool) -> None:
        """`pieces` in the order of their numbers, the special ones first."""
        self.pieces, self.lowercase, self.size = list(pieces), lowercase, len(pieces)

    @classmethod
    def learn(cls, texts: Sequence[str], most: int, *, lowercase: bool) -> "Wordpiece":
        """Those that come together most often."""
        tokenizer = cls(SPECIAL, lowercase=lowercase)._tokenizer
        alphabet = _frequent(texts, most // 4)
        letters = sorted(filter(str.isalnum, {*tokenizer.normalizer.normalize_str(" ".join(alphabet))}))
        # which of two equally frequent pairs is joined first depends on their numbers: letters within words get theirs here,
        # in an order that is the same every time
        trainer = _tokenizers().trainers.WordPieceTrainer(
            vocab_size=most,
            special_tokens=[*SPECIAL, *(CONTINUES + letter for letter in letters)],
            limit_alphabet=max(1, most // 4),  # with and without a word before them: the rest is for pieces
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls([*SPECIAL, *sorted(tokenizer.get_vocab().keys() - set(SPECIAL))], lowercase=lowercase)

    @cached_property
    def _tokenizer(self) -> Any:
        package = _tokenizers()
        numbers = {piece: number for number, piece in enumerate(self.pieces)}
        tokenizer = package.Tokenizer(package.models.WordPiece(numbers, unk_token=SPECIAL[UNKNOWN]))
        tokenizer.normalizer = package.normalizers.BertNormalizer(lowercase=self.lowercase)
        tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
        return tokenizer

    @cached_property
    def _continues(self) -> Bool[ndarray, "v"]:
        return np.array([piece.startswith(CONTINUES) for piece in self.pieces])

    def encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in found]

    def starts(self, tokens: Int[ndarray, "n"]) -> Bool[ndarray, "n"]:
        return _first(~self._continues[tokens])

    def spell(self, tokens: Sequence[int]) -> str:
        pieces = [self.pieces[token] for token in tokens if token != PAD]
        spelt: str = _tokenizers().decoders.WordPiece(prefix=CONTINUES).decode(pieces)
        return spelt

    def name(self, token: int) -> str:
        return self.pieces[token]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "wordpiece", "pieces": self.pieces, "lowercase": self.lowercase}


SPECIAL = ("[PAD]", BLANK, "[UNK]")


def learn_vocabulary(kind: VocabularyKind, texts: Sequence[str], *, most: int, lowercase: bool) -> Vocabulary:
    """The vocabulary of training texts, with at most so many tokens."""
    if kind == "bytes":
        return Bytes()
    if most <= FIRST:
        raise SubquadError(f"--vocabulary-size must be above {FIRST}, the number of special tokens, but is {most}")
    return Characters.learn(texts, most) if kind == "characters" else Wordpiece.learn(texts, most, lowercase=lowercase)


def vocabulary_from(values: Mapping[str, Any]) -> Vocabulary:
    """From what a run keeps."""
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
    """A user's text, in which [MASK] stands for a token."""
    parts = vocabulary.encode(text.split(BLANK))
    found = [parts[0]]
    for part in parts[1:]:
        found += [np.array([MASK]), part]
    return np.concatenate(found)


def _tokenizers() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.trainers
    except ImportError:
        raise SubquadError(
            "a wordpiece vocabulary needs the package tokenizers, which is not installed: pip install 'subquad[hub]', "
            "or give --vocabulary characters or bytes"
        ) from None
    return tokenizers


def _frequent(texts: Sequence[str], most: int) -> list[str]:
    """Characters. Of those that are as frequent as each other, the ones that come first in Unicode."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return sorted(counts, key=lambda character: (-counts[character], character))[:most]


def _in_word(character: str) -> bool:
    return character.isalnum() or character in "'_"


def _begin(inside: Bool[ndarray, "n"]) -> Bool[ndarray, "n"]:
    """A word begins wherever it does not go on."""
    before = np.concatenate([[False], inside[:-1]])[: len(inside)]
    return ~(inside & before)


def _first(starts: Bool[ndarray, "n"]) -> Bool[ndarray, "n"]:
    """A stretch that begins inside a word begins with what is left of it."""
    if len(starts):
        starts[0] = True
    return starts


def _special(token: int) -> str:
    return SPECIAL[token]


def _seen(character: str) -> str:
    return {" ": "␣", "\n": "⏎", "\t": "⇥"}.get(character, character if character.isprintable() else ascii(character)[1:-1])
