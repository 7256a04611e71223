"""Heads: what they say of the next event hangs together, and stays finite."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from subquad.tasks.events import SIMULATORS
from subquad.tasks.events.forecasts import forecast
from subquad.tasks.events.heads import HawkesHead
from subquad.tasks.events.mixture import Mixture, MixtureHead
from subquad.tasks.events.scales import Scales
from tests.tasks.events import truths

SCALES = Scales(("a", "b", "c"), 2.0, -0.7, 1.2, 1e-3, 40.0)
HEADS = ["hawkes", "mixture", "mixture without gaps"]
LEVELS = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)


def head(name: str, model_dim: int = 6) -> HawkesHead | MixtureHead:
    generator = torch.Generator().manual_seed(0)
    if name == "hawkes":
        made = {"inner": 8, "horizon": SCALES.horizon, "points": 50}
        return HawkesHead(model_dim, 3, integral="monte-carlo", generator=generator, **made).double().eval()  # type: ignore[arg-type]
    sees = name == "mixture"
    return MixtureHead(model_dim, 3, SCALES, components=4, inner=8, types_see_gap=sees, generator=generator).double().eval()


def vectors(count: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", HEADS)
def test_densities_integrate_to_one(name: str) -> None:
    """Over all gaps up to the horizon and all types, with the chance of a longer one."""
    model, h = head(name), vectors(1)
    u = torch.linspace(0.0, 1.0, 4001, dtype=torch.float64)
    gaps = SCALES.horizon * u**4
    density = torch.zeros_like(gaps)
    with torch.no_grad():
        for kind in range(3):
            terms = model.terms(h.expand(len(gaps), -1), gaps, torch.full((len(gaps),), kind))
            density += (terms.time + terms.type).exp()
        longer = torch.exp(-model.compensators(h, torch.tensor([SCALES.horizon], dtype=torch.float64)))
    assert float(torch.trapezoid(density, gaps) + longer) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("name", HEADS)
def test_forecasts_agree_with_the_density(name: str) -> None:
    model, h = head(name), vectors(1)
    gaps = SCALES.horizon * torch.linspace(0.0, 1.0, 4001, dtype=torch.float64) ** 4
    with torch.no_grad():
        found = model.forecast(h, LEVELS)
        survival = torch.exp(-model.compensators(h.expand(len(gaps), -1), gaps))
        each = torch.stack([model.types_at(h, gap[None])[0] for gap in gaps])
        at = model.compensators(h.expand(3, -1), found.quantiles[0])
    assert float(found.gap) == pytest.approx(float(torch.trapezoid(survival, gaps)), rel=0.01)
    assert (1 - torch.exp(-at)).numpy() == pytest.approx(LEVELS.numpy(), abs=0.01)
    shares = (-survival.diff()[:, None] * (each[1:] + each[:-1]) / 2).sum(0) + survival[-1] * each[-1]
    assert found.types[0].numpy() == pytest.approx(shares.numpy(), abs=0.02)
    assert float(found.types.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", HEADS)
def test_everything_is_finite_for_any_gap(name: str) -> None:
    model = head(name).float().train()
    h = (3.0 * vectors(6)).float().requires_grad_()
    gaps = torch.tensor([0.0, 1e-9, 1e-3, 1.0, 1e4, 1e9])
    terms = model.terms(h, gaps, torch.arange(6) % 3)
    found = [*terms, model.compensators(h, gaps), model.types_at(h, gaps), *model.forecast(h, LEVELS.float())]
    assert all(part.isfinite().all() for part in found)
    (terms.time.sum() + terms.type.sum()).backward()
    gradients = [h.grad, *(parameter.grad for parameter in model.parameters())]
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    quantiles = found[-2]
    assert (quantiles[:, 0] <= quantiles[:, 1]).all()
    assert (quantiles <= SCALES.horizon * 1.0001).all()


def test_gaps_below_the_resolution_are_one() -> None:
    """And all of them together have the probability that the mixture gives them."""
    model, h = head("mixture"), vectors(1).expand(3, -1)
    least = SCALES.resolution
    with torch.no_grad():
        found = model.terms(h, torch.tensor([0.0, least / 7, least], dtype=torch.float64), torch.zeros(3).long())
        chance = 1 - torch.exp(-model.compensators(h, torch.full((3,), least, dtype=torch.float64)))
    assert found.time.unique().numel() == 1
    assert (found.time.exp() * least).numpy() == pytest.approx(chance.numpy())


def test_a_constant_intensity() -> None:
    rates = torch.tensor([0.5, 1.5], dtype=torch.float64)
    events, horizon = torch.zeros(2, 1, dtype=torch.float64), 3.0
    found = forecast(lambda t: rates.expand(*t.shape, 2), horizon, LEVELS, events)
    assert found.gap.numpy() == pytest.approx(-math.expm1(-6.0) / 2)
    assert found.types[0].tolist() == pytest.approx([0.25, 0.75])
    assert found.quantiles[0].numpy() == pytest.approx((-torch.log1p(-LEVELS) / 2).numpy())
    rare = forecast(lambda t: 1e-3 * rates.expand(*t.shape, 2), horizon, LEVELS, events)
    assert rare.quantiles[0].tolist() == [horizon] * 3
    assert float(rare.gap[0]) == pytest.approx(horizon, rel=0.01)


def test_forecasts_of_the_true_intensity_are_the_true_ones() -> None:
    process = SIMULATORS["hawkes"]()
    given = process.draw(3, 0)
    states = process.states(given)
    exact = truths.forecast(process, given)
    found = forecast(
        lambda t: torch.from_numpy(process.intensities(states, t.numpy())),
        60.0,
        LEVELS,
        torch.zeros(len(states), 1).double(),
    )
    assert found.gap.numpy() == pytest.approx(exact.gaps, rel=0.01)
    assert found.types.numpy() == pytest.approx(exact.types, abs=0.01)


def test_a_mixture_is_what_scipy_says() -> None:
    weights, means, deviations = np.array([0.3, 0.7]), np.array([-1.0, 0.5]), np.array([0.4, 1.1])
    mixture = Mixture(*(torch.from_numpy(part)[None] for part in (np.log(weights), means, deviations)))
    laws = [stats.lognorm(s, scale=np.exp(m)) for m, s in zip(means, deviations, strict=True)]
    log_gap = torch.tensor([0.3], dtype=torch.float64)
    gap = math.exp(0.3)
    density = sum(w * law.pdf(gap) for w, law in zip(weights, laws, strict=True))
    below = sum(w * law.cdf(gap) for w, law in zip(weights, laws, strict=True))
    assert float(mixture.log_density(log_gap) - log_gap) == pytest.approx(math.log(density))
    assert float(mixture.log_below(log_gap)) == pytest.approx(math.log(below))
    assert float(mixture.log_above(log_gap)) == pytest.approx(math.log(1 - below))
    whole = sum(w * law.mean() for w, law in zip(weights, laws, strict=True))
    assert float(mixture.mean(1e9)) == pytest.approx(whole)
    near = sum(w * law.expect(lambda x: min(x, 4.0)) for w, law in zip(weights, laws, strict=True))
    assert float(mixture.mean(4.0)) == pytest.approx(near, rel=1e-4)
    for level, quantile in zip(LEVELS.tolist(), mixture.quantiles(LEVELS, 1e9)[0].tolist(), strict=True):
        assert sum(w * law.cdf(quantile) for w, law in zip(weights, laws, strict=True)) == pytest.approx(level)
    assert mixture.quantiles(LEVELS, 0.5)[0, -1] == pytest.approx(0.5)
