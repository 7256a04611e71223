"""The hybrid by native kernels gives what PyTorch's operations give, in values, gradients and states."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import native as library
from subquad.attention.hybrid import Hybrid, HybridAttention, NoFeatures
from subquad.feature_maps import Elu, FeatureMap, Learned, Random, Relu, Taylor
from subquad.ops import linear
from subquad.ops.hybrid import mixing, native
from subquad.ops.linear import LinearState
from subquad.types import Maps
from tests.native.recording import recorded

pytestmark = pytest.mark.skipif(not library.is_there(), reason="the native kernels are not compiled")

RESTS: dict[str, Any] = {
    "learned": Learned(),
    "few learned": Learned(features=10),
    "elu": Elu(),
    "relu": Relu(),
    "positive": Random(features=22),
    "taylor": Taylor(),
}
LENGTHS = [(0, 8), (1, 8), (16, 8), (33, 8), (40, 1), (130, 32), (90, 48), (77, 100), (300, 16)]


def phi_of(rest: Any, d: int) -> Maps:
    built: FeatureMap = rest.build(heads=2, head_dim=d, generator=torch.Generator().manual_seed(0)).double()
    return built.sides()


class Case:
    """Inputs of `attend`, the same for both forms."""

    def __init__(self, maps: Maps, n: int, d: int, e: int, *, causal: bool, padded: bool, loud: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(n + d)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        self.maps, self.total = maps, torch.tensor([n, n * 2 // 3 if padded else n])
        self.held = (torch.arange(n) < self.total[:, None])[:, None, :, None]
        self.q, self.k, self.v = (
            torch.where(self.held, factor * normal(2, 2, n, width), 0.0).requires_grad_()
            for width, factor in ((d, loud), (d, loud), (e, 1.0))
        )
        self.gain = normal(2).requires_grad_()
        self.state: LinearState | None = None
        if causal:
            with torch.no_grad():
                _, before = linear.attend_causal(
                    loud * normal(2, 2, 9, d), loud * normal(2, 2, 9, d), normal(2, 2, 9, e), maps
                )
            self.state = LinearState(before.sums.requires_grad_(), before.norms.requires_grad_(), before.peak)
        self.gradient, self.for_sums = normal(2, 2, n, e), normal(2, 2, maps.keys.feature_count(d), e)

    def results(self, form: Any, block: int) -> list[Tensor]:
        """Values, state and gradients."""
        mixed, after = form(self.q, self.k, self.v, self.maps, self.state, self.total, self.gain, block)
        mixed = torch.where(self.held, mixed, 0.0)
        loss = (mixed * self.gradient).sum()
        inputs = [self.q, self.k, self.v, self.gain, *self.maps.queries.weights(), *self.maps.keys.weights()]
        if self.state is None:
            after = ()
        else:
            loss = loss + (after.sums * self.for_sums).sum() + after.norms.square().sum()
            inputs += [self.state.sums, self.state.norms]
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
        return [mixed, *after, *gradients]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize("name", RESTS)
def test_values_and_gradients_are_those_of_pytorch(name: str, causal: bool) -> None:
    for at, (n, block) in enumerate(LENGTHS):
        d, e = ((16, 16), (7, 5))[at % 2]
        case = Case(phi_of(RESTS[name], d), n, d, e, causal=causal, padded=at % 3 == 1)
        assert_close(case.results(native.attend, block), case.results(mixing.attend, block), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize("name", RESTS)
def test_loud_inputs_do_not_overflow(name: str, causal: bool) -> None:
    case = Case(phi_of(RESTS[name], 16), 100, 16, 16, causal=causal, padded=True, loud=1e3)
    for mine, wanted in zip(case.results(native.attend, 8), case.results(mixing.attend, 8), strict=True):
        scale = max(1.0, float(wanted.detach()[wanted.isfinite()].abs().max())) if wanted.numel() else 1.0
        assert_close(mine, wanted, rtol=1e-8, atol=1e-8 * scale)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize("name", ["learned", "positive"])
def test_features_of_pytorch_give_the_same_as_those_of_the_kernels(
    name: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several pieces of positions, whose last keys are near to the next piece."""
    maps = phi_of(RESTS[name], 16)
    case = Case(maps, 1300, 16, 8, causal=causal, padded=True)
    wanted = case.results(native.attend, 16)
    for side in maps:
        monkeypatch.setattr(side, "fused", lambda: None)
    assert_close(case.results(native.attend, 16), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_without_features_only_the_window_remains(causal: bool) -> None:
    maps = NoFeatures().sides()
    case = Case(Maps(phi_of(Elu(), 8).queries, phi_of(Elu(), 8).keys), 50, 8, 8, causal=False, padded=True)
    case.maps = maps
    case.state = linear.empty_state(case.k, case.v, maps.keys) if causal else None
    with torch.no_grad():
        found, wanted = (
            form(case.q, case.k, case.v, maps, case.state, case.total, case.gain, 8)
            for form in (native.attend, mixing.attend)
        )
    assert_close(torch.where(case.held, found[0], 0.0), torch.where(case.held, wanted[0], 0.0))
    assert_close(found[1], wanted[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    attend: HybridAttention = Hybrid(block=8).build(heads=2, head_dim=16)
    q, k, v = (torch.randn(2, 2, 90, 16, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    wide = [x.float().requires_grad_() for x in (q, k, v)]
    for form in (attend, lambda *x: attend.causal(*x)[0]):
        mixed, wanted = form(*leaves), form(*wide)
        assert mixed.dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps
        assert_close(mixed.float(), wanted, rtol=tolerance, atol=tolerance)
        gradients = torch.autograd.grad(mixed.float().square().sum(), leaves)
        expected = torch.autograd.grad(wanted.square().sum(), wide)
        for mine, exact in zip(gradients, expected, strict=True):
            assert_close(mine.float(), exact, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("block", [1, 5, 8])
@pytest.mark.parametrize("name", ["learned", "elu", "positive", "taylor"])
def test_steps_give_what_the_whole_sequence_gives(name: str, block: int) -> None:
    attend: Any = Hybrid(block=block, rest=RESTS[name], log_gain=0.0).build(heads=2, head_dim=10).double()
    q, k, v = (torch.randn(2, 2, 40, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    keep = torch.arange(12) < torch.tensor([[12], [5]])
    with torch.no_grad():
        _, start = attend.causal(*(x[:, :, :12] for x in (q, k, v)), keep=keep)
        wanted, last = attend.causal(*(x[:, :, 12:] for x in (q, k, v)), start)
        for reuse in (False, True):
            _, state = attend.causal(*(x[:, :, :12] for x in (q, k, v)), keep=keep)
            for at in range(12, 40):
                before, copies = state, [part.clone() for part in state]
                mixed, state = attend.step(*(x[:, :, at : at + 1] for x in (q, k, v)), before, reuse=reuse)
                assert_close(mixed, wanted[:, :, at - 12 : at - 11])
                assert reuse or all(torch.equal(part, copy) for part, copy in zip(before, copies, strict=True))
            assert_close(tuple(state), tuple(last))


def test_threads_share_heads() -> None:
    maps, threads = phi_of(Learned(), 16), torch.get_num_threads()
    case = Case(maps, 900, 16, 16, causal=True, padded=True)
    alone = case.results(native.attend, 32)
    torch.set_num_threads(3)
    try:
        for mine, wanted in zip(case.results(native.attend, 32), alone, strict=True):
            assert torch.equal(mine, wanted)
    finally:
        torch.set_num_threads(threads)


def test_rows_of_the_past_do_not_change_with_the_future() -> None:
    """Not even by rounding, however large the future is."""
    maps = phi_of(Learned(), 16)
    case = Case(maps, 70, 16, 16, causal=True, padded=False)
    with torch.no_grad():
        before, _ = native.attend(case.q, case.k, case.v, maps, case.state, case.total, case.gain, 32)
        for x in (case.q, case.k, case.v):
            x[:, :, 41:] = 1e30
        after, _ = native.attend(case.q, case.k, case.v, maps, case.state, case.total, case.gain, 32)
    assert torch.equal(before[:, :, :41], after[:, :, :41])


def test_gradients_of_weights_are_left_out_where_nobody_asks_for_them() -> None:
    """Gradients of inputs are the same bits, alone and beside those of weights."""
    generator = torch.Generator().manual_seed(0)
    attend: Any = Hybrid(block=8).build(heads=2, head_dim=16, generator=generator)
    x = [torch.randn(1, 2, 40, 16, generator=generator, requires_grad=True) for _ in range(3)]
    weights = list(attend.feature_map.parameters())
    with recorded() as calls:
        alone = torch.autograd.grad(attend.causal(*x)[0].sum(), x)
        together = torch.autograd.grad(attend.causal(*x)[0].sum(), [*x, *weights])
        attend.causal(*x)[0].sum().backward()
    addresses = [len(call.addresses) for call in calls if call.name == "hybrid_causal_back"]
    assert addresses[1] == addresses[2] == addresses[0] + 2  # of the gradients of directions of queries and keys
    assert all(torch.equal(part, other) for part, other in zip(alone, together, strict=False))
    assert all(torch.equal(weight.grad, part) for weight, part in zip(weights, together[3:], strict=True))
    assert all(part.abs().sum() > 0 for part in together)
