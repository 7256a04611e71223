"""ListOps: values by an evaluator that shares nothing with the task, the distribution of expressions, released files."""

import re
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks import ListOps
from subquad.tasks.lra.listops import WORDS, expression_tokens

SMALL = ListOps(shortest=5, largest=40, held_out=20, tested=20)


def spelt(tokens: np.ndarray) -> str:
    return " ".join(WORDS[token] for token in tokens)


def valued(text: str) -> int:
    """Rewrites the innermost list by its value until there is none."""
    by_name: dict[str, Callable[[list[int]], int]] = {
        "MIN": min,
        "MAX": max,
        "MED": lambda values: int(statistics.median(values)),
        "SM": lambda values: sum(values) % 10,
    }
    while "[" in text:
        inner = re.search(r"\[(\w+)((?: \d)+) \]", text)
        assert inner is not None, f"{text} is not well-formed"
        value = by_name[inner[1]]([int(digit) for digit in inner[2].split()])
        text = text[: inner.start()] + str(value) + text[inner.end() :]
    return int(text)


def deepest(text: str) -> int:
    depth = most = 0
    for word in text.split():
        depth += word.startswith("[")
        most = max(most, depth)
        depth -= word == "]"
    return most


@pytest.mark.parametrize("options", [SMALL, ListOps(shortest=0, largest=500, depth=4, arguments=3)])
def test_values_are_those_of_another_evaluator(options: ListOps) -> None:
    for number in range(200):
        example = options.draw("train", number)
        text = spelt(example.tokens)
        assert valued(text) == example.label
        assert options.shortest < len(example.tokens) < options.largest
        assert deepest(text) < options.depth  # digits are at the last depth
        assert np.array_equal(expression_tokens(text, 1000), example.tokens)
        arguments = re.findall(r"\[\w+((?: \d)+) \]", text)
        assert all(2 <= len(values.split()) <= options.arguments for values in arguments)


def test_the_published_setting_gives_long_expressions() -> None:
    published = ListOps(shortest=500, largest=2000)
    examples = [published.draw("test", number) for number in range(5)]
    assert all(500 < len(example.tokens) < 2000 for example in examples)
    assert all(valued(spelt(example.tokens)) == example.label for example in examples)


def test_expressions_depend_on_seed_split_and_number_only() -> None:
    train, again = SMALL.load().splits["train"], SMALL.load().splits["train"]
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(train.first(20), again.first(20), strict=True))
    texts = {spelt(SMALL.draw(split, number).tokens) for split in ("train", "development", "test") for number in range(50)}
    assert len(texts) > 145
    other = ListOps(shortest=5, largest=40, data_seed=1)
    assert spelt(other.draw("train", 0).tokens) not in texts


def test_a_quarter_of_nodes_are_operators() -> None:
    """Without limits of length, each argument is an operator with probability 1/4."""
    options = ListOps(shortest=0, largest=10**6, depth=2, arguments=2)
    roots = [options.draw("train", number).tokens for number in range(4000)]
    assert np.mean([len(tokens) > 1 for tokens in roots]) == pytest.approx(0.25, abs=0.03)
    operators = np.bincount([tokens[0] - 10 for tokens in roots if len(tokens) > 1], minlength=4)
    assert operators / operators.sum() == pytest.approx(np.full(4, 0.25), abs=0.06)


def test_impossible_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.tasks.lra.listops.TRIES", 50)
    with pytest.raises(SubquadError, match="no expression of depth 2 with up to 2 arguments had more than 30 and fewer"):
        ListOps(shortest=30, largest=40, depth=2, arguments=2).load()
    with pytest.raises(SubquadError, match="leave room between them"):
        ListOps(shortest=30, largest=31)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[MAX 1 2", "the expression lacks 1 of its ]"),
        ("[MAX 1 2 ] 3", "the expression goes on after its end, with '3'"),
        ("[AVG 1 2 ]", "'[AVG' is no word of an expression"),
        ("[MAX ]", "a list of the expression is empty"),
        ("]", "a list of the expression is empty"),
        ("", "give an expression"),
        ("[MAX " + "1 " * 40 + "]", "the model reads 40 words, but the expression has 42"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, said: str) -> None:
    with pytest.raises(SubquadError) as refused:
        SMALL.parse(text.split(), 40)
    assert said in str(refused.value)


def release(folder: Path, **changed: str) -> Path:
    """Files as they are released: with parentheses around each argument's list."""
    for name in ("basic_train", "basic_val", "basic_test"):
        lines = ["( ( ( [MAX 4 ) [MIN 2 3 ] ) ] )\t4", "( [SM 9 ) 9 ]\t8"] * 6
        (folder / f"{name}.tsv").write_text(changed.get(name, "Source\tTarget\n" + "\n".join(lines) + "\n"))
    return folder


def test_released_files_are_read(tmp_path: Path) -> None:
    loaded = ListOps(data=str(release(tmp_path)), largest=50).load()
    assert {split: source.count for split, source in loaded.splits.items()} == {"train": 12, "development": 12, "test": 12}
    first, second = loaded.splits["train"].first(2)
    assert (spelt(first.tokens), first.label) == ("[MAX 4 [MIN 2 3 ] ]", 4)
    assert (spelt(second.tokens), second.label) == ("[SM 9 9 ]", 8)
    unlabelled = SMALL.read_unlabelled(tmp_path / "basic_test.tsv", 50)
    assert unlabelled.names[0] == "basic_test.tsv:2"
    assert spelt(unlabelled.examples[1].tokens) == "[SM 9 9 ]"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"basic_train": "Source\tTarget\n[MAX 1 2 ]\t12\n"}, "basic_train.tsv:2: the value must be a digit from 0 to 9"),
        ({"basic_train": "Source\tTarget\n[MAX 1 x ]\t1\n"}, "basic_train.tsv:2: 'x' is no word of an expression"),
        ({"basic_train": "a\tb\n1\t1\n"}, "has no column 'Source'"),
        ({"basic_train": "Source\tTarget\n"}, "holds no expressions"),
        ({"basic_val": ""}, "is empty: it should begin with a line of column names"),
        (
            {"basic_val": "Source\tTarget\n[MAX " + "1 " * 60 + "]\t1\n"},
            "the model reads 50 words, but the expression has 62",
        ),
    ],
)
def test_damaged_files_get_one_sentence(changed: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SubquadError) as refused:
        ListOps(data=str(release(tmp_path, **changed)), largest=50).load()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    (release(tmp_path) / "basic_val.tsv").unlink()
    with pytest.raises(SubquadError, match="has no file for development: there should be three"):
        ListOps(data=str(tmp_path)).load()
