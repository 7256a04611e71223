"""Types that come again after a fixed time: finding them, and how they compete with all other events."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from subquad.tasks.events import EventSequences
from subquad.tasks.events.mixture import MixtureHead
from subquad.tasks.events.returns import NEVER, Return, due_after, find_returns
from subquad.tasks.events.scales import Scales, learn
from tests.tasks.events.sequences import random_sequences

RETURNS = ((1, 0.5, 10.0, 0.05), (1, 0.2, 11.0, 0.1), (2, 0.6, 5.0, 0.02))
LEVELS = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
DUE = torch.tensor([[3.0, 4.0, NEVER], [-0.02, 0.98, 0.7], [-3.0, -2.0, -1.0], [0.5, 1.5, 0.3]], dtype=torch.float64)


def yearly(share: float = 0.8, seed: int = 0) -> EventSequences:
    """A Poisson process of types 0 and 2, and type 1, which comes again after 30 +- .01 with some probability."""
    rng = np.random.default_rng(seed)
    times, types, offsets = [], [], [0]
    for _ in range(60):
        others = np.cumsum(rng.exponential(1.0, 100))
        others = others[others < 70.0]
        own = [rng.uniform(0.0, 30.0)]
        while rng.random() < share and own[-1] + 30.0 < 70.0:
            own.append(own[-1] + 30.0 + 0.01 * rng.normal())
        joined = np.concatenate([others, own])
        order = np.argsort(joined)
        times.append(joined[order])
        types.append(np.concatenate([2 * rng.integers(2, size=len(others)), np.ones(len(own), int)])[order])
        offsets.append(offsets[-1] + len(joined))
    starts = np.array([each[0] for each in times])
    return EventSequences(
        [str(number) for number in range(60)],
        np.array(offsets),
        np.concatenate(times),
        np.concatenate(types),
        ["a", "b", "c"],
        starts=starts,
        ends=np.full(60, 70.0),
    )


def test_a_return_is_found_and_nothing_else() -> None:
    sequences = yearly()
    scales = learn(sequences, returns=True)
    parts = scales.return_parts
    assert {part.type for part in parts} == {1}
    mean = sum(part.share * part.lag for part in parts) / sum(part.share for part in parts) * scales.mean_gap
    assert mean == pytest.approx(30.0, abs=0.01)
    assert sum(part.share for part in parts) == pytest.approx(0.8, abs=0.15)
    assert max(part.deviation for part in parts) * scales.mean_gap < 0.05
    assert find_returns(random_sequences([200, 200, 200]), 2.0, 0.0) == []
    coarse = random_sequences([200, 200, 200])
    assert find_returns(coarse._replace(times=coarse.times.round()), 2.0, 0.5) == []  # every lag is a whole number
    assert Scales.from_json(json.loads(json.dumps(scales.as_json()))) == scales


def test_when_a_return_is_due_depends_on_the_past_only() -> None:
    """Read in two parts, from the times of the last events, it is the same as in one."""
    parts = tuple(Return(*part) for part in RETURNS)
    rng = np.random.default_rng(0)
    times = torch.from_numpy(np.cumsum(rng.exponential(1.0, (3, 12)), axis=1))
    types = torch.from_numpy(rng.integers(3, size=(3, 12)))
    whole = due_after(parts, times, types)
    first = due_after(parts, times[:, :5], types[:, :5])
    second = due_after(parts, times[:, 5:], types[:, 5:], first.last)
    assert torch.equal(torch.cat([first.due, second.due], 1), whole.due)
    for row, place in ((0, 0), (1, 7), (2, 11)):
        for at, part in enumerate(parts):
            before = [i for i in range(place + 1) if types[row, i] == part.type]
            expected = part.lag - float(times[row, place] - times[row, before[-1]]) if before else NEVER
            assert float(whole.due[row, place, at]) == pytest.approx(expected, rel=1e-6)


def head(grid: float) -> MixtureHead:
    resolution = 0.01 if grid else 1e-3
    scales = Scales(("a", "b", "c"), 2.0, -0.7, 1.2, resolution, 40.0, grid=grid, returns=RETURNS)
    generator = torch.Generator().manual_seed(0)
    made = MixtureHead(6, 3, scales, components=4, inner=8, types_see_gap=True, generator=generator)
    return made.double().eval()


def vectors() -> Tensor:
    h = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.cat([h, DUE], dim=1)


@pytest.mark.parametrize("row", range(4))
@torch.no_grad()
def test_probabilities_on_a_grid_sum_to_one(row: int) -> None:
    """Over all cells and types, with the chance of a longer gap: exactly, because causes share a cell without rest."""
    model, v = head(0.01), vectors()[row]
    gaps = 0.01 * torch.arange(0, 2001, dtype=torch.float64)
    widths = torch.full_like(gaps, 0.01)
    widths[0] = 0.005
    total = torch.zeros_like(gaps)
    for kind in range(3):
        terms = model.terms(v.expand(len(gaps), -1), gaps, torch.full((len(gaps),), kind))
        total += (terms.time + terms.type).exp()
    longer = torch.exp(-model.compensators(v[None], torch.tensor([20.005], dtype=torch.float64)))
    assert float((total * widths).sum() + longer) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("row", range(4))
@torch.no_grad()
def test_forecasts_and_draws_agree_with_the_likelihood(row: int) -> None:
    model, v = head(0.0), vectors()[row]
    gaps = torch.cat([40.0 * torch.linspace(0, 1, 4001).double() ** 4, torch.linspace(0.2, 5, 4001).double()]).sort().values
    survival = torch.exp(-model.compensators(v.expand(len(gaps), -1), gaps))
    found = model.forecast(v[None], LEVELS)
    assert float(found.gap) == pytest.approx(float(torch.trapezoid(survival, gaps)), rel=0.03)
    passed = model.compensators(v.expand(3, -1), found.quantiles[0])
    torch.testing.assert_close(-torch.expm1(-passed), LEVELS, atol=2e-3, rtol=0)
    drawn = model.draw(v.expand(8000, -1), torch.Generator().manual_seed(1))
    torch.testing.assert_close(torch.quantile(drawn.gaps, LEVELS), found.quantiles[0], atol=0.02, rtol=0.08)
    shares = torch.bincount(drawn.types, minlength=3) / len(drawn.types)
    torch.testing.assert_close(shares.double(), found.types[0], atol=0.025, rtol=0)


@torch.no_grad()
def test_a_forecast_without_quantiles_is_otherwise_the_same() -> None:
    model, v = head(0.0), vectors()
    whole, short = model.forecast(v, LEVELS), model.forecast(v, LEVELS[:0])
    assert short.quantiles.shape == (len(v), 0)
    torch.testing.assert_close(short.gap, whole.gap)
    torch.testing.assert_close(short.types, whole.types)


@torch.no_grad()
def test_an_intensity_integrates_to_the_compensator() -> None:
    model, v = head(0.0), vectors()[3]
    gaps = torch.linspace(1e-4, 1.0, 20_001, dtype=torch.float64)
    total = model.intensities(v.expand(len(gaps), -1), gaps).sum(-1)
    ends = model.compensators(v.expand(2, -1), gaps[[0, -1]])
    assert float(torch.trapezoid(total, gaps)) == pytest.approx(float(ends[1] - ends[0]), rel=2e-3)


def test_gradients_are_finite_in_float32() -> None:
    model = head(0.01).float()
    terms = model.terms(vectors().float(), torch.tensor([0.0, 0.7, 1e-4, 30.0]), torch.tensor([0, 2, 1, 1]))
    (terms.time + terms.type).sum().backward()
    assert all(bool(torch.isfinite(weights.grad).all()) for weights in model.parameters() if weights.grad is not None)


@torch.no_grad()
def test_what_is_due_is_likely_at_its_time() -> None:
    """Type 2 is due in 0.3 with probability .6: beside the same gap without it, its density there is far higher."""
    model, v = head(0.01), vectors()[3:]
    without = torch.cat([v[:, :6], torch.full((1, 3), NEVER, dtype=torch.float64)], dim=1)
    gap, kind = torch.tensor([0.3], dtype=torch.float64), torch.tensor([2])
    due, never = (sum(model.terms(vector, gap, kind)) for vector in (v, without))
    assert float(due - never) > 2.0
