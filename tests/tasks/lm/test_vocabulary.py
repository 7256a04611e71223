"""Tokens from which texts come back."""

import json

import pytest

from subquad.errors import SubquadError
from subquad.tasks.lm.vocabulary import FIRST, ByteBpe, Lossless, SingleBytes, learn_lossless, lossless_from, spell

TEXT = 'The cat sat on  the mat.\n\n\t"Schön," 狐 said 🦊\x00; it\'s 1,234.5 …  '


@pytest.fixture(params=["bytes", "bpe"])
def vocabulary(request: pytest.FixtureRequest) -> Lossless:
    if request.param == "bpe":
        pytest.importorskip("tokenizers")
    return learn_lossless(request.param, ["the cat sat on the mat, and the cat sat"] * 20, most=300)


def test_texts_come_back_byte_by_byte(vocabulary: Lossless) -> None:
    first, second = vocabulary.encode([TEXT, ""])
    assert spell(vocabulary, first.tolist()) == TEXT
    assert len(second) == 0
    assert first.min() >= FIRST
    assert first.max() < len(vocabulary.byte_strings)
    assert b"".join(vocabulary.byte_strings[token] for token in first) == TEXT.encode()


def test_what_a_run_stores_makes_the_same_vocabulary(vocabulary: Lossless) -> None:
    again = lossless_from(json.loads(json.dumps(vocabulary.as_json())))
    assert again.byte_strings == vocabulary.byte_strings
    assert [*again.encode([TEXT])[0]] == [*vocabulary.encode([TEXT])[0]]


def test_merges_make_tokens_longer() -> None:
    pytest.importorskip("tokenizers")
    learned = ByteBpe.learn(["the cat sat on the mat, and the cat sat"] * 20, 300)
    assert 257 < len(learned.byte_strings) <= 300
    assert b" the" in learned.byte_strings
    assert len(learned.encode(["the cat sat"])[0]) < 5
    assert ByteBpe.learn(["the cat sat on the mat, and the cat sat"] * 20, 300).merges == learned.merges


def test_half_a_character_is_shown_as_such() -> None:
    tokens = SingleBytes().encode(["ö"])[0].tolist()
    assert spell(SingleBytes(), tokens[:1]) == "\ufffd"
    assert spell(SingleBytes(), SingleBytes().encode(["a\ud800b"])[0].tolist()) == "a?b"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kind": "bpe"}, "lacks merges"),
        ({"kind": "bpe", "merges": [["a", "b"], ["abc", "d"]]}, "merges join pieces that there are not"),
        ({"kind": "bpe", "merges": [["a"]]}, "the file is damaged|must be"),
        ({"kind": "words"}, "must be bytes or bpe"),
        ({}, "lacks 'kind'"),
    ],
)
def test_damage_is_said(values: dict[str, object], said: str) -> None:
    with pytest.raises(SubquadError, match=said):
        lossless_from(values)
