"""Recordings with their texts, in the layouts that they come in."""

from pathlib import Path

import pytest

from subquad import SubquadError
from subquad.data.recordings import files_to_recognise, load_recordings, spoken


def touch(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    return file


def an4(folder: Path) -> Path:
    for split, names in (("train", ("x/a1", "y/a2", "y/gone")), ("test", ("z/b1",))):
        for name in names:
            if "gone" not in name:
                touch(folder / "feat" / f"{name}.mfc")
        (folder / "etc").mkdir(exist_ok=True)
        (folder / "etc" / f"an4_{split}.fileids").write_text("\n".join(names) + "\n")
        lines = [f"<s> GO {name[-1]} </s> ({name})" for name in names]
        (folder / "etc" / f"an4_{split}.transcription").write_text("\n".join(lines) + "\n")
    (folder / "etc" / "an4.dic").write_text("GO   G OW\nGO(2)  G O\n1 W AH N\n\n")
    return folder


def test_an4s_folder_is_read(tmp_path: Path) -> None:
    found = load_recordings(an4(tmp_path))
    assert [(recording.file.name, recording.text) for recording in found.splits["train"]] == [
        ("a1.mfc", "GO 1"),
        ("a2.mfc", "GO 2"),
    ]
    assert [recording.text for recording in found.splits["test"]] == ["GO 1"]
    assert found.pronunciations == {"GO": "G OW", "1": "W AH N"}
    assert found.complaints == (f"{tmp_path.name}: 1 recording is left out, as its file is missing: y/gone",)
    (tmp_path / "etc" / "an4_test.transcription").write_text("")
    with pytest.raises(SubquadError, match=r"an4_test.fileids has 1 names, but an4_test.transcription has 0 lines"):
        load_recordings(tmp_path)


def test_librispeechs_folders_are_read(tmp_path: Path) -> None:
    for split in ("train-clean-100", "dev-clean", "test-clean"):
        chapter = tmp_path / split / "19" / "198"
        touch(chapter / "19-198-0001.flac")
        (chapter / "19-198.trans.txt").write_text(f"19-198-0001 WORDS OF {split}\n19-198-0002 MISSING\n")
    found = load_recordings(tmp_path)
    assert {split: [recording.text for recording in several] for split, several in found.splits.items()} == {
        "train": ["WORDS OF TRAIN-CLEAN-100"],
        "development": ["WORDS OF DEV-CLEAN"],
        "test": ["WORDS OF TEST-CLEAN"],
    }
    assert "3 recordings are left out, as its file is missing" in found.complaints[0]
    alone = load_recordings(tmp_path / "dev-clean")
    assert [recording.text for recording in alone.splits["train"]] == ["WORDS OF DEV-CLEAN"]


def test_tables_of_files_and_texts_are_read(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        touch(tmp_path / "clips" / f"{name}.wav")
    table = tmp_path / "all.csv"
    rows = ["clips/a.wav,yes,train", "clips/b.wav,No no,test", "clips/c.wav,,train", "clips/d.wav,gone,train"]
    table.write_text("path,sentence,split\n" + "\n".join(rows) + "\n")
    found = load_recordings(table)
    assert [recording.text for recording in found.splits["train"]] == ["YES"]
    assert [recording.text for recording in found.splits["test"]] == ["NO NO"]
    assert len(found.complaints) == 2  # no text, no file
    (tmp_path / "train.csv").write_text("file,text\nclips/a.wav,one\n")
    (tmp_path / "test.tsv").write_text("file\ttext\nclips/b.wav\ttwo\n")
    table.unlink()
    splits = load_recordings(tmp_path).splits
    assert [splits["train"][0].text, splits["test"][0].text] == ["ONE", "TWO"]
    (tmp_path / "train.csv").write_text("name,text\nclips/a.wav,one\n")
    with pytest.raises(SubquadError, match="has no column 'file'"):
        load_recordings(tmp_path)


def test_what_holds_no_recordings_is_refused(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "nowhere", "there is no file or folder"),
        (touch(tmp_path / "a.wav"), "is a sound without a text: give AN4's folder"),
        (tmp_path, "holds no recordings with texts: give AN4's folder"),
    ):
        with pytest.raises(SubquadError, match=said):
            load_recordings(path)
    (tmp_path / "a.csv").write_text("file,text\nnone.wav,hello\n")
    with pytest.raises(SubquadError, match=r"has no recordings to learn from: .* 1 recording is left out"):
        load_recordings(tmp_path)


def test_marks_of_transcripts_are_not_spoken() -> None:
    assert spoken("<s> yes <sil>  no</s> (an251-fash-b)") == "YES NO"


def test_sounds_below_a_folder_are_found(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="has no sounds in it"):
        list(files_to_recognise(tmp_path))
    files = [touch(tmp_path / name) for name in ("a.wav", "b/c.WAV")]
    touch(tmp_path / "notes.txt")
    assert list(files_to_recognise(tmp_path)) == files
    assert list(files_to_recognise(tmp_path / "notes.txt")) == [tmp_path / "notes.txt"]
