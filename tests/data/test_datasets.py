"""Text data sets as they are shipped."""

import json
from pathlib import Path

import pytest

from subquad.data.datasets import Columns, load_dataset, told_splits
from subquad.errors import SubquadError


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def write_parquet(path: Path, columns: dict[str, list[object]]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"], ["train", "development", "test"]),
        (["ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"], ["train", "development", "test"]),
        (["train.tsv", "dev.tsv", "test.tsv"], ["train", "development", "test"]),
        (["data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"], ["train", "development"]),
        (["imdb-train.jsonl.gz", "imdb-test.jsonl.gz"], ["train", "test"]),
        (["train/pos/0_9.txt", "test/neg/1_2.txt"], ["train", "test"]),
        (["train.csv", "a.csv"], []),  # what is not for training is not told
        (["the_test_of_time.txt", "how_to_train_a_dragon.txt"], []),  # words in the middle
        (["a.txt", "b.txt"], []),
    ],
)
def test_names_tell_splits(names: list[str], splits: list[str]) -> None:
    assert list(told_splits(names).values()) == splits


def test_wikitext_comes_whole_with_its_copies(tmp_path: Path) -> None:
    """Nothing is left out of a text whose splits are told: figures on it are to be compared."""
    lines = {"train": " = A = \n \n words here \n", "valid": " = A = \n", "test": " = A = \n"}
    write(tmp_path, {f"wiki.{split}.tokens": text for split, text in lines.items()} | {"notes.md": "about it"})
    found = load_dataset(tmp_path)
    assert {split: documents.texts for split, documents in found.items()} == {
        "train": [lines["train"]],
        "development": [lines["valid"]],
        "test": [lines["test"]],
    }
    assert found["train"].complaints == (f"{tmp_path.name}: 1 file is left out, as its name tells no split: notes.md",)


def test_the_lines_of_wikitext_in_parquet_are_one_text(tmp_path: Path) -> None:
    rows: list[object] = ["", " = A = \n", "", " words, here \n", " words, here \n"]
    write_parquet(tmp_path / "train-00000-of-00001.parquet", {"text": rows})
    write_parquet(tmp_path / "test-00000-of-00001.parquet", {"text": [" = B = \n"]})
    found = load_dataset(tmp_path)
    assert found["train"].texts == ["\n = A = \n\n words, here \n words, here \n"]
    assert found["test"].texts == [" = B = \n"]


