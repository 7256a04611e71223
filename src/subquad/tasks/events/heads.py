"""Heads: from the stack's output after an event to the distribution of the next event.

Times are in the model's unit, in which the mean gap of the training data is 1.
"""

import math
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.models.initialising import initialise
from subquad.tasks.events.forecasts import Drawn, Forecast, draw_gaps, forecast
from subquad.tasks.events.likelihood import (
    Integral,
    Intensity,
    Rule,
    Terms,
    compensators,
    log_likelihood,
    monte_carlo,
    trapezoid,
)

HeadName = Literal["hawkes", "mixture"]

LARGEST = 12.0
"""Largest logarithm of a decay rate, in units of mean gaps."""

FINER = 2
"""Factor by which the integral has more points outside of training."""


class Head(Protocol):
    """A distribution of the next event, given a vector for each of e events."""

    def terms(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]) -> Terms:
        """Log-likelihood of the gap to the next event and of its type."""
        ...

    def compensators(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Integral of the intensity over the gap: the negative log-probability of a longer gap."""
        ...

    def types_at(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        """Probabilities of the types, given that the next event comes after this gap."""
        ...

    def forecast(self, h: Float[Tensor, "e w"], levels: Float[Tensor, "q"]) -> Forecast:
        """Expected gap, quantiles of the gap at `levels`, and type probabilities."""
        ...

    def intensities(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        """Intensity of each type after a gap, given that no event came in between."""
        ...

    def draw(self, h: Float[Tensor, "e w"], generator: torch.Generator | None = None) -> Drawn:
        """A random next event. A gap beyond the horizon is replaced by the horizon."""
        ...


class HawkesHead(nn.Module):
    """The intensity of each type as a continuous function of time (extends Zuo et al. 2020, equation 6).

    At a time t after the event whose vector is h::

        lambda_k(t) = beta_k softplus((alpha_k t + w_k . z(t) + b_k) / beta_k)
        z(t) = rest(h) + jump(h) exp(-exp(rate(h)) t)

    The paper has z = h and divides t by the time of the last event. Here the effect of an event can decay at learned rates
    (as in Mei and Eisner 2017, equation 7), which neither needs the next event nor depends on the choice of t = 0.
    """

    def __init__(
        self,
        model_dim: int,
        types: int,
        *,
        inner: int,
        horizon: float,
        integral: Integral,
        points: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.horizon, self.integral, self.points = horizon, integral, points
        self.read = nn.Linear(model_dim, 3 * inner)
        self.weigh = nn.Linear(inner, types)
        self.alpha = nn.Parameter(torch.zeros(types))
        self.log_beta = nn.Parameter(torch.zeros(types))
        initialise(self.read, self.weigh, generator=generator)
        with torch.no_grad():
            # initial decay times from 1/300 of a mean gap to ten mean gaps; all types together have rate 1
            self.read.bias[2 * inner :] = torch.linspace(math.log(0.1), math.log(300.0), inner)
            self.weigh.bias.fill_(math.log(math.expm1(1.0 / types)))

    def intensity(self, h: Float[Tensor, "e w"]) -> Intensity:
        """Returns the intensity after each event as a function of time."""
        rest, jump, rate = self.read(h)[:, None].chunk(3, dim=-1)
        rate, beta = rate.clamp(-LARGEST, LARGEST).exp(), self.log_beta.exp()

        def at(t: Float[Tensor, "e p"]) -> Float[Tensor, "e p k"]:
            z = rest + jump * torch.exp(-rate * t[..., None])
            return beta * F.softplus((self.weigh(z) + self.alpha * t[..., None]) / beta)

        return at

    def terms(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]) -> Terms:
        return log_likelihood(self.intensity(h), gaps, types, self.rule(gaps))

    def rule(self, gaps: Float[Tensor, "e"]) -> Rule:
        """Random points in training with "monte-carlo", and the trapezoid rule otherwise."""
        if self.training and self.integral == "monte-carlo":
            return monte_carlo(self.points, gaps)
        return trapezoid(self.points if self.training else FINER * self.points, gaps)

    def compensators(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"], factor: int = 1) -> Float[Tensor, "e"]:
        return compensators(self.intensity(h), gaps, trapezoid(factor * FINER * self.points, gaps))

    def types_at(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        by_type = self.intensity(h)(gaps[:, None])[:, 0]
        return by_type / by_type.sum(-1, keepdim=True).clamp(min=1e-30)

    def forecast(self, h: Float[Tensor, "e w"], levels: Float[Tensor, "q"]) -> Forecast:
        return forecast(self.intensity(h), self.horizon, levels, h)

    def intensities(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        return self.intensity(h)(gaps[:, None])[:, 0]

    def draw(self, h: Float[Tensor, "e w"], generator: torch.Generator | None = None) -> Drawn:
        gaps = draw_gaps(self.intensity(h), self.horizon, h, generator)
        return Drawn(gaps, torch.multinomial(self.types_at(h, gaps), 1, generator=generator)[:, 0])
