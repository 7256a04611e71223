"""Texts and pairs of texts as token ids, and batches of them with padding."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from subquad.data.ragged import keep_of, pad
from subquad.tasks.mlm.vocabulary import MASK, PAD, UNKNOWN, Vocabulary

SEPARATOR = MASK  # stands between the texts of a pair; a classifier has no other use for this token


class EncodedTexts(NamedTuple):
    """Texts with their token ids and class indices."""

    texts: list[str]
    tokens: list[Int[ndarray, "n"]]
    labels: Int[ndarray, "texts"]


class TextBatch(NamedTuple):
    """Token ids of texts, a mask that is false at padding, and class indices."""

    tokens: Int[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]
    label: Int[Tensor, "b"]


def encode(vocabulary: Vocabulary, texts: Sequence[str], seconds: Sequence[str], length: int) -> list[Int[ndarray, "n"]]:
    """The tokens of each text, or of each pair of texts with a separator between them, cut to the length."""
    encoded = vocabulary.encode(texts)
    if seconds:
        others = vocabulary.encode(seconds)
        return [join_pair(first, second, length) for first, second in zip(encoded, others, strict=True)]
    return [tokens[:length] if len(tokens) else np.array([UNKNOWN]) for tokens in encoded]


def join_pair(first: Int[ndarray, "n"], second: Int[ndarray, "m"], length: int) -> Int[ndarray, "joined"]:
    """Joins the tokens of two texts by a separator. To fit into `length` tokens, the longer text is cut first, then both."""
    room = length - 1
    second = second[: max(room // 2, room - len(first))]
    return np.concatenate([first[: room - len(second)], [SEPARATOR], second])


def pad_texts(split: EncodedTexts, places: Int[ndarray, "b"]) -> TextBatch:
    """Returns the texts at these places as a batch."""
    texts = [torch.from_numpy(split.tokens[at]) for at in places]
    return TextBatch(pad(texts, PAD), keep_of([len(text) for text in texts]), torch.from_numpy(split.labels[places]))