def test_rows_that_are_texts_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"first, with a\nline break"\n2,second\n3,second\n4,\n')
    found = load_dataset(tmp_path / "a.csv")["train"]
    assert found.texts == ["first, with a\nline break", "second"]
    assert found.names == ["a.csv:2", "a.csv:4"]
    assert found.complaints == (
        "a.csv: 1 text is left out, a copy of an earlier one: a.csv:5",
        "a.csv: 1 text is left out, empty: a.csv:6",
    )
    rows = [{"body": "one"}, {"body": 2}, {"other": "x"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\nnonsense\n")
    found = load_dataset(tmp_path / "b.jsonl", Columns("body"))["train"]
    assert found.texts == ["one"]
    assert found.complaints == (
        'b.jsonl: 2 lines are left out, without a "body" in words: the first b.jsonl:2',
        "b.jsonl: 1 line is left out, no JSON object: b.jsonl:4",
    )


def test_tables_beside_texts_are_about_them(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "a novel", "years.csv": "name,year\na,1900\n"})
    assert load_dataset(tmp_path)["train"].texts == ["a novel"]


def test_imdb(tmp_path: Path) -> None:
    files = {
        f"{split}/{label}/{n}.txt": f"{split} {label} {n}"
        for split in ("train", "test")
        for label in ("pos", "neg")
        for n in (0, 1)
    }
    write(tmp_path, files | {"train/unsup/0.txt": "of no label", "train/urls_pos.txt": "http", "README.md": "about"})
    found = load_dataset(tmp_path, labelled=True)
    assert found["train"].labels == ["neg", "neg", "pos", "pos"]
    assert found["train"].texts[0] == "train neg 0"
    assert found["test"].labels == ["neg", "neg", "pos", "pos"]
    assert found["train"].complaints == (
        f"{tmp_path.name}: 1 file is left out, as its name tells no split: README.md",
        f"{tmp_path.name}: 2 texts are left out, without a label: the first train/unsup/0.txt",
    )


def test_glue_has_no_labels_in_its_test(tmp_path: Path) -> None:
    rows = "sentence\tlabel\nsays \"no\t0\nit 's fine\t1\n"
    write(tmp_path, {"train.tsv": rows, "dev.tsv": rows, "test.tsv": "index\tsentence\n0\tsecret\n"})
    found = load_dataset(tmp_path, labelled=True)
    assert sorted(found) == ["development", "train"]
    assert (found["train"].texts, found["train"].labels) == (['says "no', "it 's fine"], ["0", "1"])
    assert found["train"].complaints == (f"{tmp_path.name}: the texts for the test are left out, without a label",)
    write_parquet(tmp_path / "hub" / "train.parquet", {"sentence": ["a", "b"], "label": [0, 1], "idx": [0, 1]})
    write_parquet(tmp_path / "hub" / "test.parquet", {"sentence": ["c", "d"], "label": [-1, -1], "idx": [0, 1]})
    assert list(load_dataset(tmp_path / "hub", labelled=True)) == ["train"]
    (tmp_path / "signs.csv").write_text("text,label\ngood,1\nbad,-1\n")
    assert load_dataset(tmp_path / "signs.csv", labelled=True)["train"].labels == ["1", "-1"]  # as a class it stays


@pytest.mark.parametrize(
    "header",
    ["index\tquestion\tsentence\tlabel", "id\tquestion1\tquestion2\tis_duplicate", "n\tsentence1\tsentence2\tlabel"],
)
def test_pairs_are_found(header: str, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(f"{header}\n0\twho?\tme\tyes\n1\twho?\tyou\tno\n2\twho?\tme\tyes\n")
    found = load_dataset(tmp_path / "train.tsv", labelled=True)["train"]
    assert (found.texts, found.seconds, found.labels) == (["who?", "who?"], ["me", "you"], ["yes", "no"])
    assert "a copy of an earlier one" in found.complaints[0]


def test_columns_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title,body,kind\nA,first,x\nB,second,y\n")
    found = load_dataset(tmp_path / "a.csv", Columns("title", "body", "kind"), labelled=True)["train"]
    assert (found.texts, found.seconds, found.labels) == (["A", "B"], ["first", "second"], ["x", "y"])
    found = load_dataset(tmp_path / "a.csv", Columns("body", label="kind"), labelled=True)["train"]
    assert (found.texts, found.seconds) == (["first", "second"], [])
    (tmp_path / "a.jsonl").write_text('{"title": "A", "body": "first", "kind": 1}\n{"title": "B", "kind": 0}\n')
    found = load_dataset(tmp_path / "a.jsonl", Columns("title", "body", "kind"), labelled=True)["train"]
    assert (found.texts, found.seconds, found.labels) == (["A"], ["first"], ["1"])
    assert found.complaints == ('a.jsonl: 1 line is left out, without a "body" in words: a.jsonl:2',)
    with pytest.raises(SubquadError, match=r"has no column 'text' but 'title', 'body', 'kind': name the one with the text"):
        load_dataset(tmp_path / "a.csv", labelled=True)
    with pytest.raises(SubquadError, match=r"has no column 'boddy' but .*by --pair-column"):
        load_dataset(tmp_path / "a.csv", Columns("title", "boddy"), labelled=True)
    with pytest.raises(SubquadError, match=r"has no column 'label' but 'title', 'body', 'kind': .*by --label-column"):
        load_dataset(tmp_path / "a.csv", Columns("body"), labelled=True)
    (tmp_path / "b.csv").write_text("text,kind\nsame,1\nsame,1\nother,0\n")  # copies are not why nothing is left
    with pytest.raises(SubquadError, match=r"has no column 'sort' but 'text', 'kind': .*labels by --label-column"):
        load_dataset(tmp_path / "b.csv", Columns(label="sort"), labelled=True)


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good", "label": 1}\n{"text": "bad", "label": "no"}\n{"text": "unknown"}\n')
    found = load_dataset(path, labelled=True)["train"]
    assert (found.texts, found.labels) == (["good", "bad"], ["1", "no"])
    assert found.complaints == ("a.jsonl: 1 text is left out, without a label: a.jsonl:3",)
    assert load_dataset(path)["train"].labels == []
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(SubquadError, match=r"holds no text that can be used: b.txt: 1 text is left out, without a label"):
        load_dataset(tmp_path / "b.txt", labelled=True)
