"""Text data sets as they are shipped: splits told by the names of files or folders, labels by folders or columns."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import NamedTuple

from subquad.data.splits import SplitName
from subquad.data.tables import STORED, Tally, find_column, read_table
from subquad.data.texts import Collected, Documents, LeftOut, files_at, json_object, text_of, whole_characters
from subquad.errors import SubquadError

PLAIN = (".txt", ".md", ".tokens", ".raw")
LINES = (".jsonl", ".jsonl.gz")
TABLES = (".csv", ".tsv", *STORED)
SUFFIXES = (*PLAIN, *LINES, *TABLES)

SPLIT_WORDS: Mapping[str, SplitName] = {
    "train": "train",
    "training": "train",
    "valid": "development",
    "validation": "development",
    "val": "development",
    "dev": "development",
    "development": "development",
    "test": "test",
}
"""Words in names of files and folders, as in wiki.train.tokens and validation-00000-of-00001.parquet, and their splits."""
SPLIT_USES: Mapping[SplitName, str] = {"train": "training", "development": "development", "test": "the test"}
"""What the texts of each split are for, in sentences."""
TEXTS = ("text", "sentence", "content", "review", "document")
"""Names of columns of texts, the first one that a table has is taken."""
PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
    ("text_a", "text_b"),
)
"""Names of two columns of texts that belong together, as in GLUE."""
LABELS = ("label", "labels", "is_duplicate", "gold_label", "sentiment", "class")
"""Names of columns of labels, the first one that a table has is taken."""
NO_LABELS = ("", "-1")
"""Labels of all rows of a held-out split without labels. Data sets of Hugging Face have -1 where they are secret."""
NO_LABEL_FOLDERS = ("unsup",)
"""Folders of texts without a label, as in IMDB."""


class Wanted(NamedTuple):
    """What is read beside texts."""

    labels: bool = False
    pairs: bool = False
    """Whether the usual columns of pairs are looked for."""
    rows: bool = False
    """Whether each row of a file is a text, even if most rows are lines of one text."""


class Columns(NamedTuple):
    """Names of columns that hold texts, the second texts of pairs, and labels. An empty name stands for the usual ones."""

    text: str = ""
    second: str = ""
    label: str = ""

    def roles(self, names: Set[str], wanted: Wanted) -> dict[str, str]:
        """The columns to read by role, out of text, second and label."""
        looks_for_pairs = wanted.pairs and "text" not in names
        pair = next((pair for pair in PAIRS if looks_for_pairs and names >= set(pair)), ("", ""))
        text, second = (self.text, self.second) if self.text or self.second else pair
        known = {
            "text": (text,) if text else TEXTS,
            "second": (second,) if second else (),
            "label": ((self.label,) if self.label else LABELS) * wanted.labels,
        }
        usual = {role: next((name for name in choices if name in names), None) for role, choices in known.items()}
        return {role: name for role, name in usual.items() if name is not None}


class Record(NamedTuple):
    """A text, the second text of a pair, the label, and where they were read. What there is not is empty."""

    where: str
    text: str
    second: str = ""
    label: str = ""


Files = Sequence[tuple[Path, str]]
"""Files with their names relative to the folder of a data set."""


def load_dataset(path: Path, columns: Columns | None = None, *, labelled: bool = False) -> dict[SplitName, Documents]:
    """Reads the texts at a path by split. Without names that tell the splits, all texts are in the split "train".

    Texts come from plain files, JSON lines, CSV, TSV without quotation marks, or Parquet. Their labels come from a column
    or, for plain files, from the folder that the file is in. Copies of texts are left out where the splits are not told,
    because they could end up in two of them.
    """
    files = list(files_at(path, SUFFIXES))
    told = told_splits([name for _, name in files])
    reader = _Reader(path, columns or Columns(), Wanted(labelled, labelled, labelled))
    if not told:
        return reader.finish({"train": reader.read(_without_side_tables(files), copies=False)})
    splits = {split: [(file, name) for file, name in files if told.get(name) == split] for split in set(told.values())}
    for _, name in files:
        if name not in told:
            reader.left_out.add("file", "as its name tells no split", name)
    return reader.finish({split: reader.read(of_split, copies=True) for split, of_split in sorted(splits.items())})


def load_rows(path: Path, columns: Columns, *, paired: bool) -> Documents:
    """Reads all texts at a path, or all pairs of texts, one for each row, to be labelled by a model."""
    reader = _Reader(path, columns, Wanted(pairs=paired, rows=True))
    return reader.finish({"train": reader.read(list(files_at(path, SUFFIXES)), copies=True)})["train"]


def told_splits(names: Sequence[str], suffixes: Sequence[str] = SUFFIXES) -> dict[str, SplitName]:
    """Maps names of files to splits, if they tell one for training and another one; empty otherwise.

    A split stands at the beginning or at the end of the name of the file, which has one of these suffixes, or of a folder
    that it is in.
    """
    told = {name: split for name in names if (split := _told_split(name, suffixes)) is not None}
    return told if "train" in told.values() and len(set(told.values())) > 1 else {}


def _told_split(name: str, suffixes: Sequence[str] = SUFFIXES) -> SplitName | None:
    stem = next((name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix)), name)
    for part in PurePath(stem).parts:
        words = re.findall("[a-z]+", re.sub(r"\d+-of-\d+$", "", part.lower()))
        for word in (*words[:1], *words[-1:]):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word]
    return None


def _without_side_tables(files: Files) -> Files:
    """All files or, if there are texts among them that are not in tables, these only: tables beside texts are about them."""
    return [pair for pair in files if not pair[1].endswith(TABLES)] or files


class _Reader:
    """Reads the files of a data set, and counts what is left out."""

    def __init__(self, path: Path, columns: Columns, wanted: Wanted) -> None:
        self.path, self.columns, self.wanted = path, columns, wanted
        self.left_out = LeftOut()
        self.sentences: list[str] = []
        self.without_labels: list[tuple[Path, list[str]]] = []
        """Tables without a column of labels, and the columns that they have."""

    def read(self, files: Files, *, copies: bool) -> Documents:
        """Reads the files of one split. `copies` says whether a text may occur more than once."""
        collected = Collected(copies=copies)
        for file, name in files:
            for record in self._records(file, name):
                collected.add(*record, left_out=self.left_out)
        documents = collected.documents()
        return documents if self.wanted.labels else documents._replace(labels=[])

    def finish(self, splits: dict[SplitName, Documents]) -> dict[SplitName, Documents]:
        """Leaves out texts without a label if labels are needed, and adds the sentences to the split "train"."""
        for split in list(splits) if self.wanted.labels else ():
            if split != "train" and set(NO_LABELS).issuperset(splits[split].labels):
                self.sentences.append(f"{self.path.name}: the texts for {SPLIT_USES[split]} are left out, without a label")
                del splits[split]
            else:
                if split == "train":
                    self._require_label_column(splits[split])
                splits[split] = self._with_labels(splits[split])
        sentences = (*self.left_out.sentences(self.path), *self.sentences)
        if not splits["train"].texts:
            why = sentences[0] if sentences else "its files are empty"
            raise SubquadError(f"{self.path} holds no text that can be used: {why}")
        return {**splits, "train": splits["train"]._replace(complaints=sentences)}

    def _require_label_column(self, documents: Documents) -> None:
        """Raises `SubquadError` if no text for training has a label, and a table has no column of labels."""
        if self.without_labels and not any(documents.labels):
            file, names = self.without_labels[0]
            find_column(file, names, self.columns.label, LABELS, "--label-column", "labels")

    def _with_labels(self, documents: Documents) -> Documents:
        for name, label in zip(documents.names, documents.labels, strict=True):
            if not label:
                self.left_out.add("text", "without a label", name)
        return documents.at([at for at, label in enumerate(documents.labels) if label])

    def _records(self, file: Path, name: str) -> Sequence[Record]:
        if name.endswith(TABLES):
            return self._joined(name, list(self._table(file, name)))
        text = text_of(file, self.left_out, alone=file == self.path, name=name)
        if text is None:
            return []
        if name.endswith(LINES):
            return self._joined(name, list(self._lines(text, name)))
        return [Record(name, text, label=_folder_label(name))]

    def _joined(self, name: str, rows: list[Record]) -> list[Record]:
        """The rows of a file, or a single one if most of them are lines of one text, as those of WikiText are."""
        ended = sum(row.text.endswith("\n") for row in rows)
        if self.wanted.rows or 2 * ended <= sum(bool(row.text) for row in rows):
            return rows
        return [Record(name, "".join(row.text if row.text.endswith("\n") else f"{row.text}\n" for row in rows))]

    def _table(self, file: Path, name: str) -> Iterator[Record]:
        def choose(names: list[str]) -> dict[str, str]:
            roles = self.columns.roles(set(names), self.wanted)
            for role, option in (("text", "--text-column"), ("second", "--pair-column")):
                wanted = getattr(self.columns, role)
                if role not in roles and (wanted or role == "text"):
                    find_column(file, names, wanted, TEXTS, option, "text")
            if self.wanted.labels and "label" not in roles:
                self.without_labels.append((file, names))
            return roles

        tally = Tally(file, "row" if name.endswith(STORED) else "line")
        for chunk in read_table(file, choose, tally, quoted=not name.endswith(".tsv")):
            texts = chunk.columns["text"]
            seconds, labels = (chunk.columns.get(role, [""] * len(texts)) for role in ("second", "label"))
            for line, text, second, label in zip(chunk.lines, texts, seconds, labels, strict=True):
                yield Record(f"{name}:{line}", text, second, label.strip())
        self.sentences += tally.sentences()

    def _lines(self, text: str, name: str) -> Iterator[Record]:
        for number, line in enumerate(text.split("\n"), start=1):
            where, row = f"{name}:{number}", json_object(line)
            if not line.strip():
                continue
            if row is None:
                self.left_out.add("line", "no JSON object", where)
                continue
            roles = self.columns.roles(row.keys(), self.wanted)
            cells = {role: row[column] for role, column in roles.items()}
            needed = {"text": self.columns.text or TEXTS[0], "second": self.columns.second or roles.get("second", "")}
            missing = [name for role, name in needed.items() if name and not isinstance(cells.get(role), str)]
            if missing:
                self.left_out.add("line", f'without a "{missing[0]}" in words', where)
            else:
                first, second = (whole_characters(cell) for cell in (cells["text"], cells.get("second", "")))
                yield Record(where, first, second, _label(cells.get("label")))


def _label(value: object) -> str:
    """A label as text; empty if it is neither a word nor a whole number."""
    return str(value) if isinstance(value, str | int) else ""


def _folder_label(name: str) -> str:
    """The folder that a file is in, unless it is the folder of a split or of texts without labels."""
    folder = PurePath(name).parent.name
    return "" if folder in NO_LABEL_FOLDERS or _told_split(folder) else folder
