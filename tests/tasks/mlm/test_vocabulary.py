"""From text to tokens and back."""

import json
import sys

import numpy as np
import pytest

from subquad.errors import SubquadError
from subquad.tasks.mlm.vocabulary import (
    FIRST,
    MASK,
    UNKNOWN,
    Bytes,
    Characters,
    Vocabulary,
    VocabularyKind,
    Wordpiece,
    encode_blanks,
    learn_vocabulary,
    vocabulary_from,
)

TEXTS = ["the cat sat on the mat.", "the bat's hat, the rat sat"] * 3
KINDS: tuple[VocabularyKind, ...] = ("bytes", "characters", "wordpiece")


def learned(kind: VocabularyKind) -> Vocabulary:
    return learn_vocabulary(kind, TEXTS, most=80, lowercase=True)


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_back(kind: VocabularyKind) -> None:
    vocabulary = learned(kind)
    (tokens,) = vocabulary.encode(["the cat sat"])
    assert tokens.min() >= FIRST
    assert tokens.max() < vocabulary.size
    assert vocabulary.spell(tokens.tolist()) == "the cat sat"
    assert [len(one) for one in vocabulary.encode(["", "a"])] == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_from_json(kind: VocabularyKind) -> None:
    vocabulary = learned(kind)
    again = vocabulary_from(json.loads(json.dumps(vocabulary.as_json())))
    assert again.size == vocabulary.size
    for one, other in zip(vocabulary.encode(TEXTS), again.encode(TEXTS), strict=True):
        assert np.array_equal(one, other)


def test_bytes_hold_everything() -> None:
    text = "naïve — 東京 \x00"
    vocabulary = Bytes()
    (tokens,) = vocabulary.encode([text])
    assert len(tokens) == len(text.encode())
    assert vocabulary.spell(tokens.tolist()) == text
    assert [vocabulary.name(FIRST + byte) for byte in b" a\n\x05\xff"] == ["␣", "a", "⏎", "\\x05", "\\xff"]


def test_characters_are_the_most_frequent_ones_of_the_training_texts() -> None:
    vocabulary = Characters.learn(["aaabbc"], most=FIRST + 2)
    assert vocabulary.characters == "ab"
    (tokens,) = vocabulary.encode(["abcz\U0001f600"])
    assert tokens.tolist() == [FIRST, FIRST + 1, UNKNOWN, UNKNOWN, UNKNOWN]
    assert vocabulary.spell([FIRST, MASK, UNKNOWN]) == "a[MASK]�"


def test_pieces_are_the_same_every_time_and_no_more_than_asked_for() -> None:
    found = [Wordpiece.learn(TEXTS, 60, lowercase=True).pieces for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert found[0][:3] == ["[PAD]", "[MASK]", "[UNK]"]
    assert len(found[0]) <= 60
    assert "the" in found[0]
    assert len(Wordpiece.learn(["".join(map(chr, range(0x3B1, 0x3C9)))], 24, lowercase=False).pieces) <= 24


def test_case_is_kept_where_it_is_asked_for() -> None:
    texts = ["The THE the"] * 4
    lower, upper = (Wordpiece.learn(texts, 40, lowercase=lowercase) for lowercase in (True, False))
    assert lower.spell(lower.encode(["THE"])[0].tolist()) == "the"
    assert upper.spell(upper.encode(["THE"])[0].tolist()) == "THE"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("bytes", "T..SS..ST"),
        ("characters", "T..SS..ST"),
    ],
)
def test_words_begin_where_the_last_one_ended(kind: VocabularyKind, wanted: str) -> None:
    vocabulary = learned(kind)
    (tokens,) = vocabulary.encode(["the cat. "])
    assert vocabulary.starts(tokens).tolist() == [character != "." for character in wanted]
    assert vocabulary.starts(tokens[1:3]).tolist() == [True, False]  # what is left of a word is one


def test_pieces_of_a_word_belong_together() -> None:
    vocabulary = Wordpiece(["[PAD]", "[MASK]", "[UNK]", "b", "##at", "the", "##s"], lowercase=True)
    (tokens,) = vocabulary.encode(["the bats bat"])
    assert [vocabulary.name(token) for token in tokens] == ["the", "b", "##at", "##s", "b", "##at"]
    assert vocabulary.starts(tokens).tolist() == [True, True, False, False, True, False]
    assert vocabulary.starts(tokens[2:]).tolist() == [True, False, True, False]
    assert vocabulary.spell(tokens.tolist()) == "the bats bat"


@pytest.mark.parametrize("kind", KINDS)
def test_blanks_in_a_users_text(kind: VocabularyKind) -> None:
    vocabulary = learned(kind)
    tokens = encode_blanks(vocabulary, "[MASK] cat[MASK]")
    assert tokens[0] == tokens[-1] == MASK
    assert (tokens == MASK).sum() == 2
    assert vocabulary.spell(tokens[1:-1].tolist()).strip() == "cat"


def test_mistakes() -> None:
    with pytest.raises(SubquadError, match="--vocabulary-size must be above 3"):
        learn_vocabulary("characters", TEXTS, most=3, lowercase=True)
    with pytest.raises(SubquadError, match=r"kind.* must be bytes, characters or wordpiece, but is .syllables."):
        vocabulary_from({"kind": "syllables"})


def test_without_the_package_pieces_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SubquadError, match=r"needs the package tokenizers, .* or give --vocabulary bytes"):
        learned("wordpiece")
    assert learned("characters").size > FIRST
