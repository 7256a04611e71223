"""The probability of cells, and what it does to the likelihood of gaps that repeat."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from subquad.tasks.events import EventSequences
from subquad.tasks.events.cells import cells_of, log_normal_mass, log_upper_tail
from subquad.tasks.events.mixture import MixtureHead
from subquad.tasks.events.renewal import RenewalMixture
from subquad.tasks.events.scales import Scales, learn


def sequence(gaps: np.ndarray) -> EventSequences:
    """One sequence with these gaps."""
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    ends = np.array([times[-1]])
    return EventSequences(["s"], np.array([0, len(times)]), times, np.zeros(len(times), int), ["a"], np.zeros(1), ends)


def log_densities(gaps: np.ndarray, scales: Scales, head: MixtureHead | None = None) -> np.ndarray:
    """Log-densities in the data's unit, of a head that starts as the static mixture unless another one is given."""
    head = head or static_head(scales)
    h = torch.zeros(len(gaps), 4, dtype=torch.float64)
    with torch.no_grad():
        terms = head.terms(h, torch.from_numpy(gaps / scales.mean_gap), torch.zeros(len(gaps)).long())
    return np.asarray(terms.time - math.log(scales.mean_gap))


def static_head(scales: Scales) -> MixtureHead:
    return MixtureHead(4, 1, scales, components=len(scales.renewal), inner=2, types_see_gap=False).double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_masses_are_those_of_scipy(dtype: torch.dtype) -> None:
    centres = torch.tensor([-30.0, -4.0, -0.3, 0.0, 1.0, 3.0, 9.0])[:, None].double()
    halves = torch.tensor([1e-6, 1e-3, 0.049, 0.051, 0.3, 1.0, 8.0])[None].double()
    found = log_normal_mass(*torch.broadcast_tensors(centres.to(dtype), halves.to(dtype)))
    low, high = (centres.abs() - halves).numpy(), (centres.abs() + halves).numpy()
    upper, lower = stats.norm.logsf(low), stats.norm.logsf(high)
    by_tails = upper + np.log(-np.expm1(lower - upper))
    middle = stats.norm.logpdf(centres.numpy()) + np.log(2 * halves.numpy())
    expected = np.where(halves.numpy() < 1e-4, middle, by_tails)
    assert found.double().numpy() == pytest.approx(expected, abs=1e-4, rel=1e-5)


def test_masses_have_gradients_everywhere() -> None:
    centres = torch.tensor([-300.0, -1e-3, 0.0, 1.0, 50.0]).repeat(4).requires_grad_()
    halves = torch.tensor([1e-6, 0.1, 1.0, 100.0]).repeat_interleave(5).requires_grad_()
    log_normal_mass(centres, halves).sum().backward()
    assert all(isinstance(part.grad, Tensor) and part.grad.isfinite().all() for part in (centres, halves))


@pytest.mark.parametrize("half", [1e-6, 0.049, 0.051, 2.0, 30.0])
@pytest.mark.parametrize("centre", [0.5, 5.0, 50.0, 1e3, 1e4, 3e5, 1e6, 1e8])
def test_gradients_of_masses_are_right_in_float32_however_far_the_cell(centre: float, half: float) -> None:
    """The gradient of `torch.special.log_ndtr` is not, which ended trainings on gaps that repeat with weights of NaN."""
    gradients = []
    for dtype in (torch.float32, torch.float64):
        ends = [torch.tensor(value, dtype=dtype, requires_grad=True) for value in (centre, half)]
        log_normal_mass(*ends).backward()
        gradients.append([float(end.grad) for end in ends if end.grad is not None])
    tail = np.longdouble(centre) - np.longdouble(half)
    if tail > 20 and half > 0.05:  # nearly all of the mass is at the near end, where the density falls as exp(-tail x)
        assert gradients[0][0] == pytest.approx(-float(tail + 1 / tail), rel=1e-2)
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-3)


@pytest.mark.parametrize("x", [-50.0, -1.0, 0.0, 3.0, 19.99, 20.01, 300.0])
def test_tails_are_those_of_scipy(x: float) -> None:
    at = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    tail = log_upper_tail(at)
    tail.backward()
    assert float(tail.detach()) == pytest.approx(stats.norm.logsf(x), rel=1e-9, abs=1e-12)
    hazard = math.exp(stats.norm.logpdf(x) - stats.norm.logsf(x))
    assert at.grad is not None
    assert float(at.grad) == pytest.approx(-hazard, rel=1e-6, abs=1e-12)


