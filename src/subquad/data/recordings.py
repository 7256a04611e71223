"""Recordings with their texts: AN4's folder, LibriSpeech's, and tables of files and texts."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from subquad.data.datasets import SPLIT_WORDS, TEXTS
from subquad.data.sounds import SUFFIXES
from subquad.data.splits import SplitName
from subquad.data.tables import Tally, find_column, read_table
from subquad.data.texts import LeftOut
from subquad.errors import SubquadError
from subquad.files import kind_of, read_text

FILE_COLUMNS = ("file", "path", "audio", "wav", "filename")
"""Names of columns of files, the first one that a table has is taken."""
TEXT_COLUMNS = ("text", "transcript", "transcription", *TEXTS[1:])
"""Names of columns of texts, the first one that a table has is taken."""
LAYOUTS = "AN4's folder (etc/*.fileids), LibriSpeech's (*.trans.txt), or a CSV file with the columns file and text"


class Recording(NamedTuple):
    """A file with a sound or its features, and what was said."""

    file: Path
    text: str


class Recordings(NamedTuple):
    """Recordings by split, pronunciations of words where the data have some, and sentences about what was left out."""

    splits: dict[SplitName, list[Recording]]
    pronunciations: dict[str, str]
    """Phones of each word, separated by spaces; empty if the data have no dictionary."""
    complaints: tuple[str, ...]


def load_recordings(path: Path) -> Recordings:
    """Finds recordings and their texts. Where names do not tell the splits, all are in the split "train"."""
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}: give {LAYOUTS}")
    left_out, pronunciations = LeftOut(), dict[str, str]()
    if kind != "folder":
        if path.suffix.lower() in SUFFIXES:
            raise SubquadError(f"{path} is a sound without a text: give {LAYOUTS}")
        splits = _from_table(path, left_out)
    elif listed := sorted((path / "etc").glob("*.fileids")):
        splits = _from_an4(path, listed, left_out)
        pronunciations = _read_dictionaries(sorted((path / "etc").glob("*.dic")))
    elif transcripts := sorted(path.rglob("*.trans.txt")):
        splits = _from_librispeech(path, transcripts, left_out)
    elif tables := sorted(file for suffix in ("csv", "tsv") for file in path.glob(f"*.{suffix}")):
        splits = _merged([_from_table(table, left_out, told=_split_of(table.stem)) for table in tables])
    else:
        raise SubquadError(f"the folder {path} holds no recordings with texts: give {LAYOUTS}")
    if not splits.get("train"):
        why = "; ".join(left_out.sentences(path)[:1]) or "it lists none"
        raise SubquadError(f"{path} has no recordings to learn from: {why}")
    return Recordings(splits, pronunciations, tuple(left_out.sentences(path)))


def _split_of(name: str) -> SplitName | None:
    words = re.findall("[a-z]+", name.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def _merged(parts: Sequence[dict[SplitName, list[Recording]]]) -> dict[SplitName, list[Recording]]:
    splits: dict[SplitName, list[Recording]] = {}
    for part in parts:
        for split, recordings in part.items():
            splits.setdefault(split, []).extend(recordings)
    return splits


def spoken(text: str) -> str:
    """What was said: in capitals, without marks of the transcript such as <s> and without double spaces."""
    return " ".join(re.sub(r"<[^<>]*>|\([^()]*\)", " ", text).upper().split())


def _from_an4(path: Path, listed: Sequence[Path], left_out: LeftOut) -> dict[SplitName, list[Recording]]:
    """Recordings of Sphinx's layout: etc/NAME_train.fileids and .transcription, and files below wav or feat."""
    splits: dict[SplitName, list[Recording]] = {}
    for file in listed:
        transcripts = file.with_suffix(".transcription")
        names, lines = read_text(file).split(), read_text(transcripts).strip().splitlines()
        if len(names) != len(lines):
            raise SubquadError(
                f"{file.name} has {len(names)} names, but {transcripts.name} has {len(lines)} lines: give each its text"
            )
        recordings = splits.setdefault(_split_of(file.stem) or "train", [])
        for name, line in zip(names, lines, strict=True):
            sound = _sound_below((path / "wav", path / "feat", path), name)
            _add(recordings, sound, line, name, left_out)
    return splits


def _sound_below(folders: Sequence[Path], name: str) -> Path | None:
    """The file of a sound whose name is given without its ending."""
    candidates = (folder / f"{name}{suffix}" for folder in folders for suffix in SUFFIXES)
    return next((file for file in candidates if file.is_file()), None)


def _add(recordings: list[Recording], sound: Path | None, text: str, name: str, left_out: LeftOut) -> None:
    """Adds a recording unless its file or its text is missing."""
    words = spoken(text)
    if sound is None:
        left_out.add("recording", "as its file is missing", name)
    elif not words:
        left_out.add("recording", "as its text is empty", name)
    else:
        recordings.append(Recording(sound, words))


def _read_dictionaries(files: Sequence[Path]) -> dict[str, str]:
    """The first pronunciation of each word: a line has the word, then its phones."""
    phones: dict[str, str] = {}
    for file in files:
        for line in read_text(file).splitlines():
            word, *rest = line.split() or [""]
            if rest and not word.endswith(")"):
                phones.setdefault(word.upper(), " ".join(rest))
    return phones


def _from_librispeech(path: Path, transcripts: Sequence[Path], left_out: LeftOut) -> dict[SplitName, list[Recording]]:
    """Recordings of folders SPLIT/READER/CHAPTER with a file of texts: a line has a name, then what was said."""
    splits: dict[SplitName, list[Recording]] = {}
    for file in transcripts:
        folders = file.relative_to(path).parts[:-1]
        told = next((split for folder in folders if (split := _split_of(folder)) is not None), _split_of(path.name))
        recordings = splits.setdefault(told or "train", [])
        for line in filter(str.strip, read_text(file).splitlines()):
            name, _, text = line.partition(" ")
            _add(recordings, _sound_below((file.parent,), name), text, name, left_out)
    if "train" not in splits:  # a single part of the data, such as dev-clean
        return {"train": [recording for split in sorted(splits) for recording in splits[split]]}
    return splits


def _from_table(path: Path, left_out: LeftOut, told: SplitName | None = None) -> dict[SplitName, list[Recording]]:
    """Recordings of a CSV, TSV or Parquet file; a column split tells their splits, if there is one."""
    splits: dict[SplitName, list[Recording]] = {}
    tally = Tally(path)

    def choose(names: list[str]) -> dict[str, str]:
        roles = {"file": find_column(path, names, "", FILE_COLUMNS, "the name file", "files")}
        roles["text"] = find_column(path, names, "", TEXT_COLUMNS, "the name text", "texts")
        return roles | ({"split": "split"} if "split" in names else {})

    for chunk in read_table(path, choose, tally, quoted=not path.name.endswith(".tsv")):
        files, texts = chunk.columns["file"], chunk.columns["text"]
        names = chunk.columns.get("split", [""] * len(files))
        for file, text, name in zip(files, texts, names, strict=True):
            sound = path.parent / file.strip()
            split = told or _split_of(name) or "train"
            _add(splits.setdefault(split, []), sound if sound.is_file() else None, text, file, left_out)
    for sentence in tally.sentences():
        left_out.add("row", "as it cannot be read", sentence)
    return splits


def files_to_recognise(path: Path) -> Iterator[Path]:
    """The files of sounds at a path, or below it."""
    if kind_of(path) != "folder":
        yield path
        return
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise SubquadError(f"the folder {path} has no sounds in it: there should be files such as *.wav")
    yield from files
