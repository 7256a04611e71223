"""Labelled texts and pairs of texts, divided into training, development and test."""

from typing import NamedTuple

from subquad.data.datasets import Columns, load_dataset
from subquad.data.named import located
from subquad.data.splits import SplitName, shuffled
from subquad.data.texts import Documents, python_docstrings
from subquad.errors import SubquadError

LEAST = 10
"""Smallest number of labelled texts that can be split."""


class Labelled(NamedTuple):
    """Labelled texts of each split."""

    documents: Documents
    """The texts that those for training are taken from, before splits that are missing are taken out of them."""
    splits: dict[SplitName, Documents]
    complaints: tuple[str, ...]


def load_labelled(text: str, test_text: str, columns: Columns, seed: int) -> Labelled:
    """Reads labelled texts, by default Python's docstrings, and divides them.

    Splits that the names of files tell are used as they are. Without labelled texts for the test, those for development are
    the test, as is usual for GLUE. A split that is missing then is a tenth of the training texts.
    """
    told: dict[SplitName, Documents] = (
        load_dataset(located(text), columns, labelled=True) if text else {"train": python_docstrings()}
    )
    documents, source = told.pop("train"), text or "this Python"
    complaints = documents.complaints
    if test_text:
        told["test"], more = _load_test(test_text, documents, columns, source)
        complaints = (*complaints, *more)
    elif "test" not in told and "development" in told:
        told["test"] = told.pop("development")
        complaints = (*complaints, f"{source} has no labelled texts for the test: those for development are used for it")
    return Labelled(documents, _divide(documents, told, seed, source), complaints)


def _divide(documents: Documents, told: dict[SplitName, Documents], seed: int, source: str) -> dict[SplitName, Documents]:
    """Takes the splits that are missing out of the documents. The order in each depends on the names and the seed."""
    number = len(documents.texts)
    if number < LEAST:
        raise SubquadError(f"{source} has {number} labelled texts, too few to be split: give at least {LEAST}")
    order, tenth = shuffled(documents.names, seed), number // 10
    splits = {split: part.at(shuffled(part.names, seed).tolist()) for split, part in told.items()}
    for split in ("test", "development"):
        if split not in splits:
            splits[split] = documents.at(order[:tenth].tolist())
            order = order[tenth:]
    return {**splits, "train": documents.at(order.tolist())}


def _load_test(path: str, documents: Documents, columns: Columns, source: str) -> tuple[Documents, tuple[str, ...]]:
    """Reads the texts for the test, without copies of the other texts, and sentences about what was left out."""
    tested = load_dataset(located(path), columns, labelled=True)
    texts = tested.get("test", tested["train"])
    known = set(_pairs(documents))
    new = [at for at, pair in enumerate(_pairs(texts)) if pair not in known]
    if not new:
        raise SubquadError(f"all texts in {path} are in {source} too: give others")
    lost = len(texts.texts) - len(new)
    complaint = (f"{lost:,} texts for the test are left out, which are in {source} too",) if lost else ()
    return texts.at(new), (*tested["train"].complaints, *complaint)


def _pairs(documents: Documents) -> list[tuple[str, str]]:
    return list(zip(documents.texts, documents.seconds or [""] * len(documents.texts), strict=True))
