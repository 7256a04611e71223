"""cosFormer beyond the contract: how weights fall with the distance, and its longest sequence."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import Cosformer, SubquadError
from subquad.attention import cosformer
from tests.attention.cases import HEAD_DIM, HEADS, inputs, some_keep


def build(longest: int) -> Any:
    return Cosformer(max_length=longest).build(heads=HEADS, head_dim=HEAD_DIM).double()


def ones(length: int) -> Tensor:
    return torch.ones(1, HEADS, length, HEAD_DIM, dtype=torch.float64)


def test_weights_fall_as_a_cosine_of_the_distance() -> None:
    weights = build(40).weights(ones(31), ones(31))[0, 0]
    distance = (torch.arange(31)[:, None] - torch.arange(31)).double()
    wanted = torch.cos(math.pi / 2 * distance / 40)
    assert_close(weights, wanted / wanted.sum(1, keepdim=True))
    assert weights[30, 30] / weights[30, 0] > 2


def test_a_state_knows_its_position() -> None:
    attend, (q, k, v) = build(40), (x.detach() for x in inputs(31))
    whole = attend.causal(q, k, v)[0]
    state = attend.causal(q[:, :, :20], k[:, :, :20], v[:, :, :20])[1]
    assert state.seen.tolist() == [20, 20]
    rest = (q[:, :, 20:], k[:, :, 20:], v[:, :, 20:])
    assert_close(attend.causal(*rest, state)[0], whole[:, :, 20:])
    lost = state._replace(seen=torch.zeros_like(state.seen))
    assert (attend.causal(*rest, lost)[0] - whole[:, :, 20:]).abs().max() > 1e-3


def test_longer_sequences_are_refused_in_every_form() -> None:
    attend, (q, k, v) = build(30), inputs(31)
    words = "k has 31 positions, but cosformer was built for max_length=30: build it with a larger one"
    with pytest.raises(SubquadError, match=words):
        attend(q, k, v)
    with pytest.raises(SubquadError, match=words):
        attend.causal(q, k, v)
    state = attend.causal(q[:, :, :30], k[:, :, :30], v[:, :, :30])[1]
    with pytest.raises(SubquadError, match=words):
        attend.step(q[:, :, 30:], k[:, :, 30:], v[:, :, 30:], state)
    assert Cosformer(max_length=30).for_length(31).max_length == 31


@pytest.mark.parametrize("length", [8, 14, 31])
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_without_gradients_give_what_the_whole_gives(
    length: int, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend, (q, k, v) = build(80), inputs(length)
    keep = some_keep(2, length) if padded else None
    before = attend.causal(*inputs(5, seed=3))[1]
    wanted = (attend(q, k, v, keep=keep), attend.causal(q, k, v, keep=keep), attend.causal(q, k, v, before, keep=keep))
    few = attend(q[:, :, :3], k, v, keep=keep)
    monkeypatch.setattr(cosformer, "BLOCK", 7)
    with torch.no_grad():
        found = (attend(q, k, v, keep=keep), attend.causal(q, k, v, keep=keep), attend.causal(q, k, v, before, keep=keep))
        assert_close(found, wanted, rtol=1e-10, atol=1e-12)
        assert_close(attend(q[:, :, :3], k, v, keep=keep), few, rtol=1e-10, atol=1e-12)
        assert attend(q[:, :, :0], k, v).shape == (2, HEADS, 0, HEAD_DIM)
        assert attend(q, k[:, :, :0], v[:, :, :0]).count_nonzero() == 0
        with pytest.raises(SubquadError, match=f"k has {5 + length} positions, but cosformer was built for max_length=9"):
            build(9).causal(q, k, v, before)
