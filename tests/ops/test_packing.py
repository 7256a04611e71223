"""Real positions in front, and back to where they stood."""

import torch
from torch.testing import assert_close

from subquad.ops.packing import pack, unpack


def test_what_is_packed_comes_back_with_zeros_for_padding() -> None:
    x = torch.arange(1.0, 11.0).view(2, 1, 5, 1)
    keep = torch.tensor([[True, False, True, True, False], [False, False, False, False, False]])
    packed = pack(x, x, x, keep)
    assert packed.q.flatten().tolist() == [1, 3, 4, 0, 0, 0, 0, 0, 0, 0]
    assert unpack(packed, packed.q).flatten().tolist() == [1, 0, 3, 4, 0, 0, 0, 0, 0, 0]


def test_padding_is_zero_beside_results_that_overflow() -> None:
    x = torch.ones(1, 1, 3, 1)
    packed = pack(x, x, x, torch.tensor([[True, False, True]]))
    assert_close(unpack(packed, torch.full_like(x, torch.inf)).flatten(), torch.tensor([torch.inf, 0.0, torch.inf]))