def test_cells_are_as_wide_as_the_grid() -> None:
    cells = cells_of(torch.tensor([1.0, 2.0, 1e6], dtype=torch.float64), 1.0)
    assert cells.log_widths.exp().tolist() == pytest.approx([1.0, 1.0, 10.0])  # float32 has five digits
    ends = [(cells.centres + sign * cells.halves).exp() for sign in (-1, 1)]
    assert ends[0].tolist() == pytest.approx([0.5, 1.5, 1e6 - 5])
    assert ends[1].tolist() == pytest.approx([1.5, 2.5, 1e6 + 5])


@pytest.mark.parametrize("size", [1.0, 60.0, 0.25])
def test_gaps_of_one_size_reach_the_bound_of_the_resolution(size: float) -> None:
    """All gaps are one: their probability is 1, and their density 1 / resolution."""
    gaps = np.full(500, size)
    scales = learn(sequence(gaps), components=16)
    assert scales.grid * scales.mean_gap == pytest.approx(size)
    assert -log_densities(gaps, scales).mean() == pytest.approx(math.log(size), abs=1e-3)


def test_gaps_of_two_sizes_reach_their_entropy() -> None:
    """Seconds, on a clock of seconds: the likelihood is that of a coin, whatever narrow components there are."""
    gaps = np.where(np.random.default_rng(0).random(2000) < 0.25, 60.0, 61.0)
    scales = learn(sequence(gaps), components=16)
    share = (gaps == 60.0).mean()
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert -log_densities(gaps, scales).mean() == pytest.approx(entropy, abs=0.01)


def test_no_width_is_rewarded_beyond_the_resolution() -> None:
    gaps = np.round(np.random.default_rng(0).exponential(20.0, 1000)) + 1.0
    scales = learn(sequence(gaps), components=16)
    head = static_head(scales)
    with torch.no_grad():
        head.gaps.bias[32:] = -50.0  # as narrow as can be
        head.gaps.bias[16:32] = (torch.tensor(math.log(7.0 / scales.mean_gap)) - head.starts) / head.widths  # all at 7
    found = log_densities(np.array([7.0]), scales, head)
    assert found[0] == pytest.approx(0.0, abs=1e-3)  # 1 / resolution is 1


def test_densities_on_a_grid_add_up_to_one() -> None:
    """Ties included: their cell ends where that of the first second begins, and is half as wide."""
    gaps = np.floor(np.random.default_rng(0).exponential(2.0, 2000))
    scales = learn(sequence(gaps), components=8)
    seconds = np.arange(0.0, 2000.0)
    densities = np.exp(log_densities(seconds, scales))
    assert densities[0] / 2 + densities[1:].sum() == pytest.approx(1.0, abs=1e-4)
    assert densities[0] / 2 == pytest.approx((gaps == 0).mean(), abs=0.02)


def test_continuous_gaps_have_the_density_of_the_mixture() -> None:
    gaps = np.random.default_rng(0).lognormal(0.0, 1.5, 3000)
    scales = learn(sequence(gaps), components=16)
    assert scales.grid == 0.0
    log_gaps = np.log(gaps / scales.mean_gap)
    mixture = RenewalMixture(*np.array(scales.renewal).T)
    plain = mixture.log_density(log_gaps) - log_gaps - math.log(scales.mean_gap)
    above = gaps > gaps.min()
    found = log_densities(gaps, scales)
    assert found[above] == pytest.approx(plain[above], abs=1e-3)
    truth = -stats.lognorm(1.5).logpdf(gaps).mean()
    assert -found.mean() == pytest.approx(truth, abs=0.02)


def test_nearly_equal_gaps_are_told_from_each_other() -> None:
    """A floor of .05 deviations of all log-gaps, as there once was, costs more than a nat here."""
    rng = np.random.default_rng(0)
    regular = rng.random(4000) < 0.8
    gaps = np.where(regular, 0.8 * np.exp(0.002 * rng.normal(size=4000)), rng.lognormal(-1.0, 1.0, 4000))
    scales = learn(sequence(gaps), components=16)
    truth = 0.8 * stats.lognorm(0.002, scale=0.8).pdf(gaps) + 0.2 * stats.lognorm(1.0, scale=np.exp(-1)).pdf(gaps)
    found = log_densities(gaps, scales)
    assert -found.mean() == pytest.approx(-np.log(truth).mean(), abs=0.03)
