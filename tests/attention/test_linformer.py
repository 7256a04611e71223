"""What is Linformer's own: sharing, slots, lengths."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from subquad import Linformer, Softmax, SubquadError
from tests.attention.cases import HEAD_DIM, HEADS, build, equation, inputs

SHARED = [("none", 2, HEADS), ("heads", 2, 1), ("keys-values", 1, 1), ("layerwise", 1, 1)]


@pytest.mark.parametrize(("sharing", "sets", "groups"), SHARED)
def test_sharing_decides_how_many_weights_there_are(sharing: Any, sets: int, groups: int) -> None:
    attend = Linformer(k=5, max_length=20, sharing=sharing).build(heads=HEADS, head_dim=HEAD_DIM)
    assert [tuple(weight.shape) for weight in attend.parameters()] == [(groups, 5, 20)] * sets


def test_layers_can_hold_one_projection() -> None:
    options = Linformer(k=5, max_length=20)
    shared = options.build_projection(heads=HEADS, head_dim=HEAD_DIM)
    layers = nn.ModuleList(options.build(heads=HEADS, head_dim=HEAD_DIM, projection=shared) for _ in range(4))
    assert sum(weight.numel() for weight in layers.parameters()) == 5 * 20


def test_each_layer_can_have_a_k_of_its_own() -> None:
    _q, k, v = inputs(17)
    for slots in (3, 11):
        attend = Linformer(k=slots, max_length=20).build(heads=HEADS, head_dim=HEAD_DIM).double()
        assert attend.projection(k, v, None)[0].shape == (2, HEADS, slots, HEAD_DIM)


def test_a_length_beyond_the_maximum_is_refused() -> None:
    attend = Linformer(k=5, max_length=20).build(heads=HEADS, head_dim=HEAD_DIM).double()
    with pytest.raises(SubquadError, match="k has 21 positions, but linformer was built for max_length=20: build it with"):
        attend(*inputs(21))


def test_mean_slots_take_any_length_and_are_exact_for_short_ones() -> None:
    attend = Linformer(k=30, max_length=1, method="mean").build(heads=HEADS, head_dim=HEAD_DIM)
    q, k, v = inputs(21)
    assert_close(attend(q, k, v), Softmax().build(heads=HEADS, head_dim=HEAD_DIM)(q, k, v), rtol=1e-9, atol=1e-9)
    q, k, v = inputs(331)
    assert_close(attend(q, k, v), equation(attend, q, k, v, None), rtol=1e-9, atol=1e-9)


def test_an_unused_slot_gets_no_weight() -> None:
    """A short sequence in a long batch: the slots that only padding falls into must not count as keys of zero."""
    attend = build("linformer-convolution")
    q, k, v = inputs(90, batch=2)
    keep = torch.arange(90)[None] < torch.tensor([[90], [29]])
    alone = attend(q[1:], k[1:, :, :29], v[1:, :, :29])
    assert_close(attend(q, k, v, keep=keep)[1:], alone, rtol=1e-9, atol=1e-9)
