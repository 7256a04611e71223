"""Texts and pairs of texts byte by byte: folders of classes, released citation pairs, docstrings."""

import json
from pathlib import Path

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks import Retrieval, Text
from subquad.tasks.lra.retrieval import docstring_pairs


def write_reviews(path: Path, number: int = 40) -> Path:
    lines = [json.dumps({"text": f"{('good', 'bad')[at % 2]} ü {at}", "label": at % 2}) for at in range(number)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_texts_are_their_bytes(tmp_path: Path) -> None:
    options = Text(data=str(write_reviews(tmp_path / "a.jsonl")), length=6)
    loaded = options.load()
    assert loaded.labels == ["0", "1"]
    assert {split: source.count for split, source in loaded.splits.items()} == {"test": 4, "development": 4, "train": 32}
    example = next(example for example in loaded.splits["train"].first(32) if example.label == 0)
    assert bytes(example.tokens) == "good ü".encode()[:6]
    assert options.parse(["good", "ü"], 6).tokens.tolist() == list("good ü".encode())[:6]
    assert options.spell(options.parse(["good"], 6)) == "good"
    assert options.parse([], 6).tokens.tolist() == [32]
    unlabelled = options.read_unlabelled(Path(options.data), 6)
    assert len(unlabelled.examples) == 40


def test_folders_are_classes_and_tell_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            (tmp_path / split / label).mkdir(parents=True)
            for at in range(10):
                (tmp_path / split / label / f"{at}.txt").write_text(f"{label} {split} {at}")
    loaded = Text(data=str(tmp_path)).load()
    assert {split: source.count for split, source in loaded.splits.items()} == {"test": 20, "development": 2, "train": 18}
    assert all(b"test" in bytes(example.tokens) for example in loaded.splits["test"].first(20))


def test_without_data_docstrings_are_used() -> None:
    loaded = Text(length=64).load()
    assert "asyncio" in loaded.labels
    assert max(len(example.tokens) for example in loaded.splits["train"].first(100)) == 64


def citations(folder: Path, **changed: str) -> Path:
    for name in ("train", "eval", "test"):
        lines = [f'{at % 2}.0\tid{at}\tid{at + 1}\tfirst "{at}\tsecond {at}' for at in range(12)]
        (folder / f"new_aan_pairs.{name}.tsv").write_text(changed.get(name, "\n".join(lines) + "\n"))
    return folder


def test_released_citations_are_read(tmp_path: Path) -> None:
    options = Retrieval(data=str(citations(tmp_path)), length=8)
    loaded = options.load()
    assert {split: source.count for split, source in loaded.splits.items()} == {"train": 12, "development": 12, "test": 12}
    example = loaded.splits["train"].make(3)
    assert example.second is not None
    assert (bytes(example.tokens), bytes(example.second), example.label) == (b'first "3', b"second 3", 1)
    assert Retrieval(data=str(tmp_path / "new_aan_pairs.train.tsv")).load().splits["test"].count == 12
    assert options.spell(example) == 'first "3 | second 3'
    asked = options.read_unlabelled(tmp_path / "new_aan_pairs.test.tsv", 7)
    assert asked.names[3] == "new_aan_pairs.test.tsv:4"
    assert bytes(asked.examples[3].tokens) == b'first "'
    assert len(options.read_unlabelled(tmp_path, 7).examples) == 36


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"eval": "2\ta\tb\tc\td\n"}, "new_aan_pairs.eval.tsv:1: the label must be 0 or 1, but is '2'"),
        ({"eval": "1\ta\tb\tc\n"}, "new_aan_pairs.eval.tsv:1 has 4 columns instead of 5"),
        ({"test": ""}, "is empty: it should have a line for each pair"),
    ],
)
def test_damaged_citations_get_one_sentence(changed: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SubquadError) as refused:
        Retrieval(data=str(citations(tmp_path, **changed))).load()
    assert said in str(refused.value)


def test_any_pairs_are_read_and_single_texts_are_not(tmp_path: Path) -> None:
    lines = ["sentence1\tsentence2\tlabel", *(f"a {at}\tb {at}\t{('no', 'yes')[at % 2]}" for at in range(30))]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    options = Retrieval(data=str(tmp_path / "pairs.tsv"))
    loaded = options.load()
    assert loaded.labels == ["no", "yes"]
    example = loaded.splits["train"].make(0)
    assert example.second is not None
    assert bytes(example.second).startswith(b"b ")
    assert len(options.read_unlabelled(tmp_path / "pairs.tsv", 9).examples) == 30
    with pytest.raises(SubquadError, match="holds pairs of texts: train lra-retrieval on them"):
        Text(data=str(tmp_path / "pairs.tsv")).load()
    reviews = write_reviews(tmp_path / "a.jsonl")
    with pytest.raises(SubquadError, match="holds no pairs of texts: name their columns"):
        Retrieval(data=str(reviews)).load()
    with pytest.raises(SubquadError, match="has single texts, but the model compares pairs"):
        options.read_unlabelled(reviews, 9)
    assert options.split_words("one text\tand another") == ["one text", "and another"]
    with pytest.raises(SubquadError, match="the model compares two texts, but there are 1"):
        options.parse(["one"], 9)


def test_docstrings_are_paired_by_module() -> None:
    """Half of the pairs are of one module, none pairs a text with itself, and splits share no text."""
    loaded = Retrieval(length=200, examples=50, held_out=50, tested=50).load()
    texts = {}
    for split, source in loaded.splits.items():
        examples = source.first(50)
        assert all(bytes(example.tokens) != bytes(example.second) for example in examples)  # type: ignore[arg-type]
        texts[split] = {bytes(part) for example in examples for part in (example.tokens, example.second)}  # type: ignore[arg-type]
        assert 10 < sum(example.label for example in examples) < 40
    modules = ["a", "a", "b", "b", "b", "c"]
    pairs = docstring_pairs([np.array([at]) for at in range(6)], modules, [0, 1, 2, 3, 5], 200, "0")
    for example in pairs.first(200):
        assert example.second is not None
        first, second = int(example.tokens[0]), int(example.second[0])
        assert first != second
        assert 4 not in (first, second)
        assert (modules[first] == modules[second]) == bool(example.label)
