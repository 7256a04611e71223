"""Speed is not bought by accuracy: errors of native kernels in float32 against float64, beside PyTorch's."""

import statistics

import pytest
import torch
from torch import Tensor

from subquad import native
from subquad.attention.hybrid import Hybrid
from subquad.ops.linear import native as native_form
from subquad.ops.linear.bidirectional import sum_keys
from subquad.ops.scratch import Scratch
from tests.native.accuracy import RESULTS, Case, cases, measure
from tests.native.forms import inputs, maps_of

SEEDS = 3


def mean_error(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).abs().mean() / exact.square().mean().sqrt()).item()


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_norms_are_as_exact_as_in_pytorch(scale: float) -> None:
    """Sums of many positive numbers, where errors of one sign add up."""
    _, k, v = (scale * x.detach() for x in inputs(2048, 2048, 64, 64, torch.float32, batch=1))
    maps = maps_of("elu", 64, dtype=torch.float32)
    exact = maps.keys(k.double()).values.sum(2)
    ours = native_form.sum_keys(k, v, maps).norms
    theirs = sum_keys(k, v, maps.keys, None, Scratch(torch.float32), 1024)[1].view_as(ours)
    assert mean_error(ours, exact) <= 1.5 * mean_error(theirs, exact)


def gain_gradient(x: tuple[Tensor, ...], kernels: native.Kernels) -> Tensor:
    """The gradient of the hybrid's log_gain, a sum over all positions, for a random gradient of the result."""
    q, k, v, gradient = x
    attend = Hybrid(block=32, log_gain=0.0).build(heads=4, head_dim=16, generator=torch.Generator().manual_seed(0))
    attend = attend.to(q.dtype)
    with native.using(kernels):
        mixed, _ = attend.causal(q, k, v)
    return torch.autograd.grad(mixed, attend.log_gain, gradient)[0]


def test_the_gradient_of_the_gain_is_as_exact_as_in_pytorch() -> None:
    """Its terms nearly cancel, so that errors of a long sum would show."""
    errors: dict[native.Kernels, list[Tensor]] = {"native": [], "torch": []}
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = tuple(torch.randn(1, 4, 2048, 16, generator=generator) for _ in range(4))
        exact = gain_gradient(tuple(part.double() for part in x), "torch")
        for kernels, each in errors.items():
            each.append((gain_gradient(x, kernels).double() - exact).abs())
    ours, theirs = (torch.cat(each).mean().item() for each in errors.values())
    assert ours <= 1.5 * theirs, f"mean error {ours:.1e}, PyTorch's {theirs:.1e}"


def compare(case: Case) -> None:
    """Over three seeds, the median of the mean error is at most 1.1 times PyTorch's, that of the largest twice.

    The largest of many errors differs by such factors between seeds. The mean for FAVOR+ with inputs ten times as large,
    whose exponents go into the hundreds, differs by a sixth between seeds and may be 1.2 times PyTorch's.
    """
    runs = [measure(case, seed) for seed in range(SEEDS)]
    mean_factor = 1.2 if case.mechanism == "favor" and case.scale > 1 else 1.1
    for name in RESULTS:
        for kind, most in (("mean", mean_factor), ("largest", 2.0)):
            ours, theirs = (
                statistics.median(getattr(run[kernels][name], kind) for run in runs) for kernels in ("native", "torch")
            )
            assert ours <= most * theirs, f"{case}: {kind} error of {name} is {ours:.1e}, PyTorch's {theirs:.1e}"


@pytest.mark.parametrize("case", list(cases([256])), ids=str)
def test_errors_are_no_larger_than_those_of_pytorch(case: Case) -> None:
    compare(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases([4096, 65536])), ids=str)
def test_errors_are_no_larger_for_long_sequences(case: Case) -> None:
    compare(case)
