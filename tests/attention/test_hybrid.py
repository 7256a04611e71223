"""What is particular to the hybrid: where it is exact, what its gain does, and what padding does to blocks."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import Elu, Hybrid, Learned, Random, Softmax, SubquadError
from subquad.attention.hybrid import HybridAttention
from subquad.ops.hybrid import mixing
from tests.attention.cases import HEAD_DIM, HEADS, inputs


def build(options: Hybrid) -> HybridAttention:
    return options.build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1)).double()


def test_what_fits_into_near_blocks_is_softmax() -> None:
    attend, exact = build(Hybrid(block=32)), Softmax().build(heads=HEADS, head_dim=HEAD_DIM)
    q, k, v = inputs(64)
    assert_close(attend(q, k, v), exact(q, k, v))
    assert_close(attend.causal(q, k, v)[0], exact.causal(q, k, v)[0])


def test_without_gain_it_is_a_window() -> None:
    """A gain of next to zero leaves the near blocks alone."""
    attend, exact = build(Hybrid(block=16, log_gain=-80.0)), Softmax().build(heads=HEADS, head_dim=HEAD_DIM)
    q, k, v = inputs(64)
    alone = exact(q[:, :, 32:48], k[:, :, 16:64], v[:, :, 16:64])
    assert_close(attend(q, k, v)[:, :, 32:48], alone)
    alone = exact.causal(q[:, :, 16:48], k[:, :, 16:48], v[:, :, 16:48])[0]
    assert_close(attend.causal(q, k, v)[0][:, :, 32:48], alone[:, :, 16:])


def test_a_window_alone_is_softmax_within_it() -> None:
    """The same as with a gain of next to zero, with no features and no sums to keep."""
    alone, silent = build(Hybrid(block=16, rest="none")), build(Hybrid(block=16, log_gain=-80.0))
    q, k, v = inputs(70)
    keep = torch.rand(2, 70, generator=torch.Generator().manual_seed(3)) > 0.3
    assert_close(alone(q, k, v, keep=keep), silent(q, k, v, keep=keep))
    mixed, state = alone.causal(q, k, v, keep=keep)
    assert_close(mixed, silent.causal(q, k, v, keep=keep)[0])
    assert state.sums.numel() == state.norms.numel() == 0
    assert_close(alone.weights(q, k, keep=keep), silent.weights(q, k, keep=keep))
    assert sum(parameter.numel() for parameter in alone.parameters()) == HEADS
    with pytest.raises(SubquadError, match="rest must be an instance of FeatureMapOptions or none, but is 'nothing'"):
        Hybrid(rest="nothing")  # type: ignore[arg-type]


@pytest.mark.parametrize("rest", [Learned(), Random(features=11), "none"], ids=str)
@pytest.mark.parametrize("blocks", [1, 3, 100])
@pytest.mark.parametrize("padded", [False, True])
def test_a_few_blocks_at_a_time_are_all_at_once(
    rest: Any, blocks: int, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is how PyTorch's operations work on a CPU where no gradient is wanted."""
    monkeypatch.setenv("SUBQUAD_KERNELS", "torch")
    attend = build(Hybrid(block=8, rest=rest, log_gain=0.0))
    q, k, v = inputs(117)
    keep = torch.rand(2, 117, generator=torch.Generator().manual_seed(3)) > 0.3 if padded else None
    wanted, (causal, state) = attend(q, k, v, keep=keep), attend.causal(q, k, v, keep=keep)
    monkeypatch.setattr(mixing, "WORKING_SET", blocks * 2 * HEADS * 3 * 8 * 8)
    with torch.no_grad():
        assert_close(attend(q, k, v, keep=keep), wanted)
        found, after = attend.causal(q, k, v, keep=keep)
        assert_close((found, tuple(after)), (causal, tuple(state)))


def test_a_high_gain_is_linear_attention_to_what_is_far() -> None:
    attend = build(Hybrid(block=16, rest=Elu(), log_gain=80.0))
    q, k, v = inputs(64)
    far = attend.feature_map(k[:, :, 48:]).values
    weights = attend.feature_map(q[:, :, 16:32]).values @ far.mT
    wanted = weights / weights.sum(-1, keepdim=True) @ v[:, :, 48:]
    assert_close(attend(q, k, v)[:, :, 16:32], wanted)


def test_with_exact_features_it_comes_close_to_softmax() -> None:
    """FAVOR+ estimates exp without bias, at the same scale as the exact part: a gain of one is right."""
    q, k, v = (0.5 * x.detach() for x in inputs(200))
    exact = Softmax().build(heads=HEADS, head_dim=HEAD_DIM)(q, k, v)
    errors = []
    for log_gain in (-5.0, 0.0, 3.0):
        attend = build(Hybrid(block=20, rest=Random(features=2000), log_gain=log_gain))
        errors.append(float((attend(q, k, v).detach() - exact).square().mean() / exact.square().mean()))
    assert errors[1] < 0.01
    assert errors[1] < 0.1 * min(errors[0], errors[2])


def test_the_matrix_is_what_it_mixes_by() -> None:
    for options in (Hybrid(block=13, rest=Learned(), log_gain=0.0), Hybrid(block=9, rest=Random(features=11))):
        attend = build(options)
        q, k, v = inputs(70)
        keep = torch.rand(2, 70, generator=torch.Generator().manual_seed(3)) > 0.3
        assert_close(attend.weights(q, k, keep=keep) @ v, attend(q, k, v, keep=keep))
        causal = attend.weights(q, k, keep=keep, causal=True)
        assert_close(causal @ v, attend.causal(q, k, v, keep=keep)[0])
        assert_close(causal.sum(-1), keep[:, None].expand(-1, HEADS, -1).double())


def test_its_gain_is_learned() -> None:
    attend = build(Hybrid(block=8))
    q, k, v = inputs(50)
    (gradient,) = torch.autograd.grad(attend(q, k, v).square().sum(), attend.log_gain)
    assert (gradient != 0).all()
