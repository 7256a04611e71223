"""Distributions of a value: probabilities that sum to one, their equations, and draws that follow them."""

import pytest
import torch

from subquad.tasks.images.heads import LEVELS, Categorical, Head, Logistics


def heads() -> list[Head]:
    return [Categorical(), Logistics(1), Logistics(5)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def probabilities(head: Head, numbers: torch.Tensor) -> torch.Tensor:
    values = torch.arange(LEVELS)
    return head.log_probability(numbers.expand(LEVELS, -1), values).exp()


@pytest.mark.parametrize("head", heads(), ids=lambda head: f"{type(head).__name__}-{head.outputs}")
def test_probabilities_sum_to_one(head: Head) -> None:
    for seed, size in enumerate((0.0, 1.0, 5.0, 50.0)):
        numbers = size * torch.randn(head.outputs, generator=seeded(seed))
        assert float(probabilities(head, numbers).sum()) == pytest.approx(1, abs=1e-4)


def test_a_mixture_is_differences_of_sigmoids() -> None:
    """In float64, by the formula as it is written."""
    head = Logistics(3)
    numbers = torch.randn(9, generator=seeded()).double()
    weights, means, scales = numbers.chunk(3)
    weights, means, scales = weights.softmax(0), means + torch.tensor([-1.0, 0.0, 1.0]), (scales - 2).exp()

    def below(edge: float) -> torch.Tensor:
        return torch.sigmoid((edge - means) / scales)

    for value in (0, 1, 100, 254, 255):
        x, half = value * 2 / 255 - 1, 1 / 255
        high = torch.ones(3) if value == 255 else below(x + half)
        low = torch.zeros(3) if value == 0 else below(x - half)
        expected = float((weights * (high - low)).sum())
        assert float(probabilities(head, numbers.float())[value]) == pytest.approx(expected, rel=1e-3)


def test_far_values_have_finite_losses_and_gradients() -> None:
    numbers = torch.tensor([0.0, 300.0, -300.0]).requires_grad_()
    lost = -Logistics(1).log_probability(numbers[None], torch.tensor([0]))
    lost.sum().backward()
    assert torch.isfinite(lost).all()
    assert numbers.grad is not None
    assert torch.isfinite(numbers.grad).all()


@pytest.mark.parametrize("head", heads(), ids=lambda head: f"{type(head).__name__}-{head.outputs}")
def test_draws_follow_the_probabilities(head: Head) -> None:
    numbers = 2 * torch.randn(head.outputs, generator=seeded(1))
    drawn = head.draw(numbers.expand(20_000, -1), 1.0, seeded())
    shares = torch.bincount(drawn, minlength=LEVELS) / 20_000
    assert float((shares - probabilities(head, numbers)).abs().sum()) < 0.13  # about 256 bins of sampling noise
    likeliest = head.draw(numbers[None], 0.0, seeded())
    assert torch.equal(likeliest, head.draw(numbers[None], 0.0, seeded(7)))
