"""The likelihood under an intensity, held to processes whose truth is known."""

import numpy as np
import pytest
import torch
from torch import Tensor

from subquad.tasks.events import SIMULATORS, EventSequences, truth
from subquad.tasks.events.likelihood import Intensity, compensators, log_likelihood, monte_carlo, trapezoid
from subquad.tasks.events.simulator import Process
from tests.tasks.events.truths import gap_integrals


def sequences(name: str, count: int = 20) -> tuple[Process, EventSequences]:
    process = SIMULATORS[name]()
    return process, process.draw(count, 1)


def true_intensity(process: Process, given: EventSequences) -> Intensity:
    """After the event before each event that has one."""
    states = process.states(given)[np.flatnonzero(~given.first) - 1]

    def at(offsets: Tensor) -> Tensor:
        return torch.from_numpy(process.intensities(states, offsets.numpy()))

    return at


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_true_intensity_gives_the_true_likelihood(name: str) -> None:
    process, given = sequences(name)
    later = ~given.first
    gaps, types = torch.from_numpy(given.gaps[later]), torch.from_numpy(given.types[later])
    found = log_likelihood(true_intensity(process, given), gaps, types, trapezoid(400, gaps))
    exact = truth.log_likelihood(process, given)
    assert found.time.numpy() == pytest.approx(exact.time[later], abs=2e-3)
    assert found.time.mean().item() == pytest.approx(exact.time[later].mean(), abs=1e-4)
    assert found.type.numpy() == pytest.approx(exact.type[later], abs=1e-9)


def test_another_intensity_is_worse() -> None:
    process, given = sequences("hawkes", 100)
    later = ~given.first
    gaps, types = torch.from_numpy(given.gaps[later]), torch.from_numpy(given.types[later])
    true = true_intensity(process, given)
    best = log_likelihood(true, gaps, types, trapezoid(200, gaps))
    for wrong in (lambda t: 1.2 * true(t), lambda t: 0.8 * true(t)):
        other = log_likelihood(wrong, gaps, types, trapezoid(200, gaps))
        assert other.time.mean() < best.time.mean() - 0.005
        assert torch.equal(other.type, best.type) or other.type.numpy() == pytest.approx(best.type.numpy())


def test_drawn_points_are_right_on_average_and_fresh() -> None:
    process, given = sequences("hawkes", 5)
    later = ~given.first
    gaps, intensity = torch.from_numpy(given.gaps[later]), true_intensity(process, given)
    exact = torch.from_numpy(gap_integrals(process, given).sum(1)[later])
    drawn = torch.stack([compensators(intensity, gaps, monte_carlo(4, gaps)) for _ in range(400)])
    errors = drawn.std(0) / 20
    assert ((drawn.mean(0) - exact).abs() < 5 * errors + 1e-9).all()
    assert (drawn.std(0) > 0).all()


def test_more_points_are_closer() -> None:
    process, given = sequences("hawkes")
    later = ~given.first
    gaps, intensity = torch.from_numpy(given.gaps[later]), true_intensity(process, given)
    exact = torch.from_numpy(gap_integrals(process, given).sum(1)[later])
    errors = [float((compensators(intensity, gaps, trapezoid(n, gaps)) - exact).abs().mean()) for n in (9, 17, 33)]
    assert errors[1] < errors[0] / 3.5
    assert errors[2] < errors[1] / 3.5


def test_the_integral_is_over_all_types() -> None:
    gaps, types = torch.tensor([2.0]), torch.tensor([0])
    found = log_likelihood(lambda t: torch.tensor([0.5, 1.5]).expand(*t.shape, 2), gaps, types, trapezoid(5, gaps))
    assert float(found.time) == pytest.approx(np.log(2.0) - 4.0)
    assert float(found.type) == pytest.approx(np.log(0.25))
