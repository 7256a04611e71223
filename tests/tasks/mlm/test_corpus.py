"""Splits and stretches."""

import numpy as np
import pytest
import torch

from subquad.data.texts import Documents
from subquad.errors import SubquadError
from subquad.tasks.mlm.corpus import Tokens, split_texts
from subquad.tasks.mlm.vocabulary import FIRST, Bytes


def documents(texts: list[str]) -> Documents:
    return Documents([f"d{at:03d}" for at in range(len(texts))], texts, [], ())


def test_documents_are_in_one_split_each() -> None:
    texts = [f"{at} " * (1 + at % 7) for at in range(200)]
    splits = split_texts(documents(texts), seed=0)
    assert sorted(text for part in splits for text in part) == sorted(texts)
    whole = sum(map(len, texts))
    for part, share in zip(splits, (0.8, 0.1, 0.1), strict=True):
        assert sum(map(len, part)) / whole == pytest.approx(share, abs=0.02)
    assert split_texts(documents(texts), seed=0) == splits
    assert split_texts(documents(texts), seed=1) != splits
    backwards = Documents([f"d{at:03d}" for at in range(199, -1, -1)], texts[::-1], [], ())
    assert split_texts(backwards, seed=0) == splits


def test_a_long_document_does_not_eat_the_training_split() -> None:
    splits = split_texts(documents(["long " * 5000] + [f"short {at}" for at in range(20)]), seed=0)
    assert any(text.startswith("long") for text in splits.train)
    assert all(splits)
    alike = split_texts(documents([f"{at:04d}" * 50 for at in range(10)]), seed=0)
    assert [len(part) for part in alike] == [8, 1, 1]


def test_few_documents_are_cut_and_words_stay_whole() -> None:
    texts = [" ".join(f"word{at}" for at in range(500)), " ".join(f"other{at}" for at in range(300))]
    splits = split_texts(documents(texts), seed=0)
    assert ["".join(parts) for parts in zip(*splits, strict=True)] == texts
    words = [sum(len(part.split()) for part in parts) for parts in zip(*splits, strict=True)]
    assert words == [500, 300]
    for text, train in zip(texts, splits.train, strict=True):
        assert len(train) / len(text) == pytest.approx(0.8, abs=0.01)
    with pytest.raises(SubquadError, match="d000 is too short to be cut into three splits"):
        split_texts(documents(["word"]), seed=0)


def test_tiles_cover_everything_once() -> None:
    tokens = Tokens(Bytes(), ["a" * 10, "", "b" * 4, "c" * 9])
    begin, end, of = tokens.tiles(4)
    assert np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)]).tolist() == list(range(23))
    assert of.tolist() == [0, 0, 0, 1, 2, 2, 2]
    windows = tokens.windows(begin[4:], end[4:])
    assert windows.keep.sum(1).tolist() == [4, 4, 1]
    assert (windows.tokens[windows.keep] == FIRST + ord("c")).all()
    assert (windows.tokens[~windows.keep] == 0).all()


def test_stretches_stay_in_their_document_and_come_from_everywhere() -> None:
    texts = ["abcdefghij", "klm", "nopqrstuvwxyz"]
    tokens = Tokens(Bytes(), texts)
    drawn = tokens.draw(2000, 4, torch.Generator().manual_seed(0))
    found = [bytes((row[keep] - FIRST).tolist()).decode() for row, keep in zip(drawn.tokens, drawn.keep, strict=True)]
    wanted = {text[at : at + 4] for text in texts for at in range(max(1, len(text) - 3))}
    assert set(found) == wanted
    assert found.count("klm") / 2000 == pytest.approx(3 / 26, abs=0.02)
    again = tokens.draw(2000, 4, torch.Generator().manual_seed(0))
    assert np.array_equal(drawn.tokens, again.tokens)
