"""Streams of tokens, and the windows that cover them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from subquad.data.datasets import Columns
from subquad.tasks.lm.corpus import Stream, cover, load_splits
from subquad.tasks.lm.vocabulary import BEGIN, FIRST, SingleBytes


@pytest.mark.parametrize("tokens", [2, 3, 7, 8, 9, 10, 30, 31, 100])
@pytest.mark.parametrize(("length", "context"), [(8, 4), (8, 0), (8, 7), (7, 3), (2, 1), (64, 32)])
def test_every_token_is_predicted_once_and_from_its_context(tokens: int, length: int, context: int) -> None:
    windows = cover(tokens, length, context)
    predicted: list[int] = []
    for begin, counted in zip(windows.begin.tolist(), windows.counted.tolist(), strict=True):
        end = begin + windows.length
        assert windows.length <= length
        assert end < tokens
        places = range(end - counted + 1, end + 1)
        predicted += places
        for place in places:
            assert place - begin >= min(context, place)
    assert predicted == list(range(1, tokens))
    grouped = [number for group, counted in windows.groups(3) for number in [counted] * len(windows.begin[group])]
    assert grouped == windows.counted.tolist()
    assert all(len(windows.begin[group]) <= 3 for group, _ in windows.groups(3))


def test_texts_stand_behind_their_beginning() -> None:
    stream = Stream(SingleBytes(), ["ab", "", "c"])
    assert stream.tokens.tolist() == [BEGIN, FIRST + ord("a"), FIRST + ord("b"), BEGIN, FIRST + ord("c")]


def test_windows_come_from_everywhere() -> None:
    stream = Stream(SingleBytes(), ["abcdefgh"])
    drawn = stream.draw(400, 3, torch.Generator().manual_seed(0))
    assert drawn.shape == (400, 4)
    assert {tuple(row) for row in drawn.tolist()} == {tuple(stream.tokens[at : at + 4].tolist()) for at in range(6)}
    assert np.array_equal(stream.draw(2, 50, torch.Generator())[0], stream.tokens)  # shorter than a window


def write(folder: Path, **texts: str) -> str:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return str(folder)


def test_splits_that_are_told_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, train="to learn", valid="to choose", test="to test")
    texts = load_splits(path, Columns(), 0)
    assert texts.splits == (["to learn"], ["to choose"], ["to test"])
    assert (texts.documents, texts.characters, texts.complaints) == (3, 24, ())


@pytest.mark.parametrize(("told", "missing"), [("test", "development"), ("valid", "test")])
def test_a_split_that_is_missing_is_taken_out_of_the_training_text(told: str, missing: str, tmp_path: Path) -> None:
    words = " ".join(f"word{at}" for at in range(200))
    texts = load_splits(write(tmp_path, **{"train": words, told: "held out"}), Columns(), 0)
    assert getattr(texts.splits, "test" if told == "test" else "development") == ["held out"]
    (taken,) = getattr(texts.splits, missing)
    assert len(taken) / len(words) == pytest.approx(0.1, abs=0.02)
    assert sum(map(len, texts.splits.train)) == len(words) - len(taken)
    assert "there is 1 document, which is cut: 90% to learn from, then 10% for" in texts.complaints[0]


def test_python_has_a_text(tmp_path: Path) -> None:
    texts = load_splits("", Columns(), 0)
    assert min(sum(map(len, part)) for part in texts.splits) > 10_000


def test_an_empty_file_is_no_split(tmp_path: Path) -> None:
    for split, text in (("train", "the cat sat on the mat\n\n" * 50), ("valid", "a dog lay"), ("test", "\n")):
        (tmp_path / f"wiki.{split}.tokens").write_text(text)
    splits = load_splits(str(tmp_path), Columns(), 0).splits
    assert splits.test
    assert splits.development == ["a dog lay"]
