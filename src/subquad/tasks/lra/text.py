"""Texts byte by byte, such as IMDB's reviews (Maas et al. 2011)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from subquad.checking import Count, FileName, Seed, Words, excerpt
from subquad.data.datasets import Columns, load_rows
from subquad.data.splits import SplitName
from subquad.data.texts import Documents
from subquad.errors import SubquadError
from subquad.tasks.classify.labelled import Labelled, load_labelled
from subquad.tasks.lra.base import ArenaOptions, Unlabelled
from subquad.tasks.lra.sources import Example, Loaded, Source, stored

BYTES = 256
SHOWN = 200
"""Largest number of characters of a text that a sample shows."""


@dataclass(frozen=True)
class ByteOptions(ArenaOptions):
    """Options of tasks on texts that are read byte by byte."""

    text_column: Words = ""  # column that holds the text, or the first of a pair; default: a usual name
    label_column: Words = ""  # column that holds the label; default: label, or another usual name
    length: Count = 1024  # number of bytes of each text that are read, from its beginning; up to 4000 in the paper
    split_seed: Seed = 0  # seed for dividing texts into training, development and test

    @property
    def vocabulary(self) -> int:
        return BYTES

    @property
    def longest(self) -> int:
        return self.length


@dataclass(frozen=True)
class Text(ByteOptions):
    """Long Range Arena: classify texts that are read byte by byte. Your own, IMDB's, or Python's docstrings by package."""

    test_data: FileName = ""  # labelled texts for the test, in the same format; default: the data's own, or a tenth
    kind: str = field(default="lra-text", init=False)

    def load(self) -> Loaded:
        """Reads labelled texts, and takes a tenth of the training texts for each split that is missing."""
        columns = Columns(self.text_column, "", self.label_column)
        labelled = load_labelled(self.data, self.test_data, columns, self.split_seed)
        if labelled.documents.seconds:
            raise SubquadError(
                f"{self.data} holds pairs of texts: train lra-retrieval on them, or name one by --text-column"
            )
        return Loaded(*encoded_splits(labelled, self.length), self.length, labelled.complaints)

    def parse(self, words: Sequence[str], longest: int) -> Example:
        return Example(text_bytes(" ".join(words), longest), 0)

    def spell(self, example: Example) -> str:
        return bytes(example.tokens.astype(np.uint8)).decode(errors="replace")[:SHOWN]

    def read_unlabelled(self, path: Path, longest: int) -> Unlabelled:
        documents = load_rows(path, Columns(self.text_column), paired=False)
        examples = [Example(text_bytes(text, longest), 0) for text in documents.texts]
        return Unlabelled(documents.names, examples, documents.complaints)


def text_bytes(text: str, length: int) -> UInt8[ndarray, "n"]:
    """The first bytes of a text; a space for an empty one."""
    return np.frombuffer(text.encode(errors="replace")[:length] or b" ", np.uint8)


def encoded_splits(labelled: Labelled, length: int) -> tuple[dict[SplitName, Source], list[str]]:
    """The bytes of the texts, or of pairs of texts, of each split, and the names of the classes in training."""
    names = sorted(set(labelled.splits["train"].labels))
    return {split: _encoded(documents, names, length) for split, documents in labelled.splits.items()}, names


def _encoded(documents: Documents, names: Sequence[str], length: int) -> Source:
    numbers = {name: number for number, name in enumerate(names)}
    if unknown := sorted(set(documents.labels) - set(numbers)):
        raise SubquadError(
            f"a held-out text has the label {excerpt(unknown[0])}, which no text to learn from has: give more"
        )
    texts, seconds = ([text_bytes(text, length) for text in column] for column in (documents.texts, documents.seconds))
    return stored(texts, [numbers[label] for label in documents.labels], seconds)
