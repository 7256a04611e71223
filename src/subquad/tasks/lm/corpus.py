"""Texts for training, development and the test as streams of tokens, and the windows that cover a stream."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from subquad.data.datasets import Columns, load_dataset
from subquad.data.named import located
from subquad.data.splits import SplitName
from subquad.data.texts import Documents, python_topics
from subquad.tasks.lm.vocabulary import BEGIN, Lossless
from subquad.tasks.mlm.corpus import TextSplits, cut_sentences, split_texts

HeldOutName = Literal["development", "test"]
HELD_OUT: tuple[HeldOutName, ...] = ("development", "test")


SPLITS: tuple[SplitName, ...] = ("train", *HELD_OUT)


class Texts(NamedTuple):
    """The texts of each split, and what a run needs to recognise them."""

    splits: TextSplits
    documents: int
    characters: int
    complaints: tuple[str, ...]


def load_splits(path: str, columns: Columns, seed: int) -> Texts:
    """Reads texts, by default Python's help. Splits that the data lack are taken out of the training texts."""
    told: dict[SplitName, Documents] = load_dataset(located(path), columns) if path else {"train": python_topics()}
    told = {split: part for split, part in told.items() if split == "train" or part.texts}  # an empty file is no split
    train = told["train"]
    splits, complaints = TextSplits(*(told[split].texts if split in told else [] for split in SPLITS)), train.complaints
    if any(split not in told for split in HELD_OUT):
        cut = split_texts(train, seed)
        rest = [text for split in HELD_OUT if split in told for text in getattr(cut, split)]
        held_out = {split: getattr(cut, split) for split in HELD_OUT if split not in told}
        splits = splits._replace(train=[*cut.train, *rest], **held_out)
        complaints = (*complaints, *cut_sentences(len(train.texts), list(held_out)))
    documents, characters = (sum(len(part.texts) for part in told.values()), sum(part.characters for part in told.values()))
    return Texts(splits, documents, characters, complaints)


class Stream:
    """The tokens of texts one after the other, each text after the token that begins texts."""

    def __init__(self, vocabulary: Lossless, texts: Sequence[str]) -> None:
        encoded = [tokens for tokens in vocabulary.encode(texts) if len(tokens)]
        parts = [part for tokens in encoded for part in ([BEGIN], tokens)]
        self.tokens = np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)

    def draw(self, size: int, length: int, generator: torch.Generator) -> Int[Tensor, "b positions"]:
        """Draws windows of `length` tokens and the one after them, or of the whole stream if it is shorter."""
        last = max(0, len(self.tokens) - length - 1)
        begin = torch.randint(last + 1, (size,), generator=generator).tolist()
        windows = [self.tokens[first : first + length + 1].astype(np.int64) for first in begin]
        return torch.from_numpy(np.stack(windows))


class Cover(NamedTuple):
    """Windows of a stream, of which each predicts only tokens that no window before it predicts."""

    begin: Int[ndarray, "windows"]
    """Where each window begins."""
    length: int
    """Number of tokens that each window reads."""
    counted: Int[ndarray, "windows"]
    """Number of tokens that each window predicts: the last ones, and all of the first window."""

    def groups(self, most: int) -> Iterator[tuple[slice, int]]:
        """Yields windows that predict equally many tokens, at most `most` windows at a time, and that number."""
        ends = [*(np.flatnonzero(np.diff(self.counted)) + 1), len(self.begin)]
        first = 0
        for end in ends:
            for start in range(first, end, most):
                yield slice(start, min(end, start + most)), int(self.counted[start])
            first = end


def cover(tokens: int, length: int, context: int) -> Cover:
    """Covers a stream, so that each token but the first is predicted once, from at least `context` tokens before it.

    Only tokens at the beginning of the stream have fewer tokens before them.
    """
    length = min(length, tokens - 1)
    stride = max(1, length - context)
    begin = np.append(np.arange(0, tokens - 1 - length, stride), tokens - 1 - length)
    ends = begin + length
    return Cover(begin, length, np.diff(ends, prepend=0))
