"""Running sums of chunks are those of a loop, and the parallel form on them is the equation at lengths of many groups."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad.feature_maps import Elu, Random
from subquad.ops.linear import empty_state, parallel, reference
from subquad.ops.linear.scan import GROUP, running_sums
from tests.ops.test_forms import saved_beside


@pytest.mark.parametrize("count", [1, GROUP, GROUP + 1, 2 * GROUP, GROUP**2 + 3])
@pytest.mark.parametrize("fading", [False, True])
def test_running_sums_are_those_of_a_loop(count: int, fading: bool) -> None:
    leaf = torch.randn(2, 3, count, 5, dtype=torch.float64, requires_grad=True)
    rises = torch.rand(2, 3, count, dtype=torch.float64) * (40 if fading else 0)
    peaks = rises.cumsum(2)
    peaks[0, 0, : count // 2] = -torch.inf  # no key yet, and terms of zero
    terms = torch.where(peaks[..., None] == -torch.inf, 0.0, leaf)
    total, sums = torch.zeros_like(terms[:, :, 0]), []
    for t in range(count):
        if t:
            fade = torch.exp2(peaks[:, :, t - 1] - peaks[:, :, t].clamp(min=-1e9))
            total = total * fade[..., None]
        total = total + terms[:, :, t]
        sums.append(total)
    wanted, result = torch.stack(sums, dim=2), running_sums(terms, peaks)
    assert_close(result, wanted, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(x.sin().sum(), leaf, retain_graph=True)[0] for x in (result, wanted)]
    assert_close(*gradients, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("options", [Elu(), Random(features=6)], ids=["elu", "favor"])
def test_parallel_is_the_equation_over_many_groups(options: Elu | Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "CHUNK", 2)
    phi = options.build(heads=2, head_dim=3, generator=torch.Generator().manual_seed(0)).double()
    q, k, v = (torch.randn(1, 2, 611, 3, dtype=torch.float64).mul(2).requires_grad_() for _ in range(3))
    maps, keep = phi.sides(), torch.rand(1, 611) > 0.2
    mixed, state = parallel.attend_causal(q, k, v, maps, empty_state(k, v, maps.keys), keep)
    wanted = reference.weights(maps.queries(q), maps.keys(k), keep, causal=True) @ v
    assert_close(mixed, wanted, rtol=1e-9, atol=1e-9)
    assert state.sums.isfinite().all()
    gradients = [torch.autograd.grad(x.sin().sum(), (q, k, v), retain_graph=True) for x in (mixed, wanted)]
    assert_close(*gradients, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("options", [Elu(), Random(features=8)], ids=["elu", "favor"])
def test_memory_of_the_parallel_form_is_linear(options: Elu | Random) -> None:
    """What autograd saves grows with the length, not with its square: four times as much for four times the length."""
    phi = options.build(heads=1, head_dim=4)

    def saved(length: int) -> int:
        q, k, v = (torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3))
        start = empty_state(k, v, phi)
        run: Callable[[], Tensor] = lambda: parallel.attend_causal(q, k, v, phi.sides(), start)[0]  # noqa: E731
        return saved_beside([q, k, v], run)

    assert saved(4 * 128 * 2 * GROUP) < 4.2 * saved(128 * 2 * GROUP)
