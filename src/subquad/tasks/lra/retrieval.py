"""Do two documents belong together? Pairs of papers of which one cites the other, or pairs of any labelled file."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from subquad.checking import Count, Words, excerpt
from subquad.data.datasets import Columns, load_rows
from subquad.data.splits import SplitName, shuffled
from subquad.data.texts import python_docstrings
from subquad.errors import SubquadError
from subquad.files import cannot_read, open_plain
from subquad.tasks.classify.labelled import load_labelled
from subquad.tasks.lra.base import Unlabelled
from subquad.tasks.lra.files import split_files
from subquad.tasks.lra.sources import Example, Loaded, Source, stored
from subquad.tasks.lra.text import ByteOptions, encoded_splits, text_bytes

CITATION_COLUMNS = 5
"""Number of columns of the released files, which have no heading: label, two names, two texts."""
CITED = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
"""Labels of the released files."""
RELATED = ["unrelated", "related"]
SHOWN = 80
"""Largest number of characters of each text that a sample shows."""


@dataclass(frozen=True)
class Retrieval(ByteOptions):
    """Long Range Arena: tell whether two texts, read byte by byte, belong together. Your pairs, or Python's docstrings."""

    pair_column: Words = ""  # column that holds the second text; default: that of a usual pair
    examples: Count = 20_000  # number of training pairs of docstrings, if --data is not given
    kind: str = field(default="lra-retrieval", init=False)

    paired: ClassVar[bool] = True

    def load(self) -> Loaded:
        """Reads the released citation pairs, or labelled pairs of any kind, or pairs docstrings of Python's library."""
        if not self.data:
            return Loaded(self._docstrings(), RELATED, self.length)
        if is_citation_data(Path(self.data)):
            files = split_files(self.data, (".tsv",))
            return Loaded({split: read_citations(path, self.length) for split, path in files.items()}, RELATED, self.length)
        labelled = load_labelled(
            self.data, "", Columns(self.text_column, self.pair_column, self.label_column), self.split_seed
        )
        if not labelled.documents.seconds:
            raise SubquadError(
                f"{self.data} holds no pairs of texts: name their columns by --text-column and --pair-column, or "
                "train lra-text"
            )
        return Loaded(*encoded_splits(labelled, self.length), self.length, labelled.complaints)

    def _docstrings(self) -> dict[SplitName, Source]:
        """Pairs of docstrings of one module of Python's library, or of two. No docstring is in two splits."""
        documents = python_docstrings()
        order, tenth = shuffled(documents.names, self.split_seed), len(documents.names) // 10
        parts: dict[SplitName, Sequence[int]] = {
            "test": order[:tenth].tolist(),
            "development": order[tenth : 2 * tenth].tolist(),
            "train": order[2 * tenth :].tolist(),
        }
        counts = {"train": self.examples, "development": self.held_out, "test": self.tested or 2000}
        modules = [name.rpartition(":")[0] for name in documents.names]
        texts = [text_bytes(text, self.length) for text in documents.texts]
        return {
            split: docstring_pairs(texts, modules, places, counts[split], f"{self.split_seed} {split}")
            for split, places in parts.items()
        }

    def split_words(self, line: str) -> list[str]:
        return line.split("\t")

    def parse(self, words: Sequence[str], longest: int) -> Example:
        if len(words) != 2:
            raise SubquadError(
                f"the model compares two texts, but there are {len(words)}: give two, each in quotation marks, or a line "
                "with a tab between them"
            )
        return Example(text_bytes(words[0], longest), 0, text_bytes(words[1], longest))

    def spell(self, example: Example) -> str:
        assert example.second is not None
        parts = (bytes(tokens.astype(np.uint8)).decode(errors="replace") for tokens in (example.tokens, example.second))
        return " | ".join(part[:SHOWN] for part in parts)

    def read_unlabelled(self, path: Path, longest: int) -> Unlabelled:
        """Reads a table of pairs, or released citation pairs, of a folder all three files."""
        if is_citation_data(path):
            files = [path] if path.is_file() else list(split_files(str(path), (".tsv",)).values())
            by_file = {file.name: read_citations(file, longest) for file in files}
            names = [f"{name}:{line + 1}" for name, source in by_file.items() for line in range(source.count)]
            return Unlabelled(names, [pair for source in by_file.values() for pair in source.first(source.count)])
        documents = load_rows(path, Columns(self.text_column, self.pair_column), paired=True)
        if not documents.seconds:
            raise SubquadError(
                f"{path} has single texts, but the model compares pairs: give a table with two columns of texts"
            )
        pairs = zip(documents.texts, documents.seconds, strict=True)
        examples = [Example(text_bytes(first, longest), 0, text_bytes(second, longest)) for first, second in pairs]
        return Unlabelled(documents.names, examples, documents.complaints)


def docstring_pairs(
    texts: Sequence[np.ndarray], modules: Sequence[str], places: Sequence[int], count: int, seed: str
) -> Source:
    """Draws pairs of the texts at these places: half of them of one module, the others of two modules."""
    by_module: dict[str, list[int]] = {}
    for place in places:
        by_module.setdefault(modules[place], []).append(place)
    several = [place for place in places if len(by_module[modules[place]]) > 1]
    if not several or len(by_module) < 2:
        raise SubquadError("this Python's library has too few docstrings for pairs of them: give --data")

    def make(number: int) -> Example:
        drawing = random.Random(f"{seed} {number}")
        label, first = drawing.randrange(2), drawing.choice(several)
        second = first
        while second == first or (modules[second] == modules[first]) != bool(label):
            second = drawing.choice(by_module[modules[first]] if label else places)
        return Example(texts[first], label, texts[second])

    return Source(count, make)


def is_citation_data(path: Path) -> bool:
    """Whether the file, or a file of training pairs in the folder, has the columns of the released pairs."""
    files = [path] if path.is_file() else sorted(path.glob("*train.tsv"))
    if not files or files[0].suffix != ".tsv":
        return False
    with open_plain(files[0]) as file:
        cells = file.readline().split(b"\t")
    return len(cells) == CITATION_COLUMNS and cells[0].decode(errors="replace").strip() in CITED


def read_citations(path: Path, length: int) -> Source:
    """Reads a released file: label, names of two papers, and their texts, in each line, without quotation marks."""
    labels: list[int] = []
    firsts: list[np.ndarray] = []
    seconds: list[np.ndarray] = []
    try:
        with open_plain(path) as file:
            for number, line in enumerate(file, start=1):
                cells = line.rstrip(b"\r\n").split(b"\t")
                where = f"{path.name}:{number}"
                if len(cells) != CITATION_COLUMNS:
                    raise SubquadError(
                        f"{where} has {len(cells)} columns instead of {CITATION_COLUMNS}: mend or fetch the file"
                    )
                label = cells[0].decode(errors="replace").strip()
                if label not in CITED:
                    raise SubquadError(f"{where}: the label must be 0 or 1, but is {excerpt(label)}")
                labels.append(CITED[label])
                for column, cell in zip((firsts, seconds), cells[3:], strict=True):
                    column.append(np.frombuffer(cell[:length] or b" ", np.uint8))
    except OSError as error:
        raise cannot_read(path, error) from None
    if not labels:
        raise SubquadError(f"{path} is empty: it should have a line for each pair")
    return stored(firsts, labels, seconds)
