"""Texts from files and folders."""

import gzip
import json
from pathlib import Path

import pytest

from subquad.data.texts import PACKAGES, has_labels, load_texts, python_docstrings, python_topics
from subquad.errors import SubquadError


def test_a_folder_gives_a_document_for_each_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b.md").write_text("second, with a \u2028 in it")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbffirst")
    lines = [json.dumps({"text": text, "label": 1}) for text in ("third", "fourth")]
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress("\r\n".join(lines).encode()))
    (tmp_path / ".hidden.txt").write_text("not looked at")
    (tmp_path / "table.csv").write_text("not looked at either")
    (tmp_path / "folder.txt").mkdir()
    found = load_texts(tmp_path)
    assert found.names == ["a.txt", "below/b.md", "c.jsonl.gz:1", "c.jsonl.gz:2"]
    assert found.texts == ["first", "second, with a \u2028 in it", "third", "fourth"]
    assert found.characters == sum(map(len, found.texts))
    assert found.complaints == ()


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.txt").write_bytes("schön".encode("latin-1"))
    (tmp_path / "d.txt").write_text(" \n")
    (tmp_path / "e.txt").write_text("good")
    (tmp_path / "e.txt.jsonl").write_bytes(b"\x00")
    (tmp_path / "f.jsonl").write_text('{"text": "fine"}\n\n{"text": 3}\n[1]\n{"text": "cut\n')
    found = load_texts(tmp_path)
    assert found.texts == ["good", "fine"]
    name = tmp_path.name
    assert found.complaints == (
        f"{name}: 3 files are left out, not text in UTF-8: the first b.txt",
        f"{name}: 1 text is left out, empty: d.txt",
        f"{name}: 1 text is left out, a copy of an earlier one: e.txt",
        f'{name}: 1 line is left out, without a "text" in words: f.jsonl:3',
        f"{name}: 2 lines are left out, no JSON object: the first f.jsonl:4",
    )


def test_labels_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('{"text": "no lines", "label": 1}')
    (tmp_path / "b.jsonl").write_text('{"text": "no label"}\n')
    assert not has_labels(tmp_path)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "good", "label": 1}\n'))
    assert has_labels(tmp_path)
    assert has_labels(tmp_path / "c.jsonl.gz")
    assert not has_labels(tmp_path / "b.jsonl")


def test_half_a_character_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    assert load_texts(tmp_path).texts == ["a?b"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none", None, "there is no file or folder"),
        ("image.txt", b"\x89PNG\x00\xff", "is not text in UTF-8 but something binary"),
        ("lines.jsonl", b"\x00", "is not text in UTF-8 but something binary"),
        ("empty.txt", b"", "holds no text that can be used: empty.txt: 1 text is left out, empty"),
        ("empty.jsonl", b"", "holds no text that can be used: its files are empty"),
        ("cut.jsonl.gz", b"\x1f\x8b\x08", "is not a whole gzip file"),
        ("no.jsonl.gz", b"words", "is not a whole gzip file"),
    ],
)
def test_what_is_no_text_is_refused(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SubquadError, match=said):
        load_texts(tmp_path / name)


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(SubquadError, match=r"has no text in it: there should be \*.txt, \*.md, \*.jsonl, \*.jsonl.gz"):
        load_texts(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"\x00\x01")
    with pytest.raises(SubquadError, match=r"1 file is left out, not text in UTF-8: a\.txt"):
        load_texts(tmp_path)


def test_python_has_texts_of_its_own() -> None:
    found = python_topics()
    assert found.characters > 100_000
    assert "lambda" in found.names
    assert found.names == sorted(set(found.names))


def test_python_has_labelled_texts_of_its_own() -> None:
    found = python_docstrings()
    assert len(found.texts) == len(set(found.texts)) == len(found.names) == len(found.labels) > 800
    assert set(found.labels) <= set(PACKAGES)
    assert all(found.labels.count(package) > 20 for package in ("asyncio", "email", "logging", "xml"))
    assert all(name.startswith(label) for name, label in zip(found.names, found.labels, strict=True))
    assert not any("test" in name.split("/")[1:-1] for name in found.names)
