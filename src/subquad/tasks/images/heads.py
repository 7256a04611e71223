"""Distributions of a value from 0 to 255: categorical, and a mixture of logistics (Salimans et al. 2017, *PixelCNN++*).

A head turns the numbers that a model gives for a value into the value's log-probability, or into a drawn value.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

LEVELS = 256
"""Number of different values."""
NARROWEST = -7.0
"""Lowest logarithm of a logistic's scale, in units in which values go from -1 to 1."""
HeadKind = Literal["categorical", "logistics"]


class Head(ABC):
    """A distribution of values, given `outputs` numbers of a model."""

    outputs: int

    @abstractmethod
    def log_probability(self, numbers: Float[Tensor, "*n outputs"], values: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Log-probability of each value."""

    @abstractmethod
    def draw(self, numbers: Float[Tensor, "b outputs"], temperature: float, generator: torch.Generator) -> Int[Tensor, "b"]:
        """Draws a value for each row; at temperature 0 the likeliest one."""


class Categorical(Head):
    """A probability for each of the 256 values."""

    outputs = LEVELS

    def log_probability(self, numbers: Tensor, values: Tensor) -> Tensor:
        return -F.cross_entropy(numbers.float().flatten(0, -2), values.flatten(), reduction="none").view_as(values)

    def draw(self, numbers: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        if temperature == 0:
            return numbers.argmax(-1)
        noise = gumbel(numbers.shape, generator).to(numbers.device)
        return (numbers.float() / temperature + noise).argmax(-1)


class Logistics(Head):
    """A mixture of logistic distributions, rounded to whole values: a weight, a mean and a log-scale for each component.

    P(x) = sum over k of w_k (sigmoid((x + 1/2 - m_k) / s_k) - sigmoid((x - 1/2 - m_k) / s_k)); the lowest value takes all
    that is below it, and the highest all above.
    """

    def __init__(self, components: int) -> None:
        self.components, self.outputs = components, 3 * components

    def _parts(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights, means and logarithms of scales. Means start spread over all values."""
        weights, means, scales = numbers.float().chunk(3, -1)
        spread = torch.linspace(-1, 1, self.components, device=numbers.device) if self.components > 1 else 0.0
        return weights.log_softmax(-1), means + spread, (scales - 2).clamp(min=NARROWEST)

    def log_probability(self, numbers: Tensor, values: Tensor) -> Tensor:
        weights, means, scales = self._parts(numbers)
        half = 1 / (LEVELS - 1)
        x = (values * 2 * half - 1)[..., None]
        high, low = ((x + edge - means) * torch.exp(-scales) for edge in (half, -half))
        # sigmoid(high) - sigmoid(low) = sigmoid(high) sigmoid(-low) (1 - exp(low - high)), which keeps its precision
        width = torch.log(-torch.expm1(-2 * half * torch.exp(-scales)))
        inner = F.logsigmoid(high) + F.logsigmoid(-low) + width
        ends = torch.where((values == 0)[..., None], F.logsigmoid(high), inner)
        ends = torch.where((values == LEVELS - 1)[..., None], F.logsigmoid(-low), ends)
        return torch.logsumexp(weights + ends, -1)

    def draw(self, numbers: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        weights, means, scales = (part.cpu() for part in self._parts(numbers))
        noise = temperature * gumbel(weights.shape, generator)
        chosen = (weights + noise).argmax(-1, keepdim=True)
        uniform = torch.rand(chosen.shape, generator=generator).clamp(1e-5, 1 - 1e-5)
        offset = temperature * torch.exp(scales.gather(-1, chosen)) * torch.logit(uniform)
        x = (means.gather(-1, chosen) + offset)[..., 0]
        return ((x + 1) * (LEVELS - 1) / 2).round().clamp(0, LEVELS - 1).long().to(numbers.device)


def gumbel(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Gumbel noise: the largest of logits with it added is a draw from their softmax."""
    uniform = torch.rand(shape, generator=generator).clamp(min=math.exp(-80))
    return -torch.log((-torch.log(uniform)).clamp(min=1e-9))


def make_head(kind: HeadKind, components: int) -> Head:
    """Returns the head of a kind; `components` is for the mixture."""
    return Categorical() if kind == "categorical" else Logistics(components)
