"""Dividing texts into three disjoint splits, and cutting their tokens into windows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from subquad.data.ragged import keep_of, offsets_of, pad
from subquad.data.splits import shuffled
from subquad.data.texts import Documents
from subquad.errors import SubquadError
from subquad.tasks.mlm.vocabulary import PAD, Vocabulary

FEW = 10
"""With fewer documents than this, each document is cut into the three splits. Otherwise documents stay whole."""
HELD_OUT = 0.1  # share of all characters for development, and for the test


class TextSplits(NamedTuple):
    """Texts for training, for evaluation during training, and for the test."""

    train: list[str]
    development: list[str]
    test: list[str]


def split_texts(documents: Documents, seed: int) -> TextSplits:
    """Splits by document, in an order that depends on names and seed. Fewer than `FEW` documents are each cut in three."""
    if len(documents.texts) < FEW:
        cut = [_cut(name, text) for name, text in zip(documents.names, documents.texts, strict=True)]
        return TextSplits(*(list(part) for part in zip(*cut, strict=True)))
    order = shuffled(documents.names, seed)
    sizes = np.array([len(text) for text in documents.texts])
    test, rest = _take(order, sizes)
    development, train = _take(rest, sizes)
    return TextSplits(*([documents.texts[at] for at in part] for part in (train, development, test)))


def cut_sentences(documents: int, held_out: Sequence[str] = ("development", "test")) -> tuple[str, ...]:
    """A sentence for the user if there are so few documents that each is cut into training and these splits."""
    if documents >= FEW:
        return ()
    subject = (
        "there is 1 document, which is" if documents == 1 else f"there are {documents} documents only, each of which is"
    )
    parts = " and ".join(f"10% for {'the test' if split == 'test' else split}" for split in held_out)
    return (f"{subject} cut: {100 - 10 * len(held_out)}% to learn from, then {parts}",)


def _take(order: Int[ndarray, "documents"], sizes: ndarray) -> tuple[Int[ndarray, "taken"], Int[ndarray, "left"]]:
    """Takes at most a tenth of the documents and of the characters, but at least one document. Returns taken and rest."""
    characters_left, most, taken = HELD_OUT * sizes.sum(), int(HELD_OUT * len(sizes)), np.zeros(len(order), bool)
    for place, at in enumerate(order):
        if sizes[at] <= characters_left and taken.sum() < most:
            taken[place] = True
            characters_left -= sizes[at]
    if not taken.any():
        taken[np.argmin(sizes[order])] = True
    return order[taken], order[~taken]


def _cut(name: str, text: str) -> tuple[str, str, str]:
    """Cuts a text into 80% for training, 10% for development and 10% for the test, between words."""
    first, second = (_between_words(text, int(len(text) * share)) for share in (1 - 2 * HELD_OUT, 1 - HELD_OUT))
    parts = text[:first], text[first:second], text[second:]
    if not all(part.strip() for part in parts):
        raise SubquadError(f"{name} is too short to be cut into three splits: give more text, or {FEW} documents or more")
    return parts


def _between_words(text: str, at: int) -> int:
    while at < len(text) and not text[at].isspace():
        at += 1
    return at


class Windows(NamedTuple):
    """Windows of tokens, padded at their ends, with masks of word starts and of real tokens."""

    tokens: Int[Tensor, "b n"]
    starts: Bool[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]


class Tokens:
    """The tokens of a split, concatenated document by document."""

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[str]) -> None:
        encoded = [tokens for tokens in vocabulary.encode(texts) if len(tokens)]
        self.vocabulary = vocabulary
        self.all = np.concatenate(encoded).astype(np.int32) if encoded else np.zeros(0, np.int32)
        self.offsets = offsets_of([len(tokens) for tokens in encoded])

    def draw(self, size: int, length: int, generator: torch.Generator) -> Windows:
        """Draws windows at random: documents in proportion to their tokens, and positions in a document uniformly."""
        places = torch.randint(len(self.all), (size,), generator=generator).numpy()
        documents = np.searchsorted(self.offsets, places, side="right") - 1
        start_count = (self.offsets[documents + 1] - self.offsets[documents] - length).clip(min=0) + 1
        shifts = torch.rand(size, generator=generator).double().numpy() * start_count
        begin = self.offsets[documents] + shifts.astype(np.int64)
        return self.windows(begin, np.minimum(begin + length, self.offsets[documents + 1]))

    def tiles(self, length: int) -> tuple[Int[ndarray, "stretches"], Int[ndarray, "stretches"], Int[ndarray, "stretches"]]:
        """Windows that cover every document once: the start and end of each window, and its document."""
        lengths = np.diff(self.offsets)
        counts = -(-lengths // length)
        documents = np.repeat(np.arange(len(lengths)), counts)
        number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
        begin = self.offsets[documents] + number * length
        return begin, np.minimum(begin + length, self.offsets[documents + 1]), documents

    def windows(self, begin: Int[ndarray, "b"], end: Int[ndarray, "b"]) -> Windows:
        """The tokens from each start to its end, padded."""
        if not len(begin):
            return Windows(*(torch.zeros(0, 1, dtype=kind) for kind in (torch.long, torch.bool, torch.bool)))
        stretches = [self.all[first:last].astype(np.int64) for first, last in zip(begin, end, strict=True)]
        tokens = pad([torch.from_numpy(stretch) for stretch in stretches], PAD)
        starts = pad([torch.from_numpy(self.vocabulary.starts(stretch)) for stretch in stretches], value=True)
        return Windows(tokens, starts, keep_of(end - begin))
