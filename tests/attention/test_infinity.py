"""What is promised of the continuous memory beyond the contract."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.testing import assert_close

from subquad import Infinity, Softmax, SubquadError
from subquad.attention import options_from
from subquad.attention.infinity import InfinityAttention
from subquad.ops import memory
from tests.attention.cases import HEAD_DIM, HEADS, inputs

BRIEF = Infinity(segment=29, basis=14, points=17, widths=(0.05, 0.1))


def built(options: Infinity) -> InfinityAttention:
    return options.build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1)).double()


def test_a_smooth_signal_is_reconstructed() -> None:
    basis = memory.make_basis(128, (0.01, 0.05))
    t, between = memory.even(512), torch.linspace(0.0, 1.0, 1001, dtype=torch.float64)

    def signal(at: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.sin(9 * at), torch.cos(17 * at) * at, torch.exp(-at)], dim=1)

    coefficients = memory.ridge(basis, t, penalty=1e-4) @ signal(t)
    assert_close(memory.evaluate_basis(basis, between) @ coefficients, signal(between), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("mean", "variance"), [(0.3, 0.04), (0.999, 1e-4), (0.0, 0.5)])
def test_the_expectation_equals_quadrature(mean: float, variance: float) -> None:
    basis = memory.make_basis(6, (0.05, 0.2))
    found = memory.expected_basis(basis, torch.tensor([mean]).double(), torch.tensor([variance]).double())[0]
    for at, value in enumerate(found.tolist()):
        centre, width = float(basis.centres[at % 3]), float(basis.widths[at // 3])
        product = lambda t, c=centre, w=width: stats.norm.pdf(t, c, w) * stats.norm.pdf(t, mean, np.sqrt(variance))  # noqa: E731
        wanted = integrate.quad(product, -8, 8, points=[centre, mean], limit=500, epsabs=1e-12)[0]
        assert value == pytest.approx(wanted, abs=1e-6)


def test_a_vanishing_memory_is_softmax_on_the_segment() -> None:
    q, k, v = (x.detach() for x in inputs(70))
    softmax = Softmax().build(heads=HEADS, head_dim=HEAD_DIM)
    pieces = [slice(start, start + 29) for start in (0, 29, 58)]
    wanted = torch.cat([softmax.causal(q[:, :, here], k[:, :, here], v[:, :, here])[0] for here in pieces], dim=2)
    assert_close(built(replace(BRIEF, basis=0)).causal(q, k, v)[0], wanted, rtol=0, atol=0)
    assert_close(built(replace(BRIEF, ridge=1e14)).causal(q, k, v)[0], wanted, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(built(BRIEF).causal(q, k, v)[0], wanted, atol=1e-3)


def test_the_memory_holds_what_came_first() -> None:
    """A density over the oldest part reads the first segment's mean from a state that has seen nine more."""
    attend = built(Infinity(segment=32, basis=128, points=128, tau=0.9, ridge=1e-3))
    _, k, v = (x.detach() for x in inputs(320, batch=1))
    v[:, :, :32] = 5.0
    v[:, :, 32:] = -1.0
    state = attend.causal(k, k, v)[1]
    oldest = torch.full((1, HEADS, 1), 0.15).double()
    read = memory.read(attend._basis(), state.signal[..., HEAD_DIM:], oldest, oldest * 1e-4)
    assert_close(read, torch.full_like(read, 5.0), rtol=0, atol=0.2)


def test_the_state_does_not_grow() -> None:
    attend = built(BRIEF)
    sizes = []
    for length in (1, 29, 58, 1000):
        q, k, v = (x.detach() for x in inputs(length))
        sizes.append([part.nbytes for part in attend.causal(q, k, v)[1]])
    assert all(size == sizes[0] for size in sizes)


def test_sticky_points_go_where_attention_went() -> None:
    histogram = torch.zeros(2, 10).double()
    histogram[0, 3] = 9.0
    histogram[0, 8] = 1.0
    places = torch.rand(1000, generator=torch.Generator().manual_seed(0)).sort().values.double()
    points = memory.draw(histogram, places, torch.full((1000,), 0.5).double())
    assert ((points[0] > 0.3) & (points[0] < 0.4)).float().mean() == pytest.approx(0.9, abs=0.03)
    assert ((points[0] > 0.8) & (points[0] < 0.9)).float().mean() == pytest.approx(0.1, abs=0.03)
    assert_close(points[1], memory.even(1000))


def test_shares_are_the_densities_masses() -> None:
    mean, variance = torch.tensor([[[0.2, 0.9]]], dtype=torch.float64), torch.tensor([[[0.01, 0.04]]], dtype=torch.float64)
    edges = np.linspace(0, 1, 6)
    wanted = sum(np.diff(stats.norm.cdf(edges, m, s)) for m, s in ((0.2, 0.1), (0.9, 0.2)))
    assert_close(memory.shares(mean, variance, None, 5)[0], torch.as_tensor(wanted), rtol=1e-9, atol=1e-9)


def test_sticky_keeps_what_is_attended_to() -> None:
    """Every query looks at the oldest stretch: drawn points give it room, evenly spaced ones lose it after 19 segments."""
    q, k, v = (x.detach() for x in inputs(640, batch=1))
    v[:, :, :32], v[:, :, 32:] = 5.0, -1.0
    shares = []
    for sticky in (False, True):
        attend = built(Infinity(segment=32, basis=64, points=64, ridge=1e-2, sticky=sticky))
        with torch.no_grad():
            attend.weight.zero_()
            attend.bias[:, 0], attend.bias[:, 1] = -4.0, -4.0
        signal = attend.causal(q, k, v)[1].signal[0, 0, :, -1]
        read = memory.evaluate_basis(attend._basis(), memory.even(400)) @ signal
        shares.append(float((read > 2).double().mean()))
    assert shares[0] < 0.02
    assert shares[1] > 0.5


def test_divergence_is_that_of_two_gaussians_and_least_at_the_prior() -> None:
    prior = torch.distributions.Normal(0.3, 0.05)
    for width in (0.02, 0.05, 0.3):
        wanted = torch.distributions.kl_divergence(torch.distributions.Normal(0.3, width), prior)
        assert_close(memory.divergence(torch.tensor(width).square(), 0.05), wanted, rtol=1e-4, atol=1e-6)


def test_half_precision_does_not_round_what_is_solved_for() -> None:
    attend = built(BRIEF).to(torch.bfloat16)
    exact = built(BRIEF)
    assert attend.weight.dtype == torch.bfloat16
    assert_close(attend.past.double(), exact.past, rtol=1e-5, atol=1e-6)


def test_options_come_back_from_a_file() -> None:
    assert options_from({"kind": "infinity", "widths": [0.1, 0.2], "basis": 64}) == Infinity(basis=64, widths=(0.1, 0.2))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"basis": 15}, "multiple of its 2 widths"),
        ({"tau": 1.0}, "tau"),
        ({"widths": ()}, "widths"),
        ({"segment": 0}, "segment"),
    ],
)
def test_what_cannot_be_built_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(SubquadError, match=words):
        replace(BRIEF, **wrong).build(heads=1, head_dim=2)  # type: ignore[arg-type]
