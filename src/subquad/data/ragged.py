"""Sequences of different lengths: concatenated in flat arrays, or padded to a common length.

The values of sequence s are those from ``offsets[s]`` up to ``offsets[s + 1]``, so there is one offset more than sequences.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from numpy import ndarray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def offsets_of(lengths: Int[ndarray, "sequences"] | Sequence[int]) -> Int[ndarray, "edges"]:
    """The index at which each sequence begins in a flat array, and the index at which the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def first_places(offsets: Int[ndarray, "edges"]) -> Bool[ndarray, "values"]:
    """Marks the values that are the first of their sequence."""
    is_first = np.zeros(offsets[-1], bool)
    is_first[offsets[:-1][np.diff(offsets) > 0]] = True
    return is_first


def places_of(starts: Int[ndarray, "some"], lengths: Int[ndarray, "some"]) -> Int[ndarray, "values"]:
    """The indices of stretches of a flat array, one stretch after the other."""
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def pad(sequences: Sequence[Shaped[Tensor, "..."]], value: float = 0) -> Shaped[Tensor, "b n ..."]:
    """Stacks sequences into one tensor, padded with `value` to the length of the longest."""
    return pad_sequence(list(sequences), batch_first=True, padding_value=value)


def keep_of(lengths: Sequence[int] | Int[ndarray, "b"]) -> Bool[Tensor, "b n"]:
    """The mask of padded sequences: true where a position is real."""
    ends = torch.as_tensor(lengths)
    return torch.arange(int(ends.max())) < ends[:, None]


def slices(
    values: Shaped[Tensor, "..."], offsets: Int[ndarray, "edges"], chosen: Int[ndarray, "b"]
) -> list[Shaped[Tensor, "..."]]:
    """The values of the chosen sequences, as views of the flat tensor."""
    return [values[offsets[at] : offsets[at + 1]] for at in chosen]


def needed_mask(keep: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n"] | None:
    """Returns the mask, or None if nothing is masked, because attention without a mask is faster."""
    return None if bool(keep.all()) else keep
