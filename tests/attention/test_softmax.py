"""The matrix that softmax attention can show."""

import torch
from torch.testing import assert_close

from tests.attention.cases import build, inputs


def test_weights_are_the_matrix_that_was_mixed_with() -> None:
    attend = build("softmax")
    q, k, v = inputs(23)
    keep = torch.rand(2, 23) > 0.3
    assert_close(attend.weights(q, k, keep=keep) @ v, attend(q, k, v, keep=keep))
    causal = attend.weights(q, k, causal=True)
    assert_close(causal @ v, attend.causal(q, k, v)[0])
    assert causal.triu(1).count_nonzero() == 0
    assert_close(causal.sum(-1), torch.ones_like(causal[..., 0]))


def test_the_state_grows() -> None:
    attend = build("softmax")
    state = attend.causal(*inputs(4))[1]
    assert attend.step(*inputs(1), state)[1].keys.shape[2] == 5
