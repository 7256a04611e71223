"""cosFormer beyond the contract: how weights fall with the distance, and its longest sequence."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import Cosformer, SubquadError
from subquad.ops.linear import turned
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


Result = tuple[Tensor, ...]


def all_forms(attend: Any, length: int, keep: Tensor | None) -> Result:
    """Values and gradients of both forms, of the causal form after a state, and of fewer queries than keys."""
    q, k, v = inputs(length)
    before = attend.causal(*(x.detach() for x in inputs(5, seed=3)))[1]
    before = before._replace(sums=before.sums.requires_grad_(), norms=before.norms.requires_grad_())
    later, after = attend.causal(q, k, v, before, keep=keep)
    results = (attend(q, k, v, keep=keep), attend.causal(q, k, v, keep=keep)[0], later, attend(q[:, :, :3], k, v, keep=keep))
    loss = sum((result * result.detach().cos()).sum() for result in results) + after.sums.sum() + after.norms.square().sum()
    return *results, *after, *torch.autograd.grad(loss, (q, k, v, before.sums, before.norms))


@pytest.mark.parametrize("length", [8, 14, 31])
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_give_what_the_whole_gives(length: int, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, keep = build(80), some_keep(2, length) if padded else None
    wanted = all_forms(attend, length, keep)
    monkeypatch.setattr(turned, "BLOCK", 7)
    assert_close(all_forms(attend, length, keep), wanted, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        q, k, v = inputs(length)
        assert_close(attend(q, k, v, keep=keep), wanted[0], rtol=1e-10, atol=1e-12)
        assert_close(attend.causal(q, k, v, keep=keep)[0], wanted[1], rtol=1e-10, atol=1e-12)
        assert attend(q[:, :, :0], k, v).shape == (2, HEADS, 0, HEAD_DIM)
        assert attend(q, k[:, :, :0], v[:, :, :0]).count_nonzero() == 0
        before = attend.causal(*inputs(5, seed=3))[1]
        with pytest.raises(SubquadError, match=f"k has {5 + length} positions, but cosformer was built for max_length=9"):
            build(9).causal(q, k, v, before)


def test_the_backward_keeps_no_turned_vectors() -> None:
    """Turned vectors are twice as wide as queries and keys; kept for a whole sequence, they slow long ones down."""
    attend, (q, k, v) = build(5000), inputs(5000)
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attend.causal(q, k, v)
        attend(q, k, v)
    assert kept
    assert max(x.shape[-1] for x in kept if x.ndim == 4 and x.shape[2] > 1000) == HEAD_DIM


def test_weights_at_the_longest_distance_are_not_negative() -> None:
    attend = Cosformer(max_length=7).build(heads=1, head_dim=4)
    q, k = -torch.ones(1, 1, 3, 4), torch.ones(1, 1, 7, 4)  # three queries stand after all keys
    assert attend(q, k, k).count_nonzero() == 0  # relu(q) is zero
