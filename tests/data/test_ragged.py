"""Sequences of different lengths."""

import numpy as np
import torch

from subquad.data.ragged import first_places, keep_of, offsets_of, pad, places_of, slices
from subquad.data.splits import shuffled


def test_offsets_and_first_places_with_an_empty_sequence() -> None:
    offsets = offsets_of([2, 0, 3])
    assert offsets.tolist() == [0, 2, 2, 5]
    assert first_places(offsets).tolist() == [True, False, True, False, False]


def test_places_of_some_stretches() -> None:
    assert places_of(np.array([5, 0]), np.array([2, 3])).tolist() == [5, 6, 0, 1, 2]


def test_padding_is_behind_and_told_apart() -> None:
    flat, offsets = torch.arange(1.0, 11.0).view(5, 2), offsets_of([2, 0, 3])
    some = slices(flat, offsets, np.array([2, 0]))
    padded = pad(some, value=-1)
    assert padded.tolist() == [[[5, 6], [7, 8], [9, 10]], [[1, 2], [3, 4], [-1, -1]]]
    keep = keep_of([len(values) for values in some])
    assert keep.tolist() == [[True, True, True], [True, True, False]]
    assert torch.equal(padded[keep], torch.cat(some))


def test_an_order_depends_on_names_and_seed_only() -> None:
    names = [f"n{number}" for number in range(20)]
    turned = names[::-1]
    assert [names[at] for at in shuffled(names, 3)] == [turned[at] for at in shuffled(turned, 3)]
    assert shuffled(names, 3).tolist() != shuffled(names, 4).tolist()
